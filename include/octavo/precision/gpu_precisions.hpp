/// @file
/// The precisions that a GPU runs.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/error.hpp>
#include <octavo/precision/named_precisions.hpp>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Returns the names of the precisions that a GPU runs in every layer, such as "fp32, bf16,
/// fp8-delayed or fp8-tensorwise".
/// @tparam Features  `GpuFeatures`; a template, so that only programs for GPUs compile it
template <class Features>
std::string precisions_of(const Features& gpu) {
  std::vector<std::string> names;
  named_precisions.for_each([&]<class P>(NamedPrecision<P> named) {
    if constexpr (LinearPrecision<P>) {
      if (gpu_runs<P>(gpu)) names.emplace_back(named.name);
    }
  });
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) {
    text += (i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

/// Throws ConfigError unless the device runs the GEMMs of a linear layer in precision `P`. Layers
/// call it when a model is laid out, so sessions and memory plans fail before they allocate memory.
template <LinearPrecision P, Device D>
void require_products(const DeviceLimits<D>& limits) {
  if constexpr (std::is_same_v<D, Cuda>) {
    require<ConfigError>(gpu_runs<P>(limits.gpu), limits.card, " does not support ",
                         limits.gpu.fp8_products ? PrecisionTraits<P>::name() : "FP8",
                         " GEMMs; use ", precisions_of(limits.gpu));
  }
}

/// Throws ConfigError unless the device multiplies FP8 operands. Kernels that contain FP8 products
/// call it before they are launched.
template <Device D>
void require_fp8_products(const DeviceLimits<D>& limits) {
  if constexpr (std::is_same_v<D, Cuda>) {
    require<ConfigError>(limits.gpu.fp8_products, limits.card, " does not support FP8 GEMMs; use ",
                         precisions_of(limits.gpu));
  }
}

/// Throws ConfigError unless the device runs `Fp8Forward`.
template <Device D>
void require_fp8_attention(const DeviceLimits<D>& limits) {
  if constexpr (std::is_same_v<D, Cuda>) {
    require<ConfigError>(
        limits.gpu.warpgroup_products, limits.card,
        " does not support FP8 attention, which needs compute capability 9.0; use a "
        "precision without ForAttention<Fp8Forward>, such as ",
        precisions_of(limits.gpu));
  }
}

}  // namespace octavo
