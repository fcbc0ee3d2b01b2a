/// @file
/// The batches of a run on chats: those of its steps, and those of its evaluations.
#pragma once

#include <octavo/data/chat_stream.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/run/chat_evaluation_batches.hpp>
#include <octavo/session/state.hpp>
#include <octavo/session/training_session.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options of the batches of chats.
struct ChatBatchesOptions {
  /// The shape of one micro-batch. Its maximum number of documents is divided equally among
  /// sequences.
  BatchShape batch{};
  Index micro_batches = 1;  ///< of one step, for this rank
  int rank = 0;             ///< index of this replica
  int ranks = 1;            ///< number of replicas, which have the same chats and options
  /// Maximum number of batches per evaluation.
  Index validation_batches = std::numeric_limits<Index>::max();
  std::uint64_t seed = 1;   ///< of the order of chats
  std::int32_t filler = 0;  ///< see `ChatSequences`
};

/// Chats packed into sequences, each chat a separate document. As in `TokenBatches`, a step of
/// several ranks has the same sequences as a step of one rank with the same total number of
/// micro-batches; each rank uses consecutive ones.
class ChatBatches {
 public:
  /// @throws ConfigError  as `ChatStream` does, or if the shape has room for fewer documents than
  ///                      sequences
  ChatBatches(Chats train, Chats validation, const ChatBatchesOptions& options)
      : options_(options),
        train_(std::make_unique<const Chats>(std::move(train))),
        stream_(*train_, detail::chat_sequences(options.batch, options.filler),
                options.batch.sequences * options.micro_batches * options.ranks, options.seed),
        evaluation_(std::move(validation), {.batch = options.batch,
                                            .rank = options.rank,
                                            .ranks = options.ranks,
                                            .batches = options.validation_batches,
                                            .filler = options.filler}),
        tokens_(static_cast<std::size_t>(options.batch.rows() * options.micro_batches)),
        targets_(tokens_.size()) {
    detail::WordHash hash;
    hash.add(stream_.hash());
    hash.add(evaluation_.chats().hash());
    hash_ = hash.value();
  }

  /// Runs one step on the next sequences.
  [[nodiscard]] StepResult step(TrainingSession& session, double learning_rate) {
    const Index own = options_.batch.sequences * options_.micro_batches;
    stream_.next(tokens_, targets_, documents_, own * options_.rank, own);
    return session.step({tokens_, targets_, documents_}, learning_rate);
  }

  /// Returns the losses of all validation batches, over all ranks; see `ChatEvaluationBatches`.
  [[nodiscard]] LossSum evaluate(TrainingSession& session) { return evaluation_.evaluate(session); }

  [[nodiscard]] double epoch() const { return stream_.epoch(); }
  [[nodiscard]] double tokens_in_step() const {
    return static_cast<double>(tokens_.size()) * options_.ranks;
  }
  /// Returns the number of steps that use all chats this many times; the last step may use some of
  /// them once more.
  [[nodiscard]] Index steps_of(Index epochs) const {
    const Index step = options_.batch.sequences * options_.micro_batches * options_.ranks;
    return (stream_.sequences_of(epochs) + step - 1) / step;
  }
  /// Returns the number of sequences into which the first epoch packs its chats.
  [[nodiscard]] Index sequences() const { return stream_.sequences_of(1); }
  /// Returns the shape of a micro-batch.
  [[nodiscard]] const BatchShape& shape() const { return options_.batch; }
  [[nodiscard]] const Chats& train() const { return *train_; }
  [[nodiscard]] const Chats& validation() const { return evaluation_.chats(); }
  /// Returns a hash of all chats and of everything that determines their order: equal on ranks that
  /// train together.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  /// Returns a hash of the validation chats: losses can be compared if it is equal.
  [[nodiscard]] std::uint64_t validation_hash() const { return evaluation_.hash(); }

  /// Returns the run's position in its chats after the last step, as a part of its state. It is the
  /// same on all ranks, and does not depend on their number. Loading it with different chats, seed
  /// or sequence length is an error. The entries point into this.
  [[nodiscard]] std::vector<StateEntry> state() {
    StateEntry position;
    position.name = "data.position";
    position.format = "int64";
    position.shape = {2};
    position.bytes = sizeof(ChatPosition);
    position.read_sync = [this](std::byte* target) {
      std::memcpy(target, &stream_.position(), sizeof(ChatPosition));
    };
    position.write_sync = [this](const std::byte* bytes) {
      ChatPosition place;
      std::memcpy(&place, bytes, sizeof(ChatPosition));
      stream_.restore(place);
    };
    return {text_entry("data.source", message("chats of hash ", stream_.hash())),
            std::move(position)};
  }

 private:
  static_assert(sizeof(ChatPosition) == 2 * sizeof(std::int64_t));

  ChatBatchesOptions options_;
  std::unique_ptr<const Chats> train_;  ///< at an address that the stream refers to
  ChatStream stream_;
  ChatEvaluationBatches evaluation_;
  std::vector<std::int32_t> tokens_;   ///< [rows of a step]
  std::vector<std::int32_t> targets_;  ///< [rows of a step]
  std::vector<Index> documents_;
  std::uint64_t hash_ = 0;
};

}  // namespace octavo
