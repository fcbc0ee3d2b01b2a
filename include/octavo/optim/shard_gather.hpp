/// @file
/// The exchange between ranks that an optimizer may use.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>

namespace octavo OCTAVO_ABI {

/// Gathers values that ranks compute for their shards. A single rank has all of them.
template <Device D>
class ShardGather {
 public:
  ShardGather() = default;
  ShardGather(const ShardGather&) = delete;
  ShardGather& operator=(const ShardGather&) = delete;
  virtual ~ShardGather() = default;

  /// Gathers bytes from the ranks that share the optimizer's work and have shards of a flat buffer.
  /// All of these ranks call it with the same number of bytes. It enqueues; work on the ranks' lane
  /// must have been ordered before it, as it is in an optimizer's step.
  /// @param own  this rank's bytes
  /// @return     those of all ranks, in the order of shards, as many of the first bytes as the
  ///             memory has room for; valid until the next call
  [[nodiscard]] virtual TensorView<const std::byte, 1, D> gather_shards(
      TensorView<const std::byte, 1, D> own, const Context<D>&) {
    return own;
  }
};

}  // namespace octavo
