/// @file
/// The batches of a run on chats: those of its steps, and those of its evaluations.
#pragma once

#include <octavo/data/chat_stream.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/train/state.hpp>
#include <octavo/train/training_session.hpp>

#include <algorithm>
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

/// Chats packed into sequences, each chat a separate document. As with `TokenBatches`, a step has
/// the sequences that one rank with as many micro-batches as all ranks together would use, and each
/// rank takes consecutive ones.
class ChatBatches {
 public:
  /// @throws ConfigError  as `ChatStream` does, or if the shape has room for fewer documents than
  ///                      sequences
  ChatBatches(Chats train, Chats validation, const ChatBatchesOptions& options)
      : options_(options),
        chats_(std::make_unique<const Both>(Both{std::move(train), std::move(validation)})),
        stream_(chats_->train, form(options),
                options.batch.sequences * options.micro_batches * options.ranks, options.seed),
        validation_(chats_->validation, form(options)),
        tokens_(static_cast<std::size_t>(options.batch.rows() * options.micro_batches)),
        targets_(tokens_.size()) {
    detail::WordHash hash;
    hash.add(stream_.hash());
    hash.add(chats_->validation.hash());
    hash_ = hash.value();
  }

  /// Runs one step on the next sequences.
  [[nodiscard]] StepResult step(TrainingSession& session, double learning_rate) {
    const Index own = options_.batch.sequences * options_.micro_batches;
    stream_.next(tokens_, targets_, documents_, own * options_.rank, own);
    return session.step({tokens_, targets_, documents_}, learning_rate);
  }

  /// Returns the losses of all sequences for evaluation, over all ranks. Ranks alternate between
  /// batches; a rank without a remaining batch evaluates one without targets.
  [[nodiscard]] LossSum evaluate(TrainingSession& session) {
    session.begin_evaluation();
    const Index batches = validation_batches();
    const auto rows = static_cast<std::size_t>(options_.batch.rows());
    const std::span tokens = std::span(tokens_).first(rows);
    const std::span targets = std::span(targets_).first(rows);
    LossSum total;
    for (Index first = 0; first < batches; first += options_.ranks) {
      const Index batch = first + options_.rank;
      documents_.clear();
      for (Index i = 0; i < options_.batch.sequences; ++i) {
        const Index sequence = batch * options_.batch.sequences + i;
        const auto place = static_cast<std::size_t>(i * options_.batch.tokens);
        if (batch < batches && sequence < validation_.size()) {
          validation_.fill(sequence, place, tokens, targets, documents_);
        } else {
          validation_.fill_empty(place, tokens, targets);
        }
      }
      const LossSum loss = session.evaluate({tokens, targets, documents_});
      total.sum += loss.sum;
      total.tokens += loss.tokens;
    }
    return session.sum_over_ranks(total);
  }

  [[nodiscard]] double epoch() const { return stream_.epoch(); }
  [[nodiscard]] double tokens_in_step() const {
    return static_cast<double>(tokens_.size()) * options_.ranks;
  }
  /// Returns the number of steps that use all chats this many times; the last step may use some
  /// more.
  [[nodiscard]] Index steps_of(Index epochs) const {
    const Index step = options_.batch.sequences * options_.micro_batches * options_.ranks;
    return (stream_.sequences_of(epochs) + step - 1) / step;
  }
  /// Returns the number of sequences into which the first epoch packs its chats.
  [[nodiscard]] Index sequences() const { return stream_.sequences_of(1); }
  /// Returns the shape of a micro-batch.
  [[nodiscard]] const BatchShape& shape() const { return options_.batch; }
  [[nodiscard]] const Chats& train() const { return chats_->train; }
  [[nodiscard]] const Chats& validation() const { return chats_->validation; }
  /// Returns a hash of all chats and of everything that determines their order: equal on ranks that
  /// train together.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  /// Returns a hash of the validation chats: losses can be compared if it is equal.
  [[nodiscard]] std::uint64_t validation_hash() const {
    detail::WordHash hash;
    hash.add(chats_->validation.hash());
    hash.add(static_cast<std::uint64_t>(options_.batch.tokens));
    hash.add(static_cast<std::uint64_t>(
        std::min(validation_.size(), validation_batches() * options_.batch.sequences)));
    return hash.value();
  }

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

  struct Both {
    Chats train;
    Chats validation;
  };

  static ChatSequences form(const ChatBatchesOptions& options) {
    const BatchShape& batch = options.batch;
    require<ConfigError>(batch.sequences >= 1 && batch.most_documents >= batch.sequences,
                         "a batch of ", batch.sequences, " sequences has room for ",
                         batch.most_documents,
                         " chats; pass sequences, and room for at least one chat in each");
    return {batch.tokens, batch.most_documents / batch.sequences, options.filler};
  }

  [[nodiscard]] Index validation_batches() const {
    const Index sequences = options_.batch.sequences;
    return std::min(options_.validation_batches, (validation_.size() + sequences - 1) / sequences);
  }

  ChatBatchesOptions options_;
  std::unique_ptr<const Both> chats_;  ///< at an address that stream and sequences refer to
  ChatStream stream_;
  PackedChats validation_;
  std::vector<std::int32_t> tokens_;   ///< [rows of a step]
  std::vector<std::int32_t> targets_;  ///< [rows of a step]
  std::vector<Index> documents_;
  std::uint64_t hash_ = 0;
};

}  // namespace octavo
