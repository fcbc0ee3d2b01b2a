/// @file
/// Work that overlaps with the work of a context.
#pragma once

#include <octavo/core/context.hpp>

namespace octavo OCTAVO_ABI {

/// A second queue of work on a context's device, with a separate context. Work that is enqueued on
/// it may overlap with the main context's work. Between `fork` and `join`, the two queues are not
/// ordered with each other. Specialised for each device.
template <Device D>
class Lane;

/// The `Cpu` device runs all work immediately, so work does not overlap.
template <>
class Lane<Cpu> {
 public:
  explicit Lane(const Context<Cpu>& main) : context_(main.threads()) {}

  [[nodiscard]] const Context<Cpu>& context() const { return context_; }
  /// Binds memory for the lane's operations; the main context's workspace may be in use at the same
  /// time.
  void bind_workspace(std::span<std::byte> workspace) { context_.bind_workspace(workspace); }

  /// Orders all later work of the lane after all work enqueued on the main context so far.
  void fork() const {}
  /// Orders all later work of the main context after all work enqueued on the lane so far.
  void join() const {}

  /// A place in the lane's work. Movable.
  class Mark {};
  /// Sets the mark after all work that has been enqueued on the lane so far.
  void mark(Mark&) const {}
  /// Sets the mark after all work enqueued on the main context so far. Must not be called
  /// during a recording.
  void mark_main(Mark&) const {}
  /// Returns whether the device has reached the mark, which was set outside a recording.
  [[nodiscard]] bool is_reached(const Mark&) const { return true; }
  /// Orders all later work of the main context after the work that precedes the mark. The mark must
  /// have been set, and in the same recording if there is one.
  void wait(const Mark&) const {}

 private:
  Context<Cpu> context_;
};

}  // namespace octavo
