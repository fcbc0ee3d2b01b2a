/// @file
/// Cross-entropy on the `Cuda` device. A cluster of blocks holds a row in its shared memory, so
/// that a row is read once and written once; several clusters share a multiprocessor, so that one
/// loads while another computes and a third stores.
#pragma once

#include <octavo/kernels/cross_entropy.hpp>
#include <octavo/kernels/cuda/run.cuh>

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <cfloat>

namespace octavo {
namespace detail {

/// Blocks that share a row, each with a slice of it.
inline constexpr int row_slices = 8;
inline constexpr int slice_threads = 256;
/// Blocks that a multiprocessor runs at once: with 128256 columns, slices fill 192 KB.
template <class T>
inline constexpr int slices_at_once = 12 / static_cast<int>(sizeof(T));
/// The largest slice. Longer rows stay in global memory.
inline constexpr Index largest_slice_bytes = Index{192} << 10;
/// Threads of the block that works on a row in global memory.
inline constexpr int long_row_threads = 1024;

/// e^x for x ≤ 0, with a relative error of 2^-22 times max(1, |x|); 0 where FP32 is subnormal.
__device__ inline float negative_exponential(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
}

/// Σ exp(x − largest) over some of the x, and the largest of them.
struct ExponentialSum {
  float largest;
  float sum;
};

inline __device__ ExponentialSum empty_sum() { return {-FLT_MAX, 0.0f}; }

/// Rounded alike whichever comes first, so that all threads of an exchange agree.
__device__ inline ExponentialSum operator+(const ExponentialSum& a, const ExponentialSum& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, __fadd_rn(__fmul_rn(a.sum, negative_exponential(a.largest - largest)),
                             __fmul_rn(b.sum, negative_exponential(b.largest - largest)))};
}

/// The sum over all threads of the warp, to all of them, in a fixed order.
__device__ inline ExponentialSum warp_exponential_sum(ExponentialSum sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = sum + ExponentialSum{__shfl_xor_sync(0xffffffffu, sum.largest, distance),
                               __shfl_xor_sync(0xffffffffu, sum.sum, distance)};
  }
  return sum;
}

/// The part of one row that one block works on. Thread t owns the runs t, t + `slice_threads`, …
/// from the copy into shared memory on, so that no thread waits for another's.
template <class T>
struct RowSlice {
  T* target;  ///< in global memory
  T* values;  ///< in shared memory
  int count;  ///< elements, without those that pad the vocabulary

  static constexpr int stride = slice_threads * run_size;

  [[nodiscard]] __device__ static int first() { return static_cast<int>(threadIdx.x) * run_size; }
  [[nodiscard]] __device__ bool owns(Index position) const {
    return position >= 0 && position < count && position % stride / run_size == threadIdx.x;
  }

  /// Copies the slice to shared memory, and −Inf to what completes its last run.
  __device__ void fetch() const {
    for (int begin = first(); begin < count; begin += stride) {
#pragma unroll
      for (int i = 0; i < run_size; i += static_cast<int>(sizeof(uint4) / sizeof(T))) {
        __pipeline_memcpy_async(values + begin + i, target + begin + i, sizeof(uint4));
      }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    if (!owns(count - 1)) return;
    for (int i = count; i % run_size != 0; ++i) values[i] = T(-INFINITY);
  }

  /// The sum over what the thread owns: the largest first, so that few exponentials go to
  /// rescaling.
  [[nodiscard]] __device__ ExponentialSum sum() const {
    ExponentialSum result = empty_sum();
    for (int begin = first(); begin < count; begin += stride) {
      const Floats floats = load_floats<true>(values + begin, run_size);
#pragma unroll
      for (const float value : floats.values) result.largest = fmaxf(result.largest, value);
    }
    for (int begin = first(); begin < count; begin += stride) {
      const Floats floats = load_floats<true>(values + begin, run_size);
#pragma unroll
      for (const float value : floats.values) {
        result.sum += negative_exponential(value - result.largest);
      }
    }
    return result;
  }

  /// Writes exp(x − largest) · factor over the runs that the thread owns.
  __device__ void store_gradient(float largest, float factor) const {
    for (int begin = first(); begin < count; begin += stride) {
      Floats floats = load_floats<true>(values + begin, run_size);
#pragma unroll
      for (float& value : floats.values) value = negative_exponential(value - largest) * factor;
      store_floats<true>(target + begin, run_size, floats);
    }
  }
};

/// The sum over all threads of the cluster, to all of them, in a fixed order: each warp writes its
/// sum into the memory of each block. The blocks must have arrived at the cluster's barrier when
/// they began: a block's memory can be written once it runs.
__device__ inline ExponentialSum cluster_exponential_sum(ExponentialSum sum) {
  constexpr int warps = slice_threads / 32;
  constexpr int parts = row_slices * warps;
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
  for (int i = 0; i < parts; i += 32) total = total + shared[i + lane];
  return warp_exponential_sum(total);
}

/// One row a cluster.
/// @param slice  elements of a row that one block holds, a multiple of `run_size`
template <class T>
OCTAVO_KERNEL void __cluster_dims__(row_slices, 1, 1)
    __launch_bounds__(slice_threads, slices_at_once<T>)
        cross_entropy_kernel(T* logits, const std::int32_t* targets, float* losses,
                             Index vocabulary, Index padded, Index slice, float gradient_scale) {
  extern __shared__ uint4 slice_memory[];
  __cluster_barrier_arrive_relaxed();
  const Index row = blockIdx.x / row_slices;
  const Index begin = blockIdx.x % row_slices * slice;
  const std::int32_t target = targets[row];
  const bool ignored = target < 0;
  const RowSlice<T> own{logits + row * padded + begin, reinterpret_cast<T*>(slice_memory),
                        static_cast<int>(max(Index{0}, min(slice, vocabulary - begin)))};
  own.fetch();
  const ExponentialSum total = cluster_exponential_sum(own.sum());
  const bool owns_target = !ignored && own.owns(target - begin);
  const float at_target =
      owns_target ? static_cast<float>(own.values[target - begin]) - total.largest : 0.0f;
  if (owns_target) losses[row] = logf(total.sum) - at_target;
  if (ignored && own.owns(0) && begin == 0) losses[row] = 0.0f;
  if (gradient_scale == 0) return;
  const float scale = ignored ? 0.0f : gradient_scale;
  const float factor = scale / total.sum;
  own.store_gradient(total.largest, factor);
  if (owns_target) {
    own.target[target - begin] = T(negative_exponential(at_target) * factor - scale);
  }
  if (own.count == 0 || begin + own.count != vocabulary) return;
  __syncthreads();  // the last run reaches into what pads the vocabulary
  for (Index column = vocabulary + threadIdx.x; column < padded; column += slice_threads) {
    logits[row * padded + column] = T(0.0f);
  }
}

/// One row a block, for rows that are not vectors or do not fit a cluster: read for the sum, and
/// read again to be overwritten.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(long_row_threads)
    cross_entropy_long_row_kernel(T* logits, const std::int32_t* targets, float* losses,
                                  Index vocabulary, Index padded, float gradient_scale) {
  __shared__ ExponentialSum warps[long_row_threads / 32];
  T* row = logits + Index{blockIdx.x} * padded;
  const std::int32_t target = targets[blockIdx.x];
  const bool ignored = target < 0;
  const float at_target = ignored ? 0.0f : static_cast<float>(row[target]);
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
  if (gradient_scale == 0) return;
  const float scale = ignored ? 0.0f : gradient_scale;
  const float factor = scale / total.sum;
  for (Index column = threadIdx.x; column < padded; column += long_row_threads) {
    float gradient = 0.0f;
    if (column < vocabulary) {
      gradient = negative_exponential(static_cast<float>(row[column]) - total.largest) * factor;
    }
    row[column] = T(column == target ? gradient - scale : gradient);
  }
}

}  // namespace detail

/// See cross_entropy.
template <class T>
void cross_entropy_body(TensorView<T, 2, Cuda> logits,
                        TensorView<const std::int32_t, 1, Cuda> targets,
                        TensorView<float, 1, Cuda> losses, Index vocabulary, float gradient_scale,
                        const Context<Cuda>& context) {
  constexpr const char* name = "cross_entropy";
  const Index rows = logits.extent(0);
  const Index padded = logits.extent(1);
  const Index slice =
      round_up(ceil_divide(vocabulary, detail::row_slices), Index{detail::run_size});
  const Index slice_bytes = slice * static_cast<Index>(sizeof(T));
  if (!detail::rows_are_vectors(padded, logits.data()) ||
      slice_bytes > detail::largest_slice_bytes) {
    detail::launch(name, detail::cross_entropy_long_row_kernel<T>, rows, detail::long_row_threads,
                   0, context, logits.data(), targets.data(), losses.data(), vocabulary, padded,
                   gradient_scale);
    return;
  }
  const auto kernel = detail::cross_entropy_kernel<T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute", " for the largest shared memory in ", name);
  detail::launch(name, kernel, rows * detail::row_slices, detail::slice_threads,
                 static_cast<std::size_t>(slice_bytes), context, logits.data(), targets.data(),
                 losses.data(), vocabulary, padded, slice, gradient_scale);
}

}  // namespace octavo
