/// @file
/// The exchange between ranks that an optimizer may use.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>

namespace octavo OCTAVO_ABI {

/// Exchanges values between the ranks that have shards of flat parameters. A single rank has all of
/// them.
template <Device D>
class ShardExchange {
 public:
  ShardExchange() = default;
  ShardExchange(const ShardExchange&) = delete;
  ShardExchange& operator=(const ShardExchange&) = delete;
  virtual ~ShardExchange() = default;

  /// Sends row r to rank r, and receives one row from it; this rank's own row is copied. All of
  /// these ranks call it with the same shapes, and with `received` at the same offset in the memory
  /// of their sessions. Called in an optimizer's step.
  /// @param rows      [ranks, bytes]
  /// @param received  [ranks, bytes], in rank order; must not overlap `rows`
  /// @note enqueues; does not synchronise
  virtual void exchange_shards(TensorView<const std::byte, 2, D> rows,
                               TensorView<std::byte, 2, D> received, const Context<D>& context) {
    require<UsageError>(rows.extent(0) == 1, "exchange_shards: ", rows.extent(0),
                        " ranks have shards, but the type of the session's ranks does not "
                        "exchange them; override exchange_shards in it");
    copy_on_device(received.data(), rows.data(), rows.bytes(), context);
  }
};

}  // namespace octavo
