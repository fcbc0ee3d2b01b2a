/// @file
/// Kernel launches on the `Cuda` device, for every room that has kernels.
#pragma once

#include <octavo/core/cuda/architecture.cuh>
#include <octavo/core/cuda/context.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <limits>
#include <span>

namespace octavo OCTAVO_ABI::kernels {

/// Threads per block in elementwise kernels.
inline constexpr int elementwise_threads = 256;
/// Bytes of the context's workspace that suffice for every kernel except `embedding_backward`.
/// GEMMs need more, so a model's workspace always suffices.
inline constexpr std::size_t kernel_workspace_bytes = std::size_t{16} << 20;

/// Returns the index of the calling thread among all threads of the launch.
__device__ inline Index global_thread() { return Index{blockIdx.x} * blockDim.x + threadIdx.x; }

/// Allows the kernel that `launch_dependent` enqueues next to begin once all blocks of this one
/// have called this function or ended. On a GPU without programmatic dependent launch, it does
/// nothing.
__device__ inline void launch_dependent_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Waits for all work enqueued before this kernel, whose writes are then visible. Returns
/// immediately unless `launch_dependent` enqueued the kernel.
__device__ inline void wait_on_dependent_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Allows blocks of a kernel to have this much dynamic shared memory on the current GPU.
template <class Kernel>
void allow_shared_bytes(const char* name, Kernel* kernel, std::size_t shared_bytes) {
  // By default, a block has 48 KiB, of which static shared memory takes at most 8.
  constexpr std::size_t default_dynamic_bytes = std::size_t{40} << 10;
  if (shared_bytes <= default_dynamic_bytes) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        "cudaFuncSetAttribute", " for ", shared_bytes, " bytes of shared memory in ", name);
}

/// Enqueues a kernel with launch attributes. Reports only the error of this launch, not an earlier
/// one of another library or the caller.
template <class... Parameters, class... Arguments>
void launch_with(std::span<cudaLaunchAttribute> attributes, const char* name,
                 void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared_bytes,
                 const Context<Cuda>& context, const Arguments&... arguments) {
  const auto max_bytes = static_cast<std::size_t>(context.limits().gpu.shared_bytes);
  require<ShapeError>(shared_bytes <= max_bytes, name, ": ", shared_bytes,
                      " bytes of shared memory are needed, but a thread block of ",
                      context.limits().card, " has at most ", max_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream();  // makes its GPU current, before the kernel's limit is set
  allow_shared_bytes(name, kernel, shared_bytes);
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "cudaLaunchKernelEx", " in ",
        name);
}

/// Enqueues a kernel on the context's stream.
/// @param name          the operation, for error messages
/// @param shared_bytes  dynamic shared memory per block
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, int threads,
            std::size_t shared_bytes, const Context<Cuda>& context, const Arguments&... arguments) {
  launch_with({}, name, kernel, blocks, threads, shared_bytes, context, arguments...);
}
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Index blocks, int threads,
            std::size_t shared_bytes, const Context<Cuda>& context, const Arguments&... arguments) {
  if (blocks == 0) return;
  constexpr Index most = std::numeric_limits<int>::max();
  require<ShapeError>(blocks <= most, name, ": ", blocks, " thread blocks are needed, but at most ",
                      most, " can be launched at once; split the tensor");
  launch(name, kernel, dim3(static_cast<unsigned>(blocks)), threads, shared_bytes, context,
         arguments...);
}

/// Enqueues a kernel that may begin before preceding work ends, so that its launch and its first
/// reads overlap. It must call `wait_on_dependent_grids` before it accesses data that others write,
/// or writes data that others read. See programmatic dependent launch in CUDA's programming guide.
/// On a GPU without it, the kernel begins when preceding work has ended.
/// @param shared_bytes  dynamic shared memory per block
template <class... Parameters, class... Arguments>
void launch_dependent(const char* name, void (*kernel)(Parameters...), dim3 blocks, int threads,
                      std::size_t shared_bytes, const Context<Cuda>& context,
                      const Arguments&... arguments) {
  if (!context.limits().gpu.programmatic_launch) {
    launch(name, kernel, blocks, threads, shared_bytes, context, arguments...);
    return;
  }
  cudaLaunchAttribute ahead{};
  ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  ahead.val.programmaticStreamSerializationAllowed = 1;
  launch_with({&ahead, 1}, name, kernel, blocks, threads, shared_bytes, context, arguments...);
}

}  // namespace octavo::kernels

namespace octavo OCTAVO_ABI::detail {
using namespace kernels;
}  // namespace octavo::detail
