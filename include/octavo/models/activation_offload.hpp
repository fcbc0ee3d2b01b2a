/// @file
/// Activations that are kept in host memory between the forward and the backward.
#pragma once

#include <octavo/core/lane.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/memory/offload_lanes.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Copies the offloaded activations of blocks to host memory after their forward, and back before
/// their backward. Block i computes in device buffer i mod 2. Its store runs during the forward of
/// block i + 1, and its fetch during the backward of block i + 1. The activations of the last two
/// blocks remain in their buffers, because their backward comes first.
///
/// All copies of a micro-batch end before its backward does, so a recording of it is complete.
template <Device D>
class ActivationOffload {
 public:
  /// Adds the next block of a model.
  /// @param buffer  the memory of its activations, in the buffer of its number
  void add(const ArenaRange& buffer) { blocks_.push_back({buffer}); }
  /// Allocates the host memory of all blocks that do not remain in a buffer.
  void allocate(Arena<D>& arena) {
    const std::size_t stored = blocks_.size() - std::min(blocks_.size(), activation_buffers);
    for (Block& block : std::span(blocks_).first(stored)) {
      block.host = arena.template allocate_host<std::byte>(static_cast<Index>(block.device.bytes));
      block.is_stored = true;
    }
  }

  /// Creates the lanes of the copies, at the first call.
  /// @param context  of all later calls; must outlive this object
  void start(const Context<D>& context) {
    if (!blocks_.empty() && lanes_ == nullptr) lanes_ = std::make_shared<Lanes>(context);
  }
  /// Reports copies to a timeline, which must outlive this object.
  void report_to(Timeline<D>& timeline) { timeline_ = &timeline; }

  /// Must be called before a block's forward in training, which overwrites its buffer.
  void before_forward(std::size_t block) {
    if (blocks_.empty()) return;
    if (block == 0) is_storing_ = is_fetching_ = {};  // an earlier micro-batch may have thrown
    const std::size_t buffer = block % activation_buffers;
    if (std::exchange(is_storing_[buffer], false)) lanes_->to_host.wait(lanes_->stored[buffer]);
  }
  /// Must be called after a block's forward in training.
  void after_forward(std::size_t block) {
    if (blocks_.empty() || !blocks_[block].is_stored) return;
    const std::size_t buffer = block % activation_buffers;
    const auto& [device, host, is_stored] = blocks_[block];
    const Context<D>& lane = lanes_->to_host.context();
    lanes_->to_host.fork();
    {
      const auto span = copy("to host", "store activations", lane);
      copy_to_host(host, device.data, device.bytes, lane);
    }
    lanes_->to_host.mark(lanes_->stored[buffer]);
    is_storing_[buffer] = true;
  }
  /// Must be called before a block's backward, which reads its buffer.
  void before_backward(std::size_t block) {
    if (blocks_.empty()) return;
    const std::size_t buffer = block % activation_buffers;
    if (std::exchange(is_fetching_[buffer], false)) {
      lanes_->to_device.wait(lanes_->fetched[buffer]);
    }
  }
  /// Must be called after a block's backward, which has used its buffer.
  void after_backward(std::size_t block) {
    if (blocks_.empty() || block < activation_buffers) return;
    const std::size_t buffer = block % activation_buffers;
    const auto& [device, host, is_stored] = blocks_[block - activation_buffers];
    const Context<D>& lane = lanes_->to_device.context();
    lanes_->to_device.fork();
    {
      const auto span = copy("to device", "fetch activations", lane);
      copy_to_device(device.data, host, device.bytes, lane);
    }
    lanes_->to_device.mark(lanes_->fetched[buffer]);
    is_fetching_[buffer] = true;
  }

 private:
  using Lanes = detail::OffloadLanes<Lane<D>>;
  static_assert(activation_buffers <= detail::offload_buffers);

  struct Block {
    ArenaRange device;
    std::byte* host = nullptr;  ///< null while measuring
    bool is_stored = false;
  };

  [[nodiscard]] auto copy(const char* track, const char* name, const Context<D>& lane) const {
    using Scope = typename Timeline<D>::Scope;
    return timeline_ == nullptr ? Scope(nullptr, 0, nullptr) : timeline_->copy(track, name, lane);
  }

  std::vector<Block> blocks_;     ///< empty if activations are not offloaded
  std::shared_ptr<Lanes> lanes_;  // a plan has no complete `Lane`
  Timeline<D>* timeline_ = nullptr;
  std::array<bool, activation_buffers> is_storing_{};   ///< a store may be running
  std::array<bool, activation_buffers> is_fetching_{};  ///< a fetch may be running
};

}  // namespace octavo
