/// @file
/// The interface of inference sessions, without the model's type.
#pragma once

#include <octavo/core/replay.hpp>
#include <octavo/inference/inference_shape.hpp>
#include <octavo/inference/text_model.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/session/weights.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Provides elements of a model's parameters: fills `values` with those of `weight` from `begin`
/// on. Several threads call it concurrently.
using ModelWeights =
    std::function<void(const WeightInfo& weight, Index begin, std::span<float> values)>;

/// An inference session of any model, for programs that choose model and precision at run time.
class Inferring : public TextModel {
 public:
  /// Returns all parameters, in the order in which `load_sync` requests them.
  [[nodiscard]] virtual std::vector<WeightInfo> weights() const = 0;
  /// Sets all weights and clears the text. Until then, `append` throws UsageError.
  /// @param source  called by several threads, each for a piece of a weight at a time
  /// @throws ConfigError  naming a weight that is not finite after rounding to its format; the
  /// weights before it are then already set
  virtual void load_sync(const ModelWeights& source) = 0;
  /// Sets all weights to the initial weights of a training session, and clears the text.
  virtual void initialize_sync(std::uint64_t seed) = 0;

  [[nodiscard]] virtual std::string precision() const = 0;
  [[nodiscard]] virtual const MemoryPlan& memory() const = 0;
  /// Returns the number of bytes that the step by one token reads: weights that are multiplied, and
  /// the cache of a text of `length` tokens.
  [[nodiscard]] virtual std::size_t bytes_of_step(Index length) const = 0;
  /// Returns how often the step by one token was enqueued, recorded, and launched as a graph.
  [[nodiscard]] virtual const ReplayCounts& replays() const = 0;
};

}  // namespace octavo
