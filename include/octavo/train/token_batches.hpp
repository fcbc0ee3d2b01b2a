/// @file
/// The batches of a run: those of its steps, and those that it is evaluated on.
#pragma once

#include <octavo/data/documents.hpp>
#include <octavo/data/token_stream.hpp>
#include <octavo/train/training_session.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// What batches a run has.
struct TokenBatchesOptions {
  BatchShape batch{};                ///< of one micro-batch
  Index micro_batches = 1;           ///< of one step, of this rank
  int rank = 0;                      ///< this one of
  int ranks = 1;                     ///< so many, which have the same text and options
  double validation_fraction = 0.1;  ///< of the tokens, at their end; at least a sequence
  /// Of one evaluation, at most.
  Index validation_batches = std::numeric_limits<Index>::max();
  std::uint64_t seed = 1;  ///< of the order of the steps' batches
  /// The token that ends a document of the text: tokens then see those of their own document only,
  /// and what follows a document's end is no target. The session's shape has to say how many
  /// documents a micro-batch has at most. None: each sequence is one document.
  std::optional<std::uint8_t> document_end{};
};

/// Tokens, parted into those of steps and those of evaluations, and the buffers of one step. Ranks
/// share both: a step's batches are those that one rank with as many micro-batches as all have
/// would take, and each rank takes its neighbouring ones.
class TokenBatches {
 public:
  /// @param tokens  that outlive this
  /// @throws ConfigError  if there are too few of them, or more documents than the shape allows
  TokenBatches(std::span<const std::uint8_t> tokens, const TokenBatchesOptions& options)
      : parts_(split_validation(tokens, options.validation_fraction, options.batch.tokens + 1)),
        stream_(parts_.train,
                {.sequences = options.batch.sequences * options.micro_batches * options.ranks,
                 .sequence_length = options.batch.tokens,
                 .seed = options.seed}),
        validation_(parts_.validation, {.sequences = options.batch.sequences,
                                        .sequence_length = options.batch.tokens,
                                        .max_batches = options.validation_batches}),
        sequence_length_(options.batch.tokens),
        document_end_(options.document_end),
        rows_(static_cast<std::size_t>(options.batch.rows())),
        own_(rows_ * static_cast<std::size_t>(options.micro_batches)),
        rank_(options.rank),
        ranks_(options.ranks),
        tokens_(own_ * static_cast<std::size_t>(options.ranks)),
        targets_(tokens_.size()) {
    if (document_end_.has_value())
      require_room_for_documents(tokens, options.batch, *document_end_);
  }

  /// One step on the batches that come next.
  [[nodiscard]] StepResult step(TrainingSession& session, double learning_rate) {
    stream_.next(tokens_, targets_);
    const std::size_t begin = own_ * static_cast<std::size_t>(rank_);
    return session.step(divided(std::span(tokens_).subspan(begin, own_),
                                std::span(targets_).subspan(begin, own_), own_),
                        learning_rate);
  }

  /// The losses of all batches for evaluation, of all ranks. Ranks take turns with batches; those
  /// that there is none left for evaluate one without targets, because each evaluation is one that
  /// all take part in.
  [[nodiscard]] LossSum evaluate(TrainingSession& session) {
    session.begin_evaluation();
    const auto tokens = std::span(tokens_).first(rows_);
    const auto targets = std::span(targets_).first(rows_);
    LossSum total;
    for (Index first = 0; first < validation_.batches(); first += ranks_) {
      const Index batch = std::min(first + rank_, validation_.batches() - 1);
      validation_.get(batch, tokens, targets);
      if (first + rank_ != batch) std::ranges::fill(targets, ValidationSet::ignored_target);
      const auto left =
          static_cast<std::size_t>(validation_.tokens()) - static_cast<std::size_t>(batch) * rows_;
      const LossSum loss = session.evaluate(divided(tokens, targets, std::min(rows_, left)));
      total.sum += loss.sum;
      total.tokens += loss.tokens;
    }
    return session.sum_over_ranks(total);
  }

  [[nodiscard]] double epoch() const { return stream_.epoch(); }
  [[nodiscard]] double tokens_in_step() const { return static_cast<double>(tokens_.size()); }
  [[nodiscard]] std::size_t training_tokens() const { return parts_.train.size(); }
  [[nodiscard]] std::size_t validation_tokens() const { return parts_.validation.size(); }

 private:
  /// Every batch of the run has room for its documents, whichever sequences come together.
  static void require_room_for_documents(std::span<const std::uint8_t> tokens, BatchShape shape,
                                         std::uint8_t document_end) {
    const Index needed = shape.sequences * most_documents_in(tokens, shape.tokens, document_end);
    require<ConfigError>(needed <= shape.most_documents, "a batch of ", shape.sequences, " x ",
                         shape.tokens, " tokens may have up to ", needed,
                         " documents of this text, but most_documents of its shape is ",
                         shape.most_documents, "; set it to ", needed,
                         ", here and for the session");
  }

  /// @param count  tokens of the text; those behind them fill the batch, and divide nothing
  Batch divided(std::span<const std::int32_t> tokens, std::span<std::int32_t> targets,
                std::size_t count) {
    if (document_end_.has_value()) {
      find_documents(tokens.first(count), targets.first(count), sequence_length_, *document_end_,
                     documents_);
    }
    return {tokens, targets, documents_};
  }

  TokenSplit parts_;
  TokenStream stream_;
  ValidationSet validation_;
  Index sequence_length_;
  std::optional<std::uint8_t> document_end_;
  std::size_t rows_;
  std::size_t own_;  ///< tokens of this rank in a step
  int rank_;
  int ranks_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<Index> documents_;
};

}  // namespace octavo
