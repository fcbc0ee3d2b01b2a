/// @file
/// An inference without its model's type.
#pragma once

#include <octavo/core/replay.hpp>
#include <octavo/inference/inference_shape.hpp>
#include <octavo/inference/text_model.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/train/weights.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Gives elements of a model's parameters: `values` are those of `weight` from `begin` on. Several
/// threads call it at a time.
using ModelWeights =
    std::function<void(const WeightInfo& weight, Index begin, std::span<float> values)>;

/// An inference of some model: what programs that choose model and precision at run time hold.
class Inferring : public TextModel {
 public:
  /// Every parameter, in the order in which `load_sync` asks for them.
  [[nodiscard]] virtual std::vector<WeightInfo> weights() const = 0;
  /// Sets all weights; the text is forgotten. Before, `append` throws UsageError.
  /// @param source  asked for a piece of a weight at a time by each of several threads
  /// @throws ConfigError  naming a weight that is not finite once it is rounded to its format;
  ///                      those before it are set
  virtual void load_sync(const ModelWeights& source) = 0;
  /// Sets all weights to what a training session of the model begins with, likewise.
  virtual void initialize_sync(std::uint64_t seed) = 0;

  [[nodiscard]] virtual std::string precision() const = 0;
  [[nodiscard]] virtual const MemoryPlan& memory() const = 0;
  /// Bytes that the step by one token reads: weights that multiply, and the cache of a text of
  /// `length` tokens.
  [[nodiscard]] virtual std::size_t bytes_of_step(Index length) const = 0;
  /// How often the step by one token was enqueued, recorded, and launched from its record.
  [[nodiscard]] virtual const ReplayCounts& replays() const = 0;
};

}  // namespace octavo
