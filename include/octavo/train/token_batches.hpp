/// @file
/// The batches of a run: those of its steps, and those that it is evaluated on.
#pragma once

#include <octavo/data/token_stream.hpp>
#include <octavo/train/training_session.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace octavo {

/// What batches a run has.
struct TokenBatchesOptions {
  BatchShape batch{};                ///< of one micro-batch
  Index micro_batches = 1;           ///< of one step
  double validation_fraction = 0.1;  ///< of the tokens, at their end; at least a sequence
  /// Of one evaluation, at most.
  Index validation_batches = std::numeric_limits<Index>::max();
  std::uint64_t seed = 1;  ///< of the order of the steps' batches
};

/// Tokens, parted into those of steps and those of evaluations, and the buffers of one step.
class TokenBatches {
 public:
  /// @param tokens  that outlive this
  /// @throws ConfigError  if there are too few of them
  TokenBatches(std::span<const std::uint8_t> tokens, const TokenBatchesOptions& options)
      : parts_(split_validation(tokens, options.validation_fraction, options.batch.tokens + 1)),
        stream_(parts_.train, {.sequences = options.batch.sequences * options.micro_batches,
                               .sequence_length = options.batch.tokens,
                               .seed = options.seed}),
        validation_(parts_.validation, {.sequences = options.batch.sequences,
                                        .sequence_length = options.batch.tokens,
                                        .max_batches = options.validation_batches}),
        rows_(static_cast<std::size_t>(options.batch.rows())),
        tokens_(rows_ * static_cast<std::size_t>(options.micro_batches)),
        targets_(tokens_.size()) {}

  /// One step on the batches that come next.
  StepResult step(TrainingSession& session, double learning_rate) {
    stream_.next(tokens_, targets_);
    return session.step(tokens_, targets_, learning_rate);
  }

  /// The losses of all batches for evaluation.
  LossSum evaluate(TrainingSession& session) {
    session.begin_evaluation();
    const auto tokens = std::span(tokens_).first(rows_);
    const auto targets = std::span(targets_).first(rows_);
    LossSum total;
    for (Index batch = 0; batch < validation_.batches(); ++batch) {
      validation_.get(batch, tokens, targets);
      const LossSum loss = session.evaluate(tokens, targets);
      total.sum += loss.sum;
      total.tokens += loss.tokens;
    }
    return total;
  }

  [[nodiscard]] double epoch() const { return stream_.epoch(); }
  [[nodiscard]] double tokens_in_step() const { return static_cast<double>(tokens_.size()); }
  [[nodiscard]] std::size_t training_tokens() const { return parts_.train.size(); }
  [[nodiscard]] std::size_t validation_tokens() const { return parts_.validation.size(); }

 private:
  TokenSplit parts_;
  TokenStream stream_;
  ValidationSet validation_;
  std::size_t rows_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
};

}  // namespace octavo
