/// @file
/// A shuffled, resumable stream of chats that are packed into sequences.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/random.hpp>
#include <octavo/data/batch_checks.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/data/permutation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The sequences that chats are packed into.
struct ChatSequences {
  Index length = 0;      ///< in tokens
  Index most_chats = 1;  ///< maximum number of chats in a sequence
  /// The padding token after the last chat of a sequence: an input whose target is ignored.
  std::int32_t filler = 0;
};

/// Packs whole chats into sequences. Each chat goes into the fullest sequence that has room for it.
class PackedChats {
 public:
  /// @param chats  each at most `sequences.length` tokens; outlive this object
  /// @param order  random numbers that determine the order of the chats; without them, chats are
  ///     not shuffled
  /// @throws ConfigError  if there is no chat, or a chat is longer than a sequence
  PackedChats(const Chats& chats, const ChatSequences& sequences,
              std::optional<RandomStream> order = {})
      : chats_(&chats), form_(sequences) {
    require<ConfigError>(chats.size() > 0, "there are no chats to pack; pass at least one");
    require<ConfigError>(sequences.most_chats >= 1,
                         "maximum number of chats in a sequence must be at least 1, but is ",
                         sequences.most_chats);
    std::multimap<Index, std::size_t>
        rooms;  // free tokens of each sequence that may get another chat
    for (Index place = 0; place < chats.size(); ++place) {
      const Index chat = order.has_value() ? Permutation(chats.size(), *order)(place) : place;
      const Index tokens = chats.length(chat);
      require<ConfigError>(tokens <= sequences.length, "a chat of ", tokens,
                           " tokens does not fit a sequence of ", sequences.length,
                           "; cut the chat, or increase the sequence length");
      const auto fullest = rooms.lower_bound(tokens);
      Index room = sequences.length;
      std::size_t sequence = packed_.size();
      if (fullest == rooms.end()) {
        packed_.emplace_back();
      } else {
        room = fullest->first;
        sequence = fullest->second;
        rooms.erase(fullest);
      }
      packed_[sequence].push_back(chat);
      if (static_cast<Index>(packed_[sequence].size()) < sequences.most_chats)
        rooms.emplace(room - tokens, sequence);
    }
  }

  /// Returns the number of sequences.
  [[nodiscard]] Index size() const { return static_cast<Index>(packed_.size()); }
  /// Returns the number of chats in the first `sequences` sequences.
  [[nodiscard]] Index chats_in(Index sequences) const {
    Index chats = 0;
    for (Index i = 0; i < std::min(sequences, size()); ++i) {
      chats += static_cast<Index>(packed_[static_cast<std::size_t>(i)].size());
    }
    return chats;
  }

  /// Fills a sequence of a batch.
  /// @param place      index of its first token in the batch
  /// @param inputs     those of the batch
  /// @param targets    those of the batch; −1 for tokens that are not targets
  /// @param documents  receives the indices in the batch at which chats begin, except the first
  void fill(Index sequence, std::size_t place, std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets, std::vector<Index>& documents) const {
    const auto length = static_cast<std::size_t>(form_.length);
    std::size_t at = 0;
    for (const Index chat : packed_[static_cast<std::size_t>(sequence)]) {
      if (at != 0) documents.push_back(static_cast<Index>(place + at));
      const auto tokens = static_cast<std::size_t>(chats_->length(chat));
      chats_->read(chat, inputs.subspan(place + at, tokens), targets.subspan(place + at, tokens));
      at += tokens;
    }
    fill_rest(place + at, length - at, inputs, targets);
  }

  /// Fills a sequence with padding.
  void fill_empty(std::size_t place, std::span<std::int32_t> inputs,
                  std::span<std::int32_t> targets) const {
    fill_rest(place, static_cast<std::size_t>(form_.length), inputs, targets);
  }

 private:
  void fill_rest(std::size_t place, std::size_t count, std::span<std::int32_t> inputs,
                 std::span<std::int32_t> targets) const {
    std::ranges::fill(inputs.subspan(place, count), form_.filler);
    std::ranges::fill(targets.subspan(place, count), -1);
  }

  const Chats* chats_;
  ChatSequences form_;
  std::vector<std::vector<Index>> packed_;  ///< the chats of each sequence
};

/// The position of a stream of chats.
struct ChatPosition {
  std::int64_t epoch = 0;
  std::int64_t sequence = 0;  ///< number of sequences of this epoch that were returned

  friend bool operator==(const ChatPosition&, const ChatPosition&) = default;
};

/// An endless stream of batches of chats. Each epoch contains every chat once, packed in a
/// different random order, which is computed. Sequences that do not fill a batch are not dropped:
/// the next epoch fills the batch. The stream depends only on the chats, the shape of the sequences
/// and the seed, not on the number of sequences per batch.
class ChatStream {
 public:
  /// @param chats      outlive this object
  /// @param sequences  per batch
  /// @throws ConfigError  as `PackedChats` does, or if `sequences` is 0
  ChatStream(const Chats& chats, const ChatSequences& form, Index sequences, std::uint64_t seed)
      : chats_(chats), form_(form), sequences_(sequences), seed_(seed), packed_(packed(0)) {
    detail::require_batch_shape(sequences, form.length);
    detail::WordHash hash;
    hash.add(chats.hash());
    hash.add(static_cast<std::uint64_t>(form.length));
    hash.add(static_cast<std::uint64_t>(form.most_chats));
    hash.add(static_cast<std::uint64_t>(form.filler));
    hash.add(seed);
    hash_ = hash.value();
  }

  /// Fills `count` sequences of the next batch, beginning with number `first`, and skips the
  /// others.
  /// @param inputs     [count, length]
  /// @param targets    [count, length]; −1 for tokens that are not targets
  /// @param documents  written: the indices in `inputs` at which chats begin, ascending, except the
  ///                   first of each sequence
  /// @throws ShapeError  if a span has a wrong size, or a batch lacks these sequences
  void next(std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
            std::vector<Index>& documents, Index first, Index count) {
    require<ShapeError>(first >= 0 && count >= 0 && first <= sequences_ - count, "sequences ",
                        first, " to ", first + count, " are requested of a batch of ", sequences_);
    detail::require_batch_room(inputs.size(), targets.size(), count * form_.length);
    documents.clear();
    for (Index i = 0; i < sequences_; ++i) {
      if (position_.sequence == packed_.size()) begin_epoch(position_.epoch + 1);
      const Index sequence = position_.sequence++;
      if (i < first || i >= first + count) continue;
      const auto place = static_cast<std::size_t>((i - first) * form_.length);
      packed_.fill(sequence, place, inputs, targets, documents);
    }
  }

  /// Returns the number of sequences in the first epochs.
  [[nodiscard]] Index sequences_of(Index epochs) const {
    Index all = 0;
    for (Index epoch = 0; epoch < epochs; ++epoch) all += packed(epoch).size();
    return all;
  }

  /// Returns the number of epochs so far; 1.5 is the middle of the second.
  [[nodiscard]] double epoch() const {
    return static_cast<double>(position_.epoch) +
           static_cast<double>(position_.sequence) / static_cast<double>(packed_.size());
  }

  [[nodiscard]] const ChatPosition& position() const { return position_; }
  /// Returns a hash of everything that determines the stream.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  /// Continues at the position of a stream with the same hash.
  /// @throws ConfigError  if the position is not valid; nothing changes then
  void restore(const ChatPosition& position) {
    require<ConfigError>(position.epoch >= 0, "the saved state is in epoch ", position.epoch,
                         " of the chats; it is damaged, use an older one");
    PackedChats packed = this->packed(position.epoch);
    require<ConfigError>(position.sequence >= 0 && position.sequence <= packed.size(),
                         "the saved state is at sequence ", position.sequence, " of epoch ",
                         position.epoch, " of the chats, which has ", packed.size(),
                         "; it is damaged, use an older one");
    packed_ = std::move(packed);
    position_ = position;
  }

 private:
  [[nodiscard]] PackedChats packed(std::int64_t epoch) const {
    // "chats" in ASCII: makes the order independent of other random numbers of the same seed.
    return {chats_, form_,
            RandomStream{seed_, 0x6368617473000000u + static_cast<std::uint64_t>(epoch)}};
  }
  void begin_epoch(std::int64_t epoch) {
    packed_ = packed(epoch);
    position_ = {epoch, 0};
  }

  const Chats& chats_;
  ChatSequences form_;
  Index sequences_;
  std::uint64_t seed_;
  PackedChats packed_;  ///< of this epoch
  ChatPosition position_;
  std::uint64_t hash_ = 0;
};

}  // namespace octavo
