/// @file
/// The initial values of parameters and of their masters.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// What a parameter starts from.
struct Initial {
  enum class Kind : std::uint8_t { zeros, ones, normal, uniform };
  Kind kind = Kind::zeros;
  float deviation = 0;  ///< standard deviation of normal numbers; bound of uniform ones

  static constexpr Initial zeros() { return {}; }
  static constexpr Initial ones() { return {Kind::ones, 0}; }
  static constexpr Initial normal(float deviation) { return {Kind::normal, deviation}; }
  /// From -bound to below bound.
  static constexpr Initial uniform(float bound) { return {Kind::uniform, bound}; }
};

/// The initial values of a tensor.
struct InitialValues {
  Initial initial{};
  Index live = 0;            ///< elements from here on pad the tensor and are 0
  RandomStream stream = {};  ///< of random numbers
  Index first = 0;           ///< the first element's position, where these are a part of a tensor
};

/// The initial value of element `i`.
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

/// Sets a parameter to its initial values. They depend on seed, stream and position alone: devices
/// agree to the bit in BF16, and in FP32 but for the last bit of a value in many millions, because
/// libraries round logarithm and cosine differently.
/// @param weight  [elements], written
/// @note enqueues; does not synchronise
template <class W, Device D>
void initialize_values(TensorView<W, 1, D> weight, const InitialValues& values,
                       const Context<D>& context) {
  initialize_values_body(weight, values, context);
}

/// Copies weights to wider ones: the masters that an optimizer starts from.
/// @param weight  [elements]
/// @param master  [elements], written
/// @note enqueues; does not synchronise
template <class W, Device D>
void widen(TensorView<const W, 1, D> weight, TensorView<float, 1, D> master,
           const Context<D>& context) {
  require<ShapeError>(weight.extent(0) == master.extent(0), "widen: ", weight.extent(0),
                      " weights but ", master.extent(0), " masters; give as many of each");
  widen_body(weight, master, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/initialize.hpp>
