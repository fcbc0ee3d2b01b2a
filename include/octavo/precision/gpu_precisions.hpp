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

namespace detail {

/// Returns that a device lacks something, and the first part of what to do. A GPU may have it, but
/// not the kernels that the program is compiled to.
/// @param gpu_has  whether the GPU itself has it
template <class Limits>
std::string lack_text(const Limits& limits, const std::string& what, bool gpu_has) {
  if (!gpu_has) return message(limits.card, " does not support ", what, "; ");
  return message(limits.card, " supports ", what,
                 ", but the program is compiled for other GPUs; build it with "
                 "CMAKE_CUDA_ARCHITECTURES=",
                 architecture_for(limits.gpu.capability), ", or ");
}

}  // namespace detail

/// Throws ConfigError unless the device runs the GEMMs of a linear layer in precision `P`. Layers
/// call it when a model is laid out, so sessions and memory plans fail before they allocate memory.
template <LinearPrecision P, Device D>
void require_gemms(const DeviceLimits<D>& limits) {
  if constexpr (std::is_same_v<D, Cuda>) {
    if (gpu_runs<P>(limits.gpu)) return;
    const GpuFeatures own = features_of(limits.gpu.capability);
    const std::string what = own.fp8_gemms ? PrecisionTraits<P>::name() : "FP8";
    throw ConfigError(message(detail::lack_text(limits, what + " GEMMs", gpu_runs<P>(own)), "use ",
                              precisions_of(limits.gpu)));
  }
}

/// Throws ConfigError unless the device multiplies FP8 operands. Kernels that contain FP8 MMAs
/// call it before they are launched.
template <Device D>
void require_fp8_gemms(const DeviceLimits<D>& limits) {
  if constexpr (std::is_same_v<D, Cuda>) {
    if (limits.gpu.fp8_gemms) return;
    const bool gpu_has = features_of(limits.gpu.capability).fp8_gemms;
    throw ConfigError(message(detail::lack_text(limits, "FP8 GEMMs", gpu_has), "use ",
                              precisions_of(limits.gpu)));
  }
}

/// Throws ConfigError unless the device runs `EightBitForward`.
template <Device D>
void require_eight_bit_attention(const DeviceLimits<D>& limits) {
  if constexpr (std::is_same_v<D, Cuda>) {
    if (limits.gpu.warpgroup_mma) return;
    const bool gpu_has = features_of(limits.gpu.capability).warpgroup_mma;
    const std::string what =
        gpu_has ? "8-bit attention" : "8-bit attention, which needs compute capability 9.0";
    throw ConfigError(message(detail::lack_text(limits, what, gpu_has),
                              "use a precision without ForAttention<EightBitForward>, such as ",
                              precisions_of(limits.gpu)));
  }
}

}  // namespace octavo
