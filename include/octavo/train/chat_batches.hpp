/// @file
/// The batches of a run on chats: those of its steps, and those that it is evaluated on.
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

/// What batches of chats a run has.
struct ChatBatchesOptions {
  /// Of one micro-batch; its most documents are as many for each sequence.
  BatchShape batch{};
  Index micro_batches = 1;  ///< of one step, of this rank
  int rank = 0;             ///< this one of
  int ranks = 1;            ///< so many, which have the same chats and options
  /// Of one evaluation, at most.
  Index validation_batches = std::numeric_limits<Index>::max();
  std::uint64_t seed = 1;   ///< of the order of chats
  std::int32_t filler = 0;  ///< see `ChatSequences`
};

/// Chats packed into sequences, each a document of its own. As with `TokenBatches` a step's
/// sequences are those that one rank with as many micro-batches as all have would take, and each
/// rank takes its neighbouring ones.
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

  /// One step on the sequences that come next.
  [[nodiscard]] StepResult step(TrainingSession& session, double learning_rate) {
    const Index own = options_.batch.sequences * options_.micro_batches;
    stream_.next(tokens_, targets_, documents_, own * options_.rank, own);
    return session.step({tokens_, targets_, documents_}, learning_rate);
  }

  /// The losses of all sequences for evaluation, of all ranks, which take turns with batches; one
  /// that there is none left for evaluates one without targets.
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
  /// Steps that take all chats so often, the last of them perhaps some more.
  [[nodiscard]] Index steps_of(Index epochs) const {
    const Index step = options_.batch.sequences * options_.micro_batches * options_.ranks;
    return (stream_.sequences_of(epochs) + step - 1) / step;
  }
  /// Sequences that the first epoch packs its chats into.
  [[nodiscard]] Index sequences() const { return stream_.sequences_of(1); }
  /// Of a micro-batch.
  [[nodiscard]] const BatchShape& shape() const { return options_.batch; }
  [[nodiscard]] const Chats& train() const { return chats_->train; }
  [[nodiscard]] const Chats& validation() const { return chats_->validation; }
  /// Of all chats and of what decides their order: equal on ranks that train together.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  /// Of what is evaluated: losses of equal ones can be compared.
  [[nodiscard]] std::uint64_t validation_hash() const {
    detail::WordHash hash;
    hash.add(chats_->validation.hash());
    hash.add(static_cast<std::uint64_t>(options_.batch.tokens));
    hash.add(static_cast<std::uint64_t>(
        std::min(validation_.size(), validation_batches() * options_.batch.sequences)));
    return hash.value();
  }

  /// Where the run stands in its chats, behind the last step, as a part of its state: the same on
  /// all ranks, however many they are. Loaded with other chats, seed or sequence length it is an
  /// error. The entries point into this.
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
                         " chats; give it sequences, and at least a chat to each");
    return {batch.tokens, batch.most_documents / batch.sequences, options.filler};
  }

  [[nodiscard]] Index validation_batches() const {
    const Index sequences = options_.batch.sequences;
    return std::min(options_.validation_batches, (validation_.size() + sequences - 1) / sequences);
  }

  ChatBatchesOptions options_;
  std::unique_ptr<const Both> chats_;  ///< where stream and sequences look for them
  ChatStream stream_;
  PackedChats validation_;
  std::vector<std::int32_t> tokens_;   ///< [rows of a step]
  std::vector<std::int32_t> targets_;  ///< [rows of a step]
  std::vector<Index> documents_;
  std::uint64_t hash_ = 0;
};

}  // namespace octavo
