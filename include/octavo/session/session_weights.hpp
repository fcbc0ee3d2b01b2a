/// @file
/// Access to the weights of a session.
#pragma once

#include <octavo/session/weights.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The weights of a session.
class SessionWeights {
 public:
  SessionWeights() = default;
  SessionWeights(const SessionWeights&) = delete;
  SessionWeights& operator=(const SessionWeights&) = delete;
  virtual ~SessionWeights() = default;

  /// Returns every parameter, in the order of `read_sync`: those of adapters come first.
  [[nodiscard]] virtual std::vector<WeightInfo> list() const = 0;

  /// Sets a parameter, and its FP32 master if there is one. Delayed scales lose their histories:
  /// they are 1 until the next step calibrates them, including in evaluations before that step.
  /// @param name    such as "blocks.0.qkv.weight"
  /// @param values  [rows, columns] of the parameter, without padding rows, which become 0; must be
  ///                finite when rounded to the weight's format
  /// @throws ConfigError  for an unknown name, a wrong number of values, or a value that is not
  ///                      finite
  virtual void set(const std::string& name, std::span<const float> values) = 0;

  /// Does the same for a parameter that need not be in memory as a whole.
  /// @param source  called for the elements that this rank has, a piece at a time
  /// @throws ConfigError  for an unknown name, or a value that is not finite; the pieces before it
  ///                      are then already set
  virtual void set(const std::string& name, const WeightSource& source) = 0;

  /// Passes all weights to `sink` as they are stored, one piece at a time. All ranks call it; each
  /// piece is assembled from their shards, and all wait for it.
  /// @param sink  empty: this rank only takes part in the exchanges
  virtual void read_sync(const WeightSink& sink) = 0;

  /// Returns a hash of all current weights, computed from those that each rank updates. It is the
  /// same on all ranks and in all ZeRO stages. It depends on the number of ranks, which determines
  /// where the weights are cut. All ranks call it.
  [[nodiscard]] virtual std::uint64_t hash_sync() = 0;
};

}  // namespace octavo
