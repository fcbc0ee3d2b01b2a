/// @file
/// Reading the next batch while the one before is trained on.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/start_thread.hpp>
#include <octavo/data/token_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The batches of a stream, or one rank's part of each, of which the next is read by a thread
/// beside the caller's.
class ReadAhead {
 public:
  /// A batch that was read.
  struct Read {
    std::vector<std::int32_t> tokens;   ///< [count, sequence_length]
    std::vector<std::int32_t> targets;  ///< [count, sequence_length]
    TokenPosition position;             ///< of the stream, behind the batch
    double epoch = 0;                   ///< of the stream, behind the batch
  };

  /// @param stream  stands where reading begins
  /// @param first   the first sequence of each batch that is read
  /// @param count   of the sequences that are read
  ReadAhead(TokenStream stream, Index first, Index count)
      : stream_(std::move(stream)), first_(first), count_(count) {
    const auto tokens = static_cast<std::size_t>(count * stream_.options().sequence_length);
    for (Read* read : {&current_, &next_}) {
      read->tokens.resize(tokens);
      read->targets.resize(tokens);
      note_place(*read);
    }
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() { wait(); }

  /// The next batch, until the next call; the one behind it is being read then.
  /// @throws IoError  if its tokens cannot be read or are outside of the vocabulary: again with
  ///                  each call, until there is no reason to
  Read& next() {
    if (!thread_.joinable()) begin();
    wait();
    if (error_ != nullptr) {
      stream_.restore(current_.position);
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
    std::swap(current_, next_);
    begin();
    return current_;
  }

  /// The batch that `next` gave last; before there was one, no tokens but the place of the first.
  [[nodiscard]] Read& current() { return current_; }
  [[nodiscard]] const Read& current() const { return current_; }

  /// Goes on at another place of the stream.
  /// @throws ConfigError  if the place is none of this stream; nothing changes then
  void restore(const TokenPosition& position) {
    wait();
    error_ = nullptr;
    try {
      stream_.restore(position);
    } catch (...) {
      stream_.restore(current_.position);
      throw;
    }
    note_place(current_);
  }

 private:
  void note_place(Read& read) const {
    read.position = stream_.position();
    read.epoch = stream_.epoch();
  }

  void begin() {
    thread_ = detail::start_thread("reading tokens ahead", [this] {
      try {
        stream_.next(next_.tokens, next_.targets, first_, count_);
        note_place(next_);
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  }

  void wait() {
    if (thread_.joinable()) thread_.join();
  }

  TokenStream stream_;
  Index first_;
  Index count_;
  Read current_;
  Read next_;
  std::exception_ptr error_;  ///< of reading `next_`
  std::thread thread_;        ///< reads `next_`
};

}  // namespace octavo
