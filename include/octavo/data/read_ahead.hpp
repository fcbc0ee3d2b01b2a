/// @file
/// Reading the next batch during the training step of the current one.
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

/// Reads the batches of a stream, or one rank's sequences of each. A second thread reads the next
/// batch in advance.
class ReadAhead {
 public:
  /// A batch that was read.
  struct Read {
    std::vector<std::int32_t> tokens;   ///< [count, sequence_length]
    std::vector<std::int32_t> targets;  ///< [count, sequence_length]
    TokenPosition position;             ///< of the stream after the batch
    double epoch = 0;                   ///< of the stream after the batch
  };

  /// @param stream  positioned at the first batch
  /// @param first   index of the first sequence to read in each batch
  /// @param count   number of sequences to read in each batch
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

  /// Returns the next batch, valid until the next call, and starts reading the one after it.
  /// @throws IoError  if its tokens cannot be read or are outside the vocabulary; each call tries
  ///                  again
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

  /// Returns the batch that `next` returned last. Before the first call it has a position but no
  /// tokens.
  [[nodiscard]] Read& current() { return current_; }
  [[nodiscard]] const Read& current() const { return current_; }

  /// Continues at another position of the stream.
  /// @throws ConfigError  if the position does not belong to this stream; nothing changes then
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
