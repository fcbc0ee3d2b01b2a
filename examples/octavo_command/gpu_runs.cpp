// Prints why GPUs of a compute capability do not support a precision, or nothing if they do.
// `octavo` compiles it with -DPRECISION=Mxfp8 -DCAPABILITY=90 before it builds a program for a GPU.
#include <octavo/precision/gpu_precisions.hpp>
#include <octavo/precision/precision.hpp>

#include <cstdio>

namespace {

using namespace octavo;

/// Throws ConfigError unless the GPU supports the GEMMs of a precision, or of each part of
/// `Layerwise`. Layers in `AllowFallback` may run in BF16.
template <class P>
struct OnGpu {
  static void require(const DeviceLimits<Cuda>& limits) {
    if constexpr (detail::is_for_attention<P>) {
      require_eight_bit_attention(limits);
    } else if constexpr (!detail::is_option<P>) {
      using Part = typename detail::PartTraits<P>::Precision;
      if constexpr (!detail::is_allow_fallback<Part>) require_gemms<Part>(limits);
    }
  }
};
template <class... Parts>
struct OnGpu<Layerwise<Parts...>> {
  static void require(const DeviceLimits<Cuda>& limits) { (OnGpu<Parts>::require(limits), ...); }
};

}  // namespace

int main() {
  DeviceLimits<Cuda> limits;
  limits.gpu = features_of(CAPABILITY);
  limits.card = message("a GPU of compute capability ", CAPABILITY / 10, '.', CAPABILITY % 10);
  try {
    OnGpu<PRECISION>::require(limits);
  } catch (const ConfigError& error) {
    std::puts(error.what());
  }
}
