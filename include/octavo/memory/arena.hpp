/// @file
/// One run of memory that a whole training program lives in, and the plan of what is in it.
#pragma once

#include <octavo/memory/buffer.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace octavo OCTAVO_ABI {

/// What a piece of the arena is for.
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

/// Number of kinds above.
inline constexpr std::size_t memory_kinds = 8;

/// The kind's name for people.
constexpr const char* name_of(MemoryKind kind) {
  constexpr std::array<const char*, memory_kinds> names{
      "weights",           "gradients",   "optimizer", "scaling",
      "quantised weights", "activations", "workspace", "communication"};
  return names[static_cast<std::size_t>(kind)];
}

/// Bytes of its device that a program needs, in all and by kind, at its peak.
struct MemoryPlan {
  std::size_t peak = 0;                             ///< bytes in all, alignment included
  std::array<std::size_t, memory_kinds> by_kind{};  ///< bytes by `MemoryKind`; they sum to `peak`
  std::size_t host = 0;  ///< bytes of the host's memory beside, alignment included

  [[nodiscard]] std::size_t bytes(MemoryKind kind) const {
    return by_kind[static_cast<std::size_t>(kind)];
  }
};

/// Hands out one run of a device's memory piece by piece, and one of the host's to what lives there
/// in its place. A measuring arena has no memory: building a model
/// on it computes the `MemoryPlan` of that model without allocating, and the same code then takes
/// the real memory.
template <Device D>
class Arena {
 public:
  /// A measuring arena: `take` returns null and only counts.
  Arena() = default;
  /// An arena of `plan.peak` bytes, and `plan.host` of the host's, allocated at once.
  Arena(const MemoryPlan& plan, const Context<D>& context)
      : Arena(plan, Buffer<D>(plan.peak, context), context) {}
  /// One over memory of `plan.peak` bytes.
  Arena(const MemoryPlan& plan, Buffer<D> memory, const Context<D>& context)
      : buffer_(std::move(memory)), on_host_(plan.host) {
    if (on_host_ != 0) host_ = allocate_on_host(on_host_, context);
  }

  /// True if there is no memory behind this arena.
  [[nodiscard]] bool measuring() const { return buffer_.data() == nullptr; }

  /// The next `count` elements, aligned to 256 bytes and not initialised; null while measuring.
  /// @throws UsageError  if the arena is smaller than what is taken from it
  template <class T>
  T* take(MemoryKind kind, Index count) {
    const std::size_t bytes = aligned_bytes<T>(count);
    const std::size_t begin = used_;
    used_ += bytes;
    now_[static_cast<std::size_t>(kind)] += bytes;
    if (used_ > plan_.peak) plan_ = {used_, now_, plan_.host};
    if (measuring()) return nullptr;
    require<UsageError>(used_ <= buffer_.size(), "the arena holds ", buffer_.size(), " bytes but ",
                        used_,
                        " are needed; make it from the MemoryPlan of the same model and batch");
    return reinterpret_cast<T*>(buffer_.data() + begin);
  }

  /// As `take`, of the host's memory: what copies of the device reach while it does other work. It
  /// is of no kind, and not overlaid.
  template <class T>
  T* take_on_host(Index count) {
    const std::size_t begin = plan_.host;
    plan_.host += aligned_bytes<T>(count);
    if (measuring()) return nullptr;
    require<UsageError>(plan_.host <= on_host_, "the arena holds ", on_host_,
                        " bytes of the host's memory but ", plan_.host,
                        " are needed; make it from the MemoryPlan of the same model and options");
    return reinterpret_cast<T*>(host_.get() + begin);
  }

  /// Runs `alternatives` one after another over the same memory: only one of them is in use at any
  /// time, so they need as much as the largest.
  template <class... Alternatives>
  void overlay(const Alternatives&... alternatives) {
    const std::size_t begin = used_;
    const auto kinds = now_;
    std::size_t end = used_;
    auto kinds_at_end = now_;
    const auto run = [&](const auto& alternative) {
      used_ = begin;
      now_ = kinds;
      alternative();
      if (used_ > end) {
        end = used_;
        kinds_at_end = now_;
      }
    };
    (run(alternatives), ...);
    used_ = end;
    now_ = kinds_at_end;
  }

  /// What was taken so far, at its peak.
  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

  /// All of the memory, for what wants some before anything is written to it.
  [[nodiscard]] std::span<std::byte> memory() const { return {buffer_.data(), buffer_.size()}; }

  /// Bytes of the device that were really allocated.
  [[nodiscard]] std::size_t allocated() const { return buffer_.size(); }
  /// And of the host.
  [[nodiscard]] std::size_t allocated_on_host() const { return on_host_; }

 private:
  template <class T>
  static std::size_t aligned_bytes(Index count) {
    return static_cast<std::size_t>(
        round_up(count * static_cast<Index>(sizeof(T)), Index{allocation_alignment}));
  }

  OwnedBytes host_;
  Buffer<D> buffer_;  ///< freed first, which waits for copies between both
  std::size_t on_host_ = 0;
  std::size_t used_ = 0;
  std::array<std::size_t, memory_kinds> now_{};
  MemoryPlan plan_;
};

}  // namespace octavo
