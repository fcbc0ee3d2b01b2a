/// @file
/// The largest magnitude of BF16 values.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Threads per block of the kernels that cast or compute an amax.
inline constexpr int quantize_threads = 256;

/// 16-byte loads that one thread has in flight while it computes the amax.
inline constexpr int amax_loads = 4;

/// Returns the larger of each pair of BF16 magnitudes.
__device__ inline std::uint32_t larger_magnitudes(std::uint32_t largest, std::uint32_t pair) {
  return __vmaxu2(largest, pair & 0x7fff7fffu);
}

__device__ inline std::uint32_t larger_magnitudes(std::uint32_t largest, const Run<Bf16>& run) {
#pragma unroll
  for (const std::uint32_t word : run.words) largest = larger_magnitudes(largest, word);
  return largest;
}

/// Returns the FP32 bits of the larger of two BF16 magnitudes.
__device__ inline std::uint32_t magnitude_bits(std::uint32_t pair) {
  return max(pair << 16, pair & 0xffff0000u);
}

/// Returns the FP32 bits of the block's largest magnitude to all threads, all of which must call
/// it. Call it once in a kernel, or after another barrier.
__device__ inline std::uint32_t block_amax(std::uint32_t magnitudes) {
  __shared__ std::uint32_t block;
  if (threadIdx.x == 0) block = 0;
  __syncthreads();
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, magnitude_bits(magnitudes));
  if (threadIdx.x % 32 == 0) atomicMax(&block, warp);
  __syncthreads();
  return block;
}

/// Raises `target` to the bits of the block's largest magnitude. See block_amax.
__device__ inline void raise_to_block_amax(std::uint32_t magnitudes, std::uint32_t* target) {
  const std::uint32_t largest = block_amax(magnitudes);
  if (threadIdx.x == 0) atomicMax(target, largest);
}

/// Raises `amax_bits` to the bits of max |values|.
/// @param vectors  number of runs to read as vectors; the rest is read element by element
template <class Storage>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    amax_kernel(const Storage* values, Index count, Index vectors, std::uint32_t* amax_bits) {
  const Index thread = global_thread();
  const Index stride = Index{gridDim.x} * quantize_threads;
  std::uint32_t magnitudes = 0;
  for (Index begin = thread; begin < vectors; begin += amax_loads * stride) {
    Run<Storage> runs[amax_loads];
#pragma unroll
    for (int i = 0; i < amax_loads; ++i) {
      const Index position = begin + i * stride;
      runs[i] = load_run<true>(values + position * run_size, (vectors - position) * run_size);
    }
#pragma unroll
    for (const Run<Storage>& run : runs) magnitudes = larger_magnitudes(magnitudes, run);
  }
  for (Index i = vectors * run_size + thread; i < count; i += stride) {
    magnitudes = larger_magnitudes(magnitudes, values[i].bits);
  }
  raise_to_block_amax(magnitudes, amax_bits);
}

/// Enqueues amax_kernel.
template <class Storage>
void enqueue_amax(const char* name, TensorView<const Storage, 2, Cuda> values,
                  std::uint32_t* amax_bits, const Context<Cuda>& context) {
  constexpr Index max_blocks = 1024;  // enough to fill any GPU; more would only add atomics
  const Index runs = values.size() / run_size;
  const Index vectors = is_vector_aligned(values.data()) ? runs : 0;
  const Index blocks =
      std::clamp(ceil_divide(runs, Index{quantize_threads} * amax_loads), Index{1}, max_blocks);
  launch(name, amax_kernel<Storage>, blocks, quantize_threads, 0, context, values.data(),
         values.size(), vectors, amax_bits);
}

}  // namespace octavo::detail
