/// @file
/// Cross-entropy on the `Cuda` device. A cluster of blocks keeps a row in its shared memory, so
/// that a row is read once and written once. Several clusters share a multiprocessor, so that
/// loads, computation and stores of different rows overlap.
#pragma once

#include <octavo/kernels/cross_entropy.hpp>
#include <octavo/kernels/cuda/exponential.cuh>
#include <octavo/kernels/cuda/limits.hpp>
#include <octavo/kernels/cuda/run.cuh>

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// Blocks that share a row, each with a slice of it.
inline constexpr int row_slices = 4;
inline constexpr int slice_threads = 384;
/// Blocks per multiprocessor: with 128256 columns of BF16, slices fill 192 KB.
template <class T>
inline constexpr int slices_at_once = 6 / static_cast<int>(sizeof(T));
/// The largest slice. Longer rows remain in global memory.
inline constexpr Index largest_slice_bytes = Index{192} << 10;
/// Threads of the block that processes a row in global memory.
inline constexpr int long_row_threads = 1024;

/// Returns e^x for x ≤ 0, with a relative error of 2^-22 times max(1, |x|); 0 if FP32 would be
/// subnormal.
__device__ inline float negative_exponential(float x) { return fast_exp2(x * log2_e); }

/// Smaller than any relevant logit, and still finite when multiplied by log2(e).
inline constexpr float lowest_logit = -2e38f;

/// Σ exp(x − largest) over some of the x, and the largest of them.
struct ExponentialSum {
  float largest;
  float sum;
};

inline __device__ ExponentialSum empty_sum() { return {lowest_logit, 0.0f}; }

/// Computes exp(x − largest) for many x, with an additional rounding of `largest` but one
/// instruction fewer per x.
struct ExponentialBelow {
  float offset;

  explicit __device__ ExponentialBelow(float largest) : offset(-largest * log2_e) {}
  __device__ float operator()(float x) const { return fast_exp2(__fmaf_rn(x, log2_e, offset)); }
};

/// Stores the larger of each pair of elements in `largest`.
template <class T>
__device__ void raise(Run<T>& largest, const Run<T>& run) {
#pragma unroll
  for (int i = 0; i < Run<T>::words_per_run; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      largest.words[i] =
          __float_as_uint(fmaxf(__uint_as_float(largest.words[i]), __uint_as_float(run.words[i])));
    } else {
      static_assert(std::is_same_v<T, Bf16>);
      const __nv_bfloat162 pair = __hmax2(reinterpret_cast<const __nv_bfloat162&>(largest.words[i]),
                                          reinterpret_cast<const __nv_bfloat162&>(run.words[i]));
      largest.words[i] = reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
}

/// The rounding does not depend on the order, so all threads of an exchange agree.
__device__ inline ExponentialSum operator+(const ExponentialSum& a, const ExponentialSum& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, __fadd_rn(__fmul_rn(a.sum, negative_exponential(a.largest - largest)),
                             __fmul_rn(b.sum, negative_exponential(b.largest - largest)))};
}

/// Returns the sum over the threads of the warp, to all of them, in a fixed order.
__device__ inline ExponentialSum warp_exponential_sum(ExponentialSum sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = sum + ExponentialSum{__shfl_xor_sync(0xffffffffu, sum.largest, distance),
                               __shfl_xor_sync(0xffffffffu, sum.sum, distance)};
  }
  return sum;
}

/// The part of one row that one block processes. Thread t owns the runs t, t + `slice_threads`, …,
/// including their copy to shared memory, so that no thread waits for another's copy.
template <class T>
struct RowSlice {
  T* target;  ///< in global memory
  T* values;  ///< in shared memory
  int count;  ///< elements, without padding of the vocabulary

  static constexpr int stride = slice_threads * run_size;

  [[nodiscard]] __device__ static int first() { return static_cast<int>(threadIdx.x) * run_size; }
  [[nodiscard]] __device__ bool owns(Index position) const {
    return position >= 0 && position < count && position % stride / run_size == threadIdx.x;
  }

  /// Number of runs that the thread owns, and how many of them are fetched first.
  [[nodiscard]] __device__ int runs() const {
    return max(0, (count - first() + stride - 1) / stride);
  }
  [[nodiscard]] __device__ int early_runs() const { return runs() / 2; }

  /// Starts copying the slice to shared memory, in two halves: the sum over the first overlaps the
  /// copy of the second.
  __device__ void fetch() const {
    fetch(0, early_runs());
    fetch(early_runs(), runs());
  }

  /// Returns the sum over the thread's elements, after they are fetched.
  [[nodiscard]] __device__ ExponentialSum sum() const {
    __pipeline_wait_prior(1);
    const ExponentialSum early = sum(0, early_runs());
    __pipeline_wait_prior(0);
    if (owns(count - 1)) {
      for (int i = count; i % run_size != 0; ++i) values[i] = T(-INFINITY);
    }
    return early + sum(early_runs(), runs());
  }

  /// Writes exp(x − largest) · factor over the thread's runs.
  __device__ void store_gradient(float largest, float factor) const {
    const ExponentialBelow exponential(largest);
#pragma unroll 4
    for (int i = 0; i < runs(); ++i) {
      Floats floats = load_floats<true>(values + first() + i * stride, run_size);
#pragma unroll
      for (float& value : floats.values) value = exponential(value) * factor;
      store_floats<true>(target + first() + i * stride, run_size, floats);
    }
  }

 private:
  __device__ void fetch(int begin, int end) const {
    for (int i = begin; i < end; ++i) {
      const int position = first() + i * stride;
#pragma unroll
      for (int e = 0; e < run_size; e += static_cast<int>(sizeof(uint4) / sizeof(T))) {
        __pipeline_memcpy_async(values + position + e, target + position + e, sizeof(uint4));
      }
    }
    __pipeline_commit();
  }

  /// The maximum is computed first, so that no exponential is spent on rescaling.
  [[nodiscard]] __device__ ExponentialSum sum(int begin, int end) const {
    ExponentialSum result = empty_sum();
    Floats floats;
    for (float& value : floats.values) value = lowest_logit;
    Run<T> largest = to_run<T>(floats);
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      raise(largest, load_run<true>(values + first() + i * stride, run_size));
    }
    floats = to_floats(largest);
#pragma unroll
    for (const float value : floats.values) result.largest = fmaxf(result.largest, value);
    const ExponentialBelow exponential(result.largest);
    float sums[2] = {};  // so that additions need not wait for each other
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      floats = load_floats<true>(values + first() + i * stride, run_size);
#pragma unroll
      for (int e = 0; e < run_size; ++e) sums[e % 2] += exponential(floats.values[e]);
    }
    result.sum = sums[0] + sums[1];
    return result;
  }
};

/// Returns the sum over all threads of the cluster, to all of them, in a fixed order: each warp
/// writes its sum to the memory of each block. The blocks must have arrived at the cluster's
/// barrier at their start, because a block's memory can be written only once it runs.
__device__ inline ExponentialSum cluster_exponential_sum(ExponentialSum sum) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int warps = slice_threads / 32;
  constexpr unsigned parts = row_slices * warps;
  __shared__ ExponentialSum shared[parts];
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned lane = threadIdx.x % 32;
  const unsigned part = cluster.block_rank() * warps + threadIdx.x / 32;
  sum = warp_exponential_sum(sum);
  __cluster_barrier_wait();
  if (lane < row_slices) *cluster.map_shared_rank(shared + part, static_cast<int>(lane)) = sum;
  cluster.sync();
  ExponentialSum total = empty_sum();
#pragma unroll
  for (unsigned i = lane; i < parts; i += 32) total = total + shared[i];
  return warp_exponential_sum(total);
#else
  return sum;  // never launched: see cross_entropy_body
#endif
}

// Compilers for GPUs without clusters reject the attribute; the kernel is not launched on those.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define OCTAVO_ROW_CLUSTER __cluster_dims__(row_slices, 1, 1)
#else
#define OCTAVO_ROW_CLUSTER
#endif

/// Processes one row per cluster. Needs a GPU with clusters.
/// @param slice           elements of a row in one block, a multiple of `run_size`
/// @param gradient_scale  null: the logits are not modified
template <class T>
OCTAVO_KERNEL void OCTAVO_ROW_CLUSTER __launch_bounds__(slice_threads, slices_at_once<T>)
    cross_entropy_kernel(T* logits, const std::int32_t* targets, float* losses, Index vocabulary,
                         Index padded, Index slice, const float* gradient_scale) {
  extern __shared__ uint4 slice_memory[];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive_relaxed();
#endif
  const Index row = blockIdx.x / row_slices;
  const Index begin = blockIdx.x % row_slices * slice;
  const std::int32_t target = targets[row];
  const bool ignored = target < 0;
  const bool exists = !ignored && target < vocabulary;
  const RowSlice<T> own{logits + row * padded + begin, reinterpret_cast<T*>(slice_memory),
                        static_cast<int>(max(Index{0}, min(slice, vocabulary - begin)))};
  own.fetch();
  const ExponentialSum total = cluster_exponential_sum(own.sum());
  const bool owns_target = exists && own.owns(target - begin);
  const float at_target =
      owns_target ? static_cast<float>(own.values[target - begin]) - total.largest : 0.0f;
  if (owns_target) losses[row] = logf(total.sum) - at_target;
  if (!exists && own.owns(0) && begin == 0) losses[row] = ignored ? 0.0f : NAN;
  if (gradient_scale == nullptr) return;
  const float scale = ignored ? 0.0f : exists ? *gradient_scale : NAN;
  const float factor = scale / total.sum;
  own.store_gradient(total.largest, factor);
  if (owns_target) {
    own.target[target - begin] = T(negative_exponential(at_target) * factor - scale);
  }
  if (own.count == 0 || begin + own.count != vocabulary) return;
  __syncthreads();  // the last run extends into the padding of the vocabulary
  for (Index column = vocabulary + threadIdx.x; column < padded; column += slice_threads) {
    logits[row * padded + column] = T(0.0f);
  }
}
#undef OCTAVO_ROW_CLUSTER

/// Processes one row per block, for rows that are not vectors or do not fit in a cluster, and on
/// GPUs without clusters: reads them for the sum, and again to overwrite them.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(long_row_threads)
    cross_entropy_long_row_kernel(T* logits, const std::int32_t* targets, float* losses,
                                  Index vocabulary, Index padded, const float* gradient_scale) {
  __shared__ ExponentialSum warps[long_row_threads / 32];
  T* row = logits + Index{blockIdx.x} * padded;
  const std::int32_t target = targets[blockIdx.x];
  const bool ignored = target < 0;
  const bool exists = !ignored && target < vocabulary;
  const float at_target = exists ? static_cast<float>(row[target]) : NAN;
  ExponentialSum sum = empty_sum();
#pragma unroll 4
  for (Index column = threadIdx.x; column < vocabulary; column += long_row_threads) {
    sum = sum + ExponentialSum{static_cast<float>(row[column]), 1.0f};
  }
  sum = warp_exponential_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  const ExponentialSum total = warp_exponential_sum(warps[threadIdx.x % 32]);
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = ignored ? 0.0f : logf(total.sum) - (at_target - total.largest);
  }
  if (gradient_scale == nullptr) return;
  const float scale = ignored ? 0.0f : exists ? *gradient_scale : NAN;
  const float factor = scale / total.sum;
  for (Index column = threadIdx.x; column < padded; column += long_row_threads) {
    float gradient = 0.0f;
    if (column < vocabulary) {
      gradient = negative_exponential(static_cast<float>(row[column]) - total.largest) * factor;
      if (column == target) gradient -= scale;
    }
    row[column] = T(gradient);
  }
}

/// See cross_entropy.
template <class T>
void cross_entropy_body(TensorView<T, 2, Cuda> logits,
                        TensorView<const std::int32_t, 1, Cuda> targets,
                        TensorView<float, 1, Cuda> losses, Index vocabulary,
                        TensorView<const float, 1, Cuda> gradient_scale,
                        const Context<Cuda>& context) {
  constexpr const char* name = "cross_entropy";
  const Index rows = logits.extent(0);
  const Index padded = logits.extent(1);
  const Index slice = round_up(ceil_divide(vocabulary, row_slices), Index{run_size});
  const Index slice_bytes = slice * static_cast<Index>(sizeof(T));
  const GpuFeatures& gpu = context.limits().gpu;
  if (!gpu.clusters || !rows_are_vectors(padded, logits.data()) ||
      slice_bytes > std::min(largest_slice_bytes, max_shared_bytes(context.limits()))) {
    launch(name, cross_entropy_long_row_kernel<T>, rows, long_row_threads, 0, context,
           logits.data(), targets.data(), losses.data(), vocabulary, padded, gradient_scale.data());
    return;
  }
  const auto kernel = cross_entropy_kernel<T>;
  context.make_current();
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute", " for the largest shared memory in ", name);
  launch(name, kernel, rows * row_slices, slice_threads, static_cast<std::size_t>(slice_bytes),
         context, logits.data(), targets.data(), losses.data(), vocabulary, padded, slice,
         gradient_scale.data());
}

}  // namespace octavo::detail
