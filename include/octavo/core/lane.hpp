/// @file
/// Work beside a context's own.
#pragma once

#include <octavo/core/context.hpp>

namespace octavo OCTAVO_ABI {

/// A second line of work on a context's device, with a context of its own: what is enqueued with
/// that one may run while the main one's work does. Between `fork` and `join` nothing orders the
/// two. Specialised for each device.
template <Device D>
class Lane;

/// The `Cpu` device runs at once what it is given, so nothing is beside anything.
template <>
class Lane<Cpu> {
 public:
  explicit Lane(const Context<Cpu>& main) : context_(main.threads()) {}

  [[nodiscard]] const Context<Cpu>& context() const { return context_; }
  /// Memory for the lane's operations; the main context's serves the main one's at the same time.
  void bind_workspace(std::span<std::byte> workspace) { context_.bind_workspace(workspace); }

  /// What is enqueued on the lane from now on begins after all that the main context was given.
  void fork() const {}
  /// What the main context is given from now on begins after all that was enqueued on the lane.
  void join() const {}

  /// A place in the lane's work. Movable.
  class Mark {};
  /// Puts the mark behind all that was enqueued on the lane so far.
  void mark(Mark&) const {}
  /// Puts it behind all that the main context was given so far; to be used in no recording.
  void mark_main(Mark&) const {}
  /// Whether the device has come to the mark, which was put in no recording.
  [[nodiscard]] bool is_reached(const Mark&) const { return true; }
  /// What the main context is given from now on begins after what stood before the mark. The mark
  /// has been put, in the same recording if there is one.
  void wait(const Mark&) const {}

 private:
  Context<Cpu> context_;
};

}  // namespace octavo
