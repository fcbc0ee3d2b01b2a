#pragma once

#include <octavo/session/session.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "llama_weights.hpp"
#include "small_model.hpp"

/// Compares the gradient of every tensor of two models, which may be on different devices.
namespace support {

/// Sets weights for which every part of the model matters to the loss; a fresh model's queries and
/// keys have gradients that are lost in the rounding of others. Equal on every device.
template <class Model>
void set_nontrivial_weights(Model& model, unsigned seed,
                            const octavo::Context<typename Model::DeviceType>& context) {
  using T = typename Model::T;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  model.visit([&](auto& parameter) {
    const octavo::Index columns = parameter.weight.extent(1);
    const float deviation = 1.0f / std::sqrt(static_cast<float>(columns));
    std::vector<T> values(static_cast<std::size_t>(parameter.weight.size()), T(0.0f));
    for (const Slice& slice : slices(parameter.name, Model::config)) {
      const auto begin = values.begin() + slice.begin * columns;
      std::generate(begin, begin + slice.rows * columns, [&] {
        const float number = normal(random);
        return T(parameter.is_matrix() ? deviation * number : 1.0f + 0.3f * number);
      });
    }
    octavo::copy_to_device_sync(parameter.weight.data(), values.data(), parameter.weight.bytes(),
                                context);
  });
}

/// The gradients of the last step by Hugging Face name, without padding rows: queries, keys and
/// values apart, and gate and up.
template <class Model>
reference::Weights gradients_from_device(
    Model& model, const octavo::Context<typename Model::DeviceType>& context) {
  using G = typename Model::G;
  reference::Weights result;
  model.visit([&](auto& parameter) {
    const octavo::Index columns = parameter.gradient.extent(1);
    std::vector<G> values(static_cast<std::size_t>(parameter.gradient.size()));
    octavo::copy_to_host_sync(values.data(), parameter.gradient.data(), parameter.gradient.bytes(),
                              context);
    for (const Slice& slice : slices(parameter.name, Model::config)) {
      const auto begin = values.begin() + slice.begin * columns;
      std::transform(begin, begin + slice.rows * columns, std::back_inserter(result[slice.name]),
                     [](G value) { return static_cast<double>(static_cast<float>(value)); });
    }
  });
  return result;
}

/// How far a tensor is from what is expected of it.
struct Distance {
  std::string name;
  double error = 0;   ///< norm of the difference over the norm of what is expected
  double factor = 1;  ///< that brings what is expected closest to what was computed
};

/// The distance of every tensor. A constant factor on one shows in `factor`, however far rounding
/// takes single elements.
inline std::vector<Distance> distances(const reference::Weights& computed,
                                       const reference::Weights& expected) {
  std::vector<Distance> result;
  for (const auto& [name, values] : expected) {
    const std::vector<double>& own = computed.at(name);
    double difference = 0;
    double product = 0;
    double norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += (own.at(i) - values[i]) * (own[i] - values[i]);
      product += own[i] * values[i];
      norm += values[i] * values[i];
    }
    result.push_back({name, std::sqrt(difference / norm), product / norm});
  }
  return result;
}

/// Bounds of `Distance::error`, and of how far `Distance::factor` may be from 1.
struct GradientBounds {
  double error = 0;
  double factor = 0;
};

/// What rounding may do to the gradients of one step. Devices sum in different orders, and a sum
/// that is near the middle between two numbers of a format then goes either way: by 2^-8 in BF16,
/// by 2^-3 in FP8. Where scales are made from a tensor's largest value, its going the other way
/// moves the scale, and every value of the tensor is rounded anew: then the two gradients are as
/// far from each other as each is from an exact one. Those of scales that are powers of two stay.
/// The bounds are about three times what two builds of the `Cpu` device differ by that sum in
/// different orders, one with fused multiply-adds.
template <class Precision>
constexpr GradientBounds gradient_bounds() {
  using octavo::Fp8Recipe;
  if constexpr (std::is_same_v<Precision, octavo::Fp32>) {
    return {1e-4, 2e-5};
  } else if constexpr (std::is_same_v<Precision, octavo::Bf16>) {
    return {0.03, 0.01};
  } else if constexpr (std::is_same_v<Precision, Fp8Recipe<octavo::Blockwise>> ||
                       std::is_same_v<Precision, octavo::Mxfp8>) {
    return {0.06, 0.02};
  } else {
    return {0.4, 0.06};
  }
}

/// The same between the `Cpu` and the `Cuda` device, whose tensor cores keep about 14 bits of a sum
/// in FP8: enough values then go another way that the two gradients are as far from each other as
/// each is from an exact one, whatever the scales. So `error` says little in FP8; how far each
/// device is from the exact gradient says more.
template <class Precision>
constexpr GradientBounds device_gradient_bounds() {
  constexpr GradientBounds bounds = gradient_bounds<Precision>();
  if constexpr (std::is_same_v<Precision, octavo::Fp32> ||
                std::is_same_v<Precision, octavo::Bf16>) {
    return bounds;
  }
  return {0.4, 0.06};
}

/// The tensors whose distance is beyond the bounds; a gradient that is zero, or not finite, is.
inline std::vector<Distance> beyond(const std::vector<Distance>& all,
                                    const GradientBounds& bounds) {
  std::vector<Distance> result;
  std::copy_if(all.begin(), all.end(), std::back_inserter(result), [&](const Distance& one) {
    return !(one.error <= bounds.error && std::abs(one.factor - 1.0) <= bounds.factor);
  });
  return result;
}

/// How large gradients are along exact ones: the mean of `Distance::factor` over several gradients
/// and, as a fault is in the tensors of all blocks, over these. Rounding, which goes either way,
/// averages out of it, and what is left is a constant factor.
class MeanFactors {
 public:
  void add(const reference::Weights& computed, const reference::Weights& exact) {
    for (const Distance& one : distances(computed, exact)) {
      auto& [sum, count] = sums_[kind_of(one.name)];
      sum += one.factor;
      ++count;
    }
  }

  /// By the tensor's name without its block.
  [[nodiscard]] std::map<std::string, double> means() const {
    std::map<std::string, double> result;
    for (const auto& [kind, sum] : sums_) result[kind] = sum.first / sum.second;
    return result;
  }

 private:
  static std::string kind_of(const std::string& name) {
    const std::string blocks = "model.layers.";
    return name.starts_with(blocks) ? name.substr(name.find('.', blocks.size()) + 1) : name;
  }

  std::map<std::string, std::pair<double, int>> sums_;
};

/// How many gradients, of other weights each, `mean_factor_bound` is made for.
inline constexpr unsigned mean_factor_gradients = 8;

/// How far the mean factors of two devices may be apart, as a share. In FP8 they were apart by 1.4
/// % at most and 0.45 % in the root mean square, on four gradients of the `Cpu` device whose
/// weights differed by 0.1 %, so that every cast was free to go either way.
template <class Precision>
constexpr double mean_factor_bound() {
  if constexpr (std::is_same_v<Precision, octavo::Fp32>) return 2e-5;
  return std::is_same_v<Precision, octavo::Bf16> ? 0.005 : 0.02;
}

/// The gradients of one step with telling weights.
/// @param seed  of the weights
template <class Session, octavo::Device D>
reference::Weights nontrivial_gradients(const octavo::SessionOptions& options,
                                        const TokenBatch& batch, octavo::Context<D>& context,
                                        unsigned seed = 3) {
  Session session(options, context);
  set_nontrivial_weights(session.model(), seed, context);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
  return gradients_from_device(session.model(), context);
}

}  // namespace support
