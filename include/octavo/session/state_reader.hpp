/// @file
/// Asynchronous copies of a session's state to host memory.
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

/// Bytes of one asynchronous copy; other copies of the device wait for at most one.
inline constexpr std::size_t bytes_per_copy = std::size_t{64} << 20;

/// Device memory in bytes that copies leave free for other work.
inline constexpr std::size_t min_free_bytes = std::size_t{512} << 20;

/// Copies device memory to the host asynchronously, on a separate thread, while the main context
/// works. Before that memory is changed, the main context waits here. At that point, data that are
/// not copied yet are moved to free device memory, as far as they fit, which takes a fortieth of
/// the time of a copy to the host.
template <Device D>
class StateReader {
 public:
  /// @param main  must outlive the reader
  explicit StateReader(const Context<D>& main) : lane_(main) {}

  /// Starts reading: all copies follow the work enqueued on the main context so far.
  void begin() {
    lane_.fork();
    pieces_.clear();
    device_staged_bytes_ = 0;
    is_reading_ = true;
  }

  /// Called on the reading thread: makes `finish` copy `bytes` to memory of `allocate_on_host`.
  void add(const std::byte* source, std::byte* target, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += bytes_per_copy) {
      pieces_.push_back({source + at, target + at, std::min(bytes_per_copy, bytes - at)});
    }
  }

  /// Called on the reading thread, once per `begin`: copies everything, and waits for it.
  /// @throws CudaError  if a copy fails; other code then no longer waits for the copies
  void finish() {
    OwnedBytes staging;
    std::size_t end = pieces_.size();
    bool main_waited = false;
    {
      const ReadingGuard guard{is_reading_};
      for (std::size_t i = 0; i < end; ++i) {
        if (!main_waited && main_is_waiting_ && lane_.is_reached(wait_mark_)) {
          main_waited = true;
          end = stage_on_device(i, staging);
          if (i == end) break;
        }
        copy_sync(pieces_[i]);
      }
      lane_.context().synchronize();
    }
    for (std::size_t i = end; i < pieces_.size(); ++i) copy_sync(pieces_[i]);
  }

  /// Called on the session's thread: waits until no copy reads memory that the next work enqueued
  /// on the main context changes.
  void wait() noexcept {
    if (!is_reading_) return;
    try {
      lane_.mark_main(wait_mark_);
      main_is_waiting_ = true;
    } catch (...) {
      // Without a mark, waits for the copies themselves.
    }
    is_reading_.wait(true);
    main_is_waiting_ = false;
  }

  /// Returns the bytes of the last copy that were moved to free device memory.
  [[nodiscard]] std::size_t device_staged_bytes() const { return device_staged_bytes_; }

 private:
  struct Piece {
    const std::byte* source;
    std::byte* target;
    std::size_t bytes;
  };
  struct ReadingGuard {
    std::atomic<bool>& is_reading;
    ~ReadingGuard() {
      is_reading = false;
      is_reading.notify_all();
    }
  };

  /// Copies one piece at a time, so that other copies to the host, such as a step's loss, can run
  /// in between.
  void copy_sync(const Piece& piece) {
    copy_to_host(piece.target, piece.source, piece.bytes, lane_.context());
    lane_.context().synchronize();
  }

  /// Moves the last pieces, from `first` on, to free device memory, as many as fit.
  /// @return  the first of them
  std::size_t stage_on_device(std::size_t first, OwnedBytes& staging) {
    std::size_t from = pieces_.size();
    if constexpr (!std::is_same_v<D, Cpu>) {
      const Context<D>& context = lane_.context();
      const std::size_t free = free_bytes(context);
      const std::size_t most = free - std::min(free, min_free_bytes);
      std::size_t size = 0;
      while (from > first && pieces_[from - 1].bytes <= most - size) size += pieces_[--from].bytes;
      if (size == 0) return from;
      try {
        staging = allocate(size, context);
      } catch (const MemoryError&) {
        return pieces_.size();  // another program has allocated it
      }
      std::byte* place = staging.get();
      for (std::size_t i = from; i < pieces_.size(); ++i) {
        copy_on_device(place, pieces_[i].source, pieces_[i].bytes, context);
        pieces_[i].source = std::exchange(place, place + pieces_[i].bytes);
      }
      device_staged_bytes_ = size;
    }
    return from;
  }

  Lane<D> lane_;
  std::vector<Piece> pieces_;
  typename Lane<D>::Mark wait_mark_;  ///< where the main context waits
  std::size_t device_staged_bytes_ = 0;
  std::atomic<bool> is_reading_{false};
  std::atomic<bool> main_is_waiting_{false};
};

}  // namespace octavo OCTAVO_ABI::detail
