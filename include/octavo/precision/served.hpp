/// @file
/// Which GPUs serve a precision. Needs no CUDA.
#pragma once

#include <octavo/precision/layerwise.hpp>

#include <string>

namespace octavo {

namespace detail {

inline std::string capability_text(int capability) {
  return message(capability / 10, ".", capability % 10);
}

/// Throws ConfigError unless GPUs of this compute capability serve precision `P`.
template <class P>
void require_part_served(int gpu, const std::string& name, int capability) {
  constexpr Capabilities served = capabilities_of<P>();
  if (served.hold(capability)) return;
  throw ConfigError(
      message("GPU ", gpu, " (", name, ") has compute capability ", capability_text(capability),
              ", but cuBLASLt multiplies ", PrecisionTraits<P>::name(), " on ",
              capability_text(served.least), served.least == served.most ? " alone" : " or later",
              "; choose ", PerTensor::served_by.hold(capability) ? "Fp8Recipe<Tensorwise>" : "Bf16",
              ", another GPU, or the Cpu device"));
}

/// Layers that fall back do so by shape and device, not by the GPU, which types do not know.
template <class P>
struct Served {
  static void require(int gpu, const std::string& name, int capability) {
    require_part_served<P>(gpu, name, capability);
  }
};
template <class P>
struct Served<AllowFallback<P>> {
  static void require(int gpu, const std::string& name, int capability) {
    if constexpr (runs_on<P, Cuda>) require_part_served<P>(gpu, name, capability);
  }
};
template <class... Parts>
struct Served<Layerwise<Parts...>> {
  static void require(int gpu, const std::string& name, int capability) {
    (Served<typename PartTraits<Parts>::Precision>::require(gpu, name, capability), ...);
  }
};

}  // namespace detail

/// Throws ConfigError, in one line, unless the GPU serves all parts of a model's precision.
/// @tparam Precision  such as `Bf16`, `Fp8Recipe<Blockwise>` or `Layerwise<…>`
/// @param gpu         its index, as CUDA counts
/// @param name        such as "NVIDIA H100 80GB HBM3"
/// @param capability  its compute capability, times ten
/// Source: cuBLASLt's table of scaling modes and the GPUs that they are for.
template <class Precision>
void require_precision_served(int gpu, const std::string& name, int capability) {
  detail::Served<Precision>::require(gpu, name, capability);
}

}  // namespace octavo
