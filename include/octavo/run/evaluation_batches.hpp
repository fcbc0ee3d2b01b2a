/// @file
/// The batches of an evaluation, the same in every evaluation.
#pragma once

#include <octavo/data/batch_checks.hpp>
#include <octavo/data/documents.hpp>
#include <octavo/data/validation_set.hpp>
#include <octavo/session/training_session.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options of the batches of an evaluation.
struct EvaluationOptions {
  BatchShape batch{};
  int rank = 0;   ///< index of this replica
  int ranks = 1;  ///< number of replicas, which have the same tokens and options
  Index batches = std::numeric_limits<Index>::max();  ///< maximum number
  /// The token that ends a document. Tokens then attend only to their own document, and the token
  /// after a document's end is not a target. None: each sequence is one document.
  std::optional<std::int32_t> document_end{};
};

namespace detail {

/// Returns the losses of all batches of an evaluation, over all ranks. Before a session's first
/// step, the first batch of each rank calibrates delayed scales.
/// @param batches   with `batches()`, their number, and `get(number)`, which returns a batch
///                  without targets after the last
/// @param progress  called after each round, with the number of rounds done and their total
template <class Batches>
LossSum evaluate_batches(TrainingSession& session, Batches& batches, int rank, int ranks,
                         const std::function<void(Index, Index)>& progress) {
  if (session.must_calibrate()) session.calibrate(batches.get(rank));
  session.begin_evaluation();
  const Index all = batches.batches();
  LossSum total;
  for (Index first = 0; first < all; first += ranks) {
    const LossSum loss = session.evaluate(batches.get(first + rank));
    total.sum += loss.sum;
    total.tokens += loss.tokens;
    if (progress) progress(std::min(first + ranks, all), all);
  }
  return session.ranks().sum(total);
}

}  // namespace detail

/// Windows of tokens in their order, without overlap, and the buffers of one batch. Ranks alternate
/// between batches.
class EvaluationBatches {
 public:
  /// Reads all batches of this rank once, because an error in them would end an evaluation on all
  /// ranks.
  /// @throws ConfigError  if there are fewer than two tokens, or `rank` is not 0 to `ranks` - 1;
  ///                      and as reading them does, such as for a token outside the vocabulary
  /// @throws TooManyDocumentsError  if a batch has more documents than the shape allows
  EvaluationBatches(Tokens tokens, const EvaluationOptions& options)
      : set_(std::move(tokens), {.sequences = options.batch.sequences,
                                 .sequence_length = options.batch.tokens,
                                 .max_batches = options.batches}),
        options_(options),
        tokens_(static_cast<std::size_t>(options.batch.rows())),
        targets_(tokens_.size()) {
    detail::require_rank(options.rank, options.ranks);
    Index most = 0;
    for (Index number = options.rank; number < set_.batches(); number += options.ranks) {
      const Batch batch = get(number);
      if (!options.document_end.has_value()) continue;
      most = std::max(most, most_documents_of(batch.documents, 1, options.batch));
    }
    if (most > options.batch.most_documents) throw TooManyDocumentsError(most, options.batch);
  }

  /// Returns the losses of all batches, over all ranks. A rank without a remaining batch evaluates
  /// one without targets, because all ranks take part in each evaluation.
  /// @param progress  called after each round, with the number of rounds done and their total
  [[nodiscard]] LossSum evaluate(TrainingSession& session,
                                 const std::function<void(Index, Index)>& progress = {}) {
    return detail::evaluate_batches(session, *this, options_.rank, options_.ranks, progress);
  }

  /// Returns the number of batches of all ranks.
  [[nodiscard]] Index batches() const { return set_.batches(); }

  /// Returns a hash of the tokens: losses can be compared if it is equal.
  [[nodiscard]] std::uint64_t hash() const {
    detail::WordHash hash;
    hash.add(set_.hash());
    hash.add(static_cast<std::uint64_t>(std::int64_t{options_.document_end.value_or(-1)}));
    return hash.value();
  }

  /// Returns a batch, in buffers that the next call overwrites; after the last batch, one without
  /// targets.
  [[nodiscard]] Batch get(Index number) {
    const Index batch = std::min(number, set_.batches() - 1);
    set_.get(batch, tokens_, targets_);
    if (number != batch) std::ranges::fill(targets_, ValidationSet::ignored_target);
    const auto left =
        static_cast<std::size_t>(set_.tokens()) - static_cast<std::size_t>(batch) * tokens_.size();
    if (options_.document_end.has_value()) {
      const std::size_t count = std::min(tokens_.size(), left);
      find_documents(std::span(tokens_).first(count), std::span(targets_).first(count),
                     options_.batch.tokens, *options_.document_end, documents_);
    }
    return {tokens_, targets_, documents_};
  }

 private:
  ValidationSet set_;
  EvaluationOptions options_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<Index> documents_;
};

}  // namespace octavo
