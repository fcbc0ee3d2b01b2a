/// @file
/// Initial values of parameters and master weights.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/tensor/tensor.hpp>

#include <cmath>

namespace octavo OCTAVO_ABI {

/// The distribution of a parameter's initial values.
struct Initial {
  enum class Kind : std::uint8_t { zeros, ones, normal, uniform };
  Kind kind = Kind::zeros;
  float deviation = 0;  ///< standard deviation of a normal distribution; bound of a uniform one

  static constexpr Initial zeros() { return {}; }
  static constexpr Initial ones() { return {Kind::ones, 0}; }
  static constexpr Initial normal(float deviation) { return {Kind::normal, deviation}; }
  /// Uniform from -bound to below bound.
  static constexpr Initial uniform(float bound) { return {Kind::uniform, bound}; }
};

/// The initial values of a tensor.
struct InitialValues {
  Initial initial{};
  Index live = 0;            ///< elements from here on are padding and are 0
  RandomStream stream = {};  ///< of random numbers
  Index first = 0;           ///< position of the first element, if these are a part of a tensor
};

/// Returns the initial value of element `i`.
OCTAVO_HOST_DEVICE inline float initial_value(const InitialValues& values, Index i) {
  const Index position = values.first + i;
  if (position >= values.live || values.initial.kind == Initial::Kind::zeros) return 0.0f;
  if (values.initial.kind == Initial::Kind::ones) return 1.0f;
  const auto place = static_cast<std::uint64_t>(position);
  if (values.initial.kind == Initial::Kind::uniform) {
    return values.initial.deviation * (2.0f * uniform(random_word(values.stream, place)) - 1.0f);
  }
  return values.initial.deviation * normal(values.stream, place);
}

/// Sets a parameter to its initial values, which depend only on seed, stream and position. All
/// devices give the same bits in BF16. In FP32, the last bit of one value in many millions may
/// differ, because libraries round logarithm and cosine differently.
/// @param weight  [elements], written
/// @throws ConfigError  for a deviation or bound that is negative or not finite
/// @note enqueues; does not synchronise
template <class W, Device D>
void initialize_values(TensorView<W, 1, D> weight, const InitialValues& values,
                       const Context<D>& context) {
  require<ConfigError>(values.initial.deviation >= 0 && std::isfinite(values.initial.deviation),
                       "initialize_values: the deviation or bound must be finite and at least 0, "
                       "but is ",
                       values.initial.deviation, "; change the parameter's Initial");
  initialize_values_body(weight, values, context);
}

/// Copies weights to a wider format: the initial master weights of an optimizer.
/// @param weight  [elements]
/// @param master  [elements], written
/// @note enqueues; does not synchronise
template <class W, Device D>
void widen(TensorView<const W, 1, D> weight, TensorView<float, 1, D> master,
           const Context<D>& context) {
  require<ShapeError>(weight.extent(0) == master.extent(0), "widen: ", weight.extent(0),
                      " weights but ", master.extent(0), " masters; pass the same number of each");
  widen_body(weight, master, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/initialize.hpp>
