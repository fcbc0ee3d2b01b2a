/// @file
/// The batches of a training: those of its steps, and those of its evaluations.
#pragma once

#include <octavo/data/documents.hpp>
#include <octavo/data/read_ahead.hpp>
#include <octavo/data/token_stream.hpp>
#include <octavo/data/validation_set.hpp>
#include <octavo/run/evaluation_batches.hpp>
#include <octavo/session/state.hpp>
#include <octavo/session/training_session.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options that determine the batches.
struct TokenBatchesOptions {
  BatchShape batch{};                ///< of one micro-batch
  Index micro_batches = 1;           ///< per step, for this rank
  int rank = 0;                      ///< index of this replica
  int ranks = 1;                     ///< number of replicas, which have the same text and options
  double validation_fraction = 0.1;  ///< of a text, at its end; at least one sequence
  /// Maximum number of batches per evaluation.
  Index validation_batches = std::numeric_limits<Index>::max();
  std::uint64_t seed = 1;  ///< of the order of the steps' batches
  /// The token that ends a document of the text. Tokens then attend only to their own document, and
  /// the token after a document's end is not a target. The session's shape must set the maximum
  /// number of documents per micro-batch. None: each sequence is one document.
  std::optional<std::int32_t> document_end{};
};

/// Tokens, divided into those for steps and those for evaluations, and the buffers of one step.
/// Ranks share both: a step of several ranks has the same batches as a step of one rank with the
/// same total number of micro-batches; each rank uses consecutive ones. While a step runs, a thread
/// reads the batches of the next one.
class TokenBatches {
 public:
  /// @param text  must outlive this object; its end is for validation
  /// @throws ConfigError  if there are too few tokens, or more documents than the shape allows
  TokenBatches(std::span<const std::uint8_t> text, const TokenBatchesOptions& options)
      : TokenBatches(split_validation(text, options.validation_fraction, options.batch.tokens + 1),
                     options) {
    if (document_end_.has_value()) require_room_for_documents(text, options.batch, *document_end_);
  }

  /// @throws ConfigError  if there are too few tokens
  TokenBatches(const TokenSplit& split, const TokenBatchesOptions& options)
      : TokenBatches({{"the text", split.train}}, split.validation, options) {}

  /// The number of documents in the batch of a step is known only when it is read; the session
  /// rejects a batch with more documents than the shape allows.
  /// @param train  shares of the training tokens
  /// @throws ConfigError  if there are too few tokens
  /// @throws TooManyDocumentsError  if a batch of an evaluation has more than the shape allows
  TokenBatches(std::vector<TokenShare> train, const Tokens& validation,
               const TokenBatchesOptions& options)
      : training_tokens_(tokens_of(train)),
        validation_tokens_(validation.size()),
        evaluation_(validation, {.batch = options.batch,
                                 .rank = options.rank,
                                 .ranks = options.ranks,
                                 .batches = options.validation_batches,
                                 .document_end = options.document_end}),
        sequence_length_(options.batch.tokens),
        document_end_(options.document_end),
        ranks_(options.ranks) {
    const Index own = options.batch.sequences * options.micro_batches;
    TokenStream stream(std::move(train), {.sequences = own * options.ranks,
                                          .sequence_length = options.batch.tokens,
                                          .seed = options.seed});
    detail::WordHash hash;
    hash.add(stream.position().source);
    hash.add(validation.hash());
    hash_ = hash.value();
    reader_ = std::make_unique<ReadAhead>(std::move(stream), own * options.rank, own);
  }

  /// Runs one step on the next batches.
  /// @throws IoError  if they cannot be read, or have tokens outside the vocabulary
  /// @throws TooManyDocumentsError  on all ranks, if a batch has more documents than the session's
  ///                                shape allows; the next call uses the same batches again
  [[nodiscard]] StepResult step(TrainingSession& session, double learning_rate) {
    const TokenPosition before = reader_->current().position;
    ReadAhead::Read& read = reader_->next();
    if (document_end_.has_value()) {
      find_documents(read.tokens, read.targets, sequence_length_, *document_end_, documents_);
    }
    try {
      return session.step({read.tokens, read.targets, documents_}, learning_rate);
    } catch (const TooManyDocumentsError&) {
      reader_->restore(before);
      throw;
    }
  }

  /// Returns the losses of all validation batches, over all ranks; see `EvaluationBatches`.
  [[nodiscard]] LossSum evaluate(TrainingSession& session) { return evaluation_.evaluate(session); }

  [[nodiscard]] double epoch() const { return reader_->current().epoch; }
  [[nodiscard]] double tokens_in_step() const {
    return static_cast<double>(reader_->current().tokens.size()) * ranks_;
  }
  [[nodiscard]] std::size_t training_tokens() const {
    return static_cast<std::size_t>(training_tokens_);
  }
  [[nodiscard]] std::size_t validation_tokens() const {
    return static_cast<std::size_t>(validation_tokens_);
  }
  /// Returns a hash of all tokens and of everything that determines their order: equal on ranks
  /// that train together.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  /// Returns a hash of the validation tokens: losses can be compared if it is equal.
  [[nodiscard]] std::uint64_t validation_hash() const { return evaluation_.hash(); }

  /// Returns the run's position in its tokens after the last step, as a part of its state. It is
  /// the same on all ranks, and does not depend on their number. Loading it with different tokens,
  /// weights, seed, sequence length or document end is an error. The entries point into this.
  [[nodiscard]] std::vector<StateEntry> state() {
    StateEntry source;
    source.name = "data.source";
    source.format = message("tokens of hash ", reader_->current().position.source);
    if (document_end_.has_value()) {
      source.format += message(" with documents that end in ", *document_end_);
    }
    source.read_sync = [](std::byte*) {};
    source.write_sync = [](const std::byte*) {};
    const TokenPosition& now = reader_->current().position;
    StateEntry position;
    position.name = "data.position";
    position.format = "int64";
    position.shape = {static_cast<Index>(now.shares.size()), 3};
    position.bytes = now.shares.size() * sizeof(TokenPosition::Share);
    position.read_sync = [this](std::byte* target) {
      const auto& shares = reader_->current().position.shares;
      std::memcpy(target, shares.data(), shares.size() * sizeof(TokenPosition::Share));
    };
    position.write_sync = [this](const std::byte* bytes) {
      TokenPosition place = reader_->current().position;
      std::memcpy(place.shares.data(), bytes, place.shares.size() * sizeof(TokenPosition::Share));
      reader_->restore(place);
    };
    return {std::move(source), std::move(position)};
  }

 private:
  static_assert(sizeof(TokenPosition::Share) == 3 * sizeof(std::int64_t));

  static Index tokens_of(const std::vector<TokenShare>& shares) {
    Index tokens = 0;
    for (const TokenShare& share : shares) tokens += share.tokens.size();
    return tokens;
  }

  /// Requires that every batch of the run, with any combination of sequences, has at most the
  /// allowed number of documents.
  static void require_room_for_documents(std::span<const std::uint8_t> text, BatchShape shape,
                                         std::int32_t document_end) {
    const auto end = static_cast<std::uint8_t>(document_end);
    if (end != document_end) return;  // not a byte: no document ends
    const Index needed = shape.sequences * most_documents_in(text, shape.tokens, end);
    require<ConfigError>(needed <= shape.most_documents, "a batch of ", shape.sequences, " x ",
                         shape.tokens, " tokens may have up to ", needed,
                         " documents of this text, but most_documents of its shape is ",
                         shape.most_documents, "; set it to ", needed,
                         ", for the batches and for the session");
  }

  Index training_tokens_;
  Index validation_tokens_;
  EvaluationBatches evaluation_;
  Index sequence_length_;
  std::optional<std::int32_t> document_end_;
  int ranks_;
  std::uint64_t hash_ = 0;
  std::unique_ptr<ReadAhead> reader_;
  std::vector<Index> documents_;
};

}  // namespace octavo
