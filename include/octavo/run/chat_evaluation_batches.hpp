/// @file
/// The batches of an evaluation on chats, the same in every evaluation.
#pragma once

#include <octavo/data/chat_stream.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/run/evaluation_batches.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options of the batches of an evaluation on chats.
struct ChatEvaluationOptions {
  /// The shape of a batch. Its maximum number of documents is divided equally among sequences.
  BatchShape batch{};
  int rank = 0;   ///< index of this replica
  int ranks = 1;  ///< number of replicas, which have the same chats and options
  Index batches = std::numeric_limits<Index>::max();  ///< maximum number; the first ones are used
  std::int32_t filler = 0;                            ///< see `ChatSequences`
};

namespace detail {

/// Returns the form of the sequences of a batch of chats.
/// @throws ConfigError  if the shape has room for fewer documents than sequences
inline ChatSequences chat_sequences(const BatchShape& batch, std::int32_t filler) {
  require<ConfigError>(batch.sequences >= 1 && batch.most_documents >= batch.sequences,
                       "a batch of ", batch.sequences, " sequences has room for ",
                       batch.most_documents,
                       " chats; pass sequences, and room for at least one chat in each");
  return {batch.tokens, batch.most_documents / batch.sequences, filler};
}

}  // namespace detail

/// Chats packed into sequences in their order, each chat a separate document, and the buffers of
/// one batch. Ranks alternate between batches.
class ChatEvaluationBatches {
 public:
  /// @throws ConfigError  as `PackedChats` does, if the shape has room for fewer documents than
  ///                      sequences, or if `rank` is not 0 to `ranks` - 1
  ChatEvaluationBatches(Chats chats, const ChatEvaluationOptions& options)
      : options_(options),
        chats_(std::make_unique<const Chats>(std::move(chats))),
        packed_(*chats_, detail::chat_sequences(options.batch, options.filler)),
        tokens_(static_cast<std::size_t>(options.batch.rows())),
        targets_(tokens_.size()) {
    detail::require_rank(options.rank, options.ranks);
  }

  /// Returns the losses of all batches, over all ranks. A rank without a remaining batch evaluates
  /// one without targets, because all ranks take part in each evaluation.
  /// @param progress  called after each round, with the number of rounds done and their total
  [[nodiscard]] LossSum evaluate(TrainingSession& session,
                                 const std::function<void(Index, Index)>& progress = {}) {
    return detail::evaluate_batches(session, *this, options_.rank, options_.ranks, progress);
  }

  /// Returns the number of batches of all ranks.
  [[nodiscard]] Index batches() const {
    const Index sequences = options_.batch.sequences;
    return std::min(options_.batches, (packed_.size() + sequences - 1) / sequences);
  }

  /// Returns a batch, in buffers that the next call overwrites; after the last batch, one without
  /// targets.
  [[nodiscard]] Batch get(Index number) {
    documents_.clear();
    for (Index i = 0; i < options_.batch.sequences; ++i) {
      const Index sequence = number * options_.batch.sequences + i;
      const auto place = static_cast<std::size_t>(i * options_.batch.tokens);
      if (number < batches() && sequence < packed_.size()) {
        packed_.fill(sequence, place, tokens_, targets_, documents_);
      } else {
        packed_.fill_empty(place, tokens_, targets_);
      }
    }
    return {tokens_, targets_, documents_};
  }

  /// Returns all chats, including those that the batches do not contain.
  [[nodiscard]] const Chats& chats() const { return *chats_; }
  /// Returns the number of chats in the batches.
  [[nodiscard]] Index evaluated_chats() const {
    return packed_.chats_in(batches() * options_.batch.sequences);
  }
  /// Returns a hash of the evaluated chats: losses can be compared if it is equal.
  [[nodiscard]] std::uint64_t hash() const {
    detail::WordHash hash;
    hash.add(chats_->hash());
    hash.add(static_cast<std::uint64_t>(options_.batch.tokens));
    hash.add(
        static_cast<std::uint64_t>(std::min(packed_.size(), batches() * options_.batch.sequences)));
    return hash.value();
  }

 private:
  ChatEvaluationOptions options_;
  std::unique_ptr<const Chats> chats_;  ///< at an address that `packed_` refers to
  PackedChats packed_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<Index> documents_;
};

}  // namespace octavo
