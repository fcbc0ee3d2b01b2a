/// @file
/// An arena for all memory of a training program, and its memory plan.
#pragma once

#include <octavo/memory/buffer.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace octavo OCTAVO_ABI {

/// The purpose of an allocation in the arena.
enum class MemoryKind {
  weights,
  gradients,
  optimizer,
  scaling,
  quantized_weights,
  activations,
  workspace,
  communication,
};

/// Number of `MemoryKind` values.
inline constexpr std::size_t memory_kinds = 8;

/// Returns the kind's name for display.
constexpr const char* name_of(MemoryKind kind) {
  constexpr std::array<const char*, memory_kinds> names{
      "weights",           "gradients",   "optimizer", "scaling",
      "quantised weights", "activations", "workspace", "communication"};
  return names[static_cast<std::size_t>(kind)];
}

/// Peak bytes of device memory that a program needs, in total and by kind.
struct MemoryPlan {
  std::size_t peak = 0;                             ///< total bytes, including alignment
  std::array<std::size_t, memory_kinds> by_kind{};  ///< bytes by `MemoryKind`; they sum to `peak`
  std::size_t host = 0;                             ///< bytes of host memory, including alignment

  [[nodiscard]] std::size_t bytes(MemoryKind kind) const {
    return by_kind[static_cast<std::size_t>(kind)];
  }
};

/// Consecutive bytes of an arena.
struct ArenaRange {
  std::byte* data = nullptr;  ///< null while measuring
  std::size_t bytes = 0;
};

/// Allocates consecutive pieces of one block of device memory, and of one block of host memory for
/// data that is offloaded there. A measuring arena has no memory: building a model on it computes
/// the model's `MemoryPlan` without allocating, and the same code then allocates the real memory.
template <Device D>
class Arena {
 public:
  /// Creates a measuring arena: `allocate` returns null and only counts.
  Arena() = default;
  /// Creates an arena of `plan.peak` bytes, and `plan.host` bytes of host memory, allocated at
  /// once.
  Arena(const MemoryPlan& plan, const Context<D>& context)
      : Arena(plan, Buffer<D>(plan.peak, context), context) {}
  /// Creates an arena in existing memory of `plan.peak` bytes.
  Arena(const MemoryPlan& plan, Buffer<D> memory, const Context<D>& context)
      : buffer_(std::move(memory)), on_host_(plan.host) {
    if (on_host_ != 0) host_ = allocate_on_host(on_host_, context);
  }

  /// Whether this arena has no memory and only measures.
  [[nodiscard]] bool measuring() const { return buffer_.data() == nullptr; }

  /// Returns the next `count` elements, aligned to 256 bytes and uninitialised; null while
  /// measuring.
  /// @throws UsageError  if the arena is too small
  template <class T>
  T* allocate(MemoryKind kind, Index count) {
    const std::size_t bytes = aligned_bytes<T>(count);
    const std::size_t begin = used_;
    used_ += bytes;
    used_by_kind_[static_cast<std::size_t>(kind)] += bytes;
    if (used_ > plan_.peak) plan_ = {used_, used_by_kind_, plan_.host};
    if (measuring()) return nullptr;
    require<UsageError>(used_ <= buffer_.size(), "the arena has ", buffer_.size(), " bytes but ",
                        used_,
                        " are needed; create it from the MemoryPlan of the same model and batch");
    return reinterpret_cast<T*>(buffer_.data() + begin);
  }

  /// Allocates like `allocate`, in host memory that device copies can access asynchronously. It
  /// counts as no `MemoryKind`, and is not overlaid.
  template <class T>
  T* allocate_host(Index count) {
    const std::size_t begin = plan_.host;
    plan_.host += aligned_bytes<T>(count);
    if (measuring()) return nullptr;
    require<UsageError>(plan_.host <= on_host_, "the arena has ", on_host_,
                        " bytes of host memory but ", plan_.host,
                        " are needed; create it from the MemoryPlan of the same model and options");
    return reinterpret_cast<T*>(host_.get() + begin);
  }

  /// Calls `function()`, and returns the device memory that it allocates in this arena.
  template <class Function>
  ArenaRange range_of(const Function& function) {
    const std::size_t begin = used_;
    function();
    return {measuring() ? nullptr : buffer_.data() + begin, used_ - begin};
  }

  /// Runs `alternatives` one after another over the same memory: only one of them is in use at a
  /// time, so together they need only as much memory as the largest.
  template <class... Alternatives>
  void overlay(const Alternatives&... alternatives) {
    const std::size_t begin = used_;
    const auto kinds = used_by_kind_;
    std::size_t end = used_;
    auto kinds_at_end = used_by_kind_;
    const auto run = [&](const auto& alternative) {
      used_ = begin;
      used_by_kind_ = kinds;
      alternative();
      if (used_ > end) {
        end = used_;
        kinds_at_end = used_by_kind_;
      }
    };
    (run(alternatives), ...);
    used_ = end;
    used_by_kind_ = kinds_at_end;
  }

  /// Returns the peak of all allocations so far.
  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

  /// Returns all of the memory. Use it only before anything is written to the arena.
  [[nodiscard]] std::span<std::byte> memory() const { return {buffer_.data(), buffer_.size()}; }

  /// Returns the bytes of device memory actually allocated.
  [[nodiscard]] std::size_t allocated() const { return buffer_.size(); }
  /// Returns the bytes of host memory actually allocated.
  [[nodiscard]] std::size_t allocated_on_host() const { return on_host_; }

 private:
  template <class T>
  static std::size_t aligned_bytes(Index count) {
    return static_cast<std::size_t>(
        round_up(count * static_cast<Index>(sizeof(T)), Index{allocation_alignment}));
  }

  OwnedBytes host_;
  Buffer<D> buffer_;  ///< freed before `host_`, which waits for copies between them
  std::size_t on_host_ = 0;
  std::size_t used_ = 0;
  std::array<std::size_t, memory_kinds> used_by_kind_{};
  MemoryPlan plan_;
};

}  // namespace octavo
