/// @file
/// Which GPUs the `Cuda` device supports. Needs no CUDA.
#pragma once

#include <octavo/core/error.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// Compute capability, times ten, of the GPUs that the kernels are written for (Hopper). No older
/// or newer GPU has Hopper's tensor-core instructions and FP8 block scales.
inline constexpr int served_cuda_capability = 90;

/// Whether the kernels run on GPUs of this compute capability.
/// @param capability  ten times the major number, plus the minor one
constexpr bool capability_served(int capability) { return capability == served_cuda_capability; }

/// Returns why the kernels do not run on GPUs of this compute capability, such as "Octavo's kernels
/// support only 9.0 (H100, H200): this GPU is too old"; empty if they do.
inline std::string why_not_served(int capability) {
  if (capability_served(capability)) return {};
  return message("Octavo's kernels support only ", served_cuda_capability / 10, ".",
                 served_cuda_capability % 10, " (H100, H200): this GPU is too ",
                 capability < served_cuda_capability ? "old" : "new");
}

/// Throws a ConfigError with a message of one line unless the kernels run on the GPU.
/// @param gpu         its index, as CUDA counts
/// @param name        such as "NVIDIA H100 80GB HBM3"
/// @param capability  see capability_served
inline void require_served(int gpu, const char* name, int capability) {
  require<ConfigError>(capability_served(capability), "GPU ", gpu, " (", name,
                       ") has compute capability ", capability / 10, ".", capability % 10, ", but ",
                       why_not_served(capability), "; choose another GPU, or the Cpu device");
}

}  // namespace octavo
