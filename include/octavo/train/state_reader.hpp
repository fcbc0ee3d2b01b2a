/// @file
/// Copies of a session's state to the host while its steps go on.
#pragma once

#include <octavo/core/lane.hpp>
#include <octavo/memory/buffer.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Bytes of a copy beside a session's work, which others of the device stand behind.
inline constexpr std::size_t bytes_read_at_once = std::size_t{64} << 20;

/// Bytes of a device that no copy of its state takes: of others' work there.
inline constexpr std::size_t bytes_left_free = std::size_t{512} << 20;

/// Copies memory of a device to the host beside the main context's work, on a thread of its own.
/// Whoever is about to change that memory waits here. A device that has come so far has what is not
/// copied yet put aside in its own memory, as much as is free, which takes a fortieth of the time
/// that the way to the host does.
template <Device D>
class StateReader {
 public:
  /// @param main  outlives the reader
  explicit StateReader(const Context<D>& main) : lane_(main) {}

  /// What the main context was given so far comes before all copies.
  void begin() {
    lane_.fork();
    pieces_.clear();
    bytes_aside_ = 0;
    is_reading_ = true;
  }

  /// Of the thread that reads: has `finish` copy `bytes` to memory of `allocate_on_host`.
  void add(const std::byte* source, std::byte* target, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += bytes_read_at_once) {
      pieces_.push_back({source + at, target + at, std::min(bytes_read_at_once, bytes - at)});
    }
  }

  /// Of the thread that reads, once for each `begin`: copies all, and waits for it.
  /// @throws CudaError  if some of it cannot be copied; nothing waits for it any more
  void finish() {
    OwnedBytes aside;
    std::size_t end = pieces_.size();
    bool was_awaited = false;
    {
      const AtTheEnd at_the_end{is_reading_};
      for (std::size_t i = 0; i < end; ++i) {
        if (!was_awaited && is_awaited_ && lane_.is_reached(awaited_)) {
          was_awaited = true;
          end = put_aside(i, aside);
          if (i == end) break;
        }
        copy_sync(pieces_[i]);
      }
      lane_.context().synchronize();
    }
    for (std::size_t i = end; i < pieces_.size(); ++i) copy_sync(pieces_[i]);
  }

  /// Of the session's thread: waits until nobody reads what the device is about to change, by work
  /// that comes behind what the main context was given so far.
  void wait() noexcept {
    if (!is_reading_) return;
    try {
      lane_.mark_main(awaited_);
      is_awaited_ = true;
    } catch (...) {
      // What cannot be marked is waited for as it is.
    }
    is_reading_.wait(true);
    is_awaited_ = false;
  }

  /// Of the last copy, bytes that were put aside.
  [[nodiscard]] std::size_t bytes_aside() const { return bytes_aside_; }

 private:
  struct Piece {
    const std::byte* source;
    std::byte* target;
    std::size_t bytes;
  };
  struct AtTheEnd {
    std::atomic<bool>& is_reading;
    ~AtTheEnd() {
      is_reading = false;
      is_reading.notify_all();
    }
  };

  /// Has one piece under way at a time, so that whatever else is copied to the host, such as a
  /// step's loss, comes in between.
  void copy_sync(const Piece& piece) {
    copy_to_host(piece.target, piece.source, piece.bytes, lane_.context());
    lane_.context().synchronize();
  }

  /// Puts the last pieces aside, of those from `first` on as many as there is memory for.
  /// @return  the first of them
  std::size_t put_aside(std::size_t first, OwnedBytes& aside) {
    std::size_t from = pieces_.size();
    if constexpr (!std::is_same_v<D, Cpu>) {
      const Context<D>& context = lane_.context();
      const std::size_t free = free_bytes(context);
      const std::size_t most = free - std::min(free, bytes_left_free);
      std::size_t size = 0;
      while (from > first && pieces_[from - 1].bytes <= most - size) size += pieces_[--from].bytes;
      if (size == 0) return from;
      try {
        aside = allocate(size, context);
      } catch (const MemoryError&) {
        return pieces_.size();  // somebody else has taken it
      }
      std::byte* place = aside.get();
      for (std::size_t i = from; i < pieces_.size(); ++i) {
        copy_on_device(place, pieces_[i].source, pieces_[i].bytes, context);
        pieces_[i].source = std::exchange(place, place + pieces_[i].bytes);
      }
      bytes_aside_ = size;
    }
    return from;
  }

  Lane<D> lane_;
  std::vector<Piece> pieces_;
  typename Lane<D>::Mark awaited_;  ///< in the main context's work
  std::size_t bytes_aside_ = 0;
  std::atomic<bool> is_reading_{false};
  std::atomic<bool> is_awaited_{false};
};

}  // namespace octavo OCTAVO_ABI::detail
