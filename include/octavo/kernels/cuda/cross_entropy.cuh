/// @file
/// Cross-entropy on the `Cuda` device.
#pragma once

#include <octavo/kernels/cross_entropy.hpp>
#include <octavo/kernels/cuda/run.cuh>

#include <cfloat>

namespace octavo {
namespace detail {

inline constexpr int cross_entropy_threads = 1024;
/// Runs that one thread reads before it uses the first.
inline constexpr int cross_entropy_loads = 4;

/// Σ exp(x − largest) over some of the x, and the largest of them.
struct ExponentialSum {
  float largest = -FLT_MAX;
  float sum = 0;

  /// Makes `value` the largest if it is.
  __device__ void raise(float value) {
    if (value > largest) {
      sum *= __expf(largest - value);
      largest = value;
    }
  }
  __device__ void add(const ExponentialSum& other) {
    const float both = fmaxf(largest, other.largest);
    sum = sum * __expf(largest - both) + other.sum * __expf(other.largest - both);
    largest = both;
  }
};

/// The sum over all threads of the block, to all of them, in a fixed order.
__device__ inline ExponentialSum block_exponential_sum(ExponentialSum sum) {
  __shared__ ExponentialSum warps[cross_entropy_threads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum.add({__shfl_xor_sync(0xffffffffu, sum.largest, distance),
             __shfl_xor_sync(0xffffffffu, sum.sum, distance)});
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  ExponentialSum total = warps[0];
  for (int warp = 1; warp < cross_entropy_threads / 32; ++warp) total.add(warps[warp]);
  return total;
}

/// The thread's part of a row's sum: the largest value of all its loads first, so that few
/// exponentials go to rescaling.
template <bool Vectors, class T>
__device__ ExponentialSum row_part(const T* row, Index vocabulary) {
  constexpr Index stride = Index{cross_entropy_threads} * run_size;
  ExponentialSum result;
  for (Index begin = Index{threadIdx.x} * run_size; begin < vocabulary;
       begin += cross_entropy_loads * stride) {
    Run<T> runs[cross_entropy_loads];
    float largest = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < cross_entropy_loads; ++i) {
      const Index column = begin + i * stride;
      runs[i] = load_run<Vectors>(row + column, vocabulary - column);
    }
#pragma unroll
    for (int i = 0; i < cross_entropy_loads; ++i) {
      const Floats values = to_floats(runs[i]);
#pragma unroll
      for (int e = 0; e < run_size; ++e) {
        const bool inside = begin + i * stride + e < vocabulary;
        if (inside) largest = fmaxf(largest, values.values[e]);
      }
    }
    result.raise(largest);
#pragma unroll
    for (int i = 0; i < cross_entropy_loads; ++i) {
      const Floats values = to_floats(runs[i]);
#pragma unroll
      for (int e = 0; e < run_size; ++e) {
        const bool inside = begin + i * stride + e < vocabulary;
        result.sum += inside ? __expf(values.values[e] - result.largest) : 0.0f;
      }
    }
  }
  return result;
}

/// Overwrites a row by its gradient.
/// @param factor  gradient scale / Σ exp(x − largest)
/// @param scale   subtracted at the target
template <bool Vectors, class T>
__device__ void store_gradient(T* row, Index vocabulary, Index padded, Index target, float largest,
                               float factor, float scale) {
  constexpr Index stride = Index{cross_entropy_threads} * run_size;
  for (Index begin = Index{threadIdx.x} * run_size; begin < padded;
       begin += cross_entropy_loads * stride) {
    Run<T> runs[cross_entropy_loads];
#pragma unroll
    for (int i = 0; i < cross_entropy_loads; ++i) {
      const Index column = begin + i * stride;
      runs[i] = load_run<Vectors>(row + column, vocabulary - column);
    }
#pragma unroll
    for (int i = 0; i < cross_entropy_loads; ++i) {
      const Index column = begin + i * stride;
      Floats values = to_floats(runs[i]);
#pragma unroll
      for (int e = 0; e < run_size; ++e) {
        const bool inside = column + e < vocabulary;
        values.values[e] = inside ? __expf(values.values[e] - largest) * factor : 0.0f;
        if (column + e == target) values.values[e] -= scale;
      }
      store_floats<Vectors>(row + column, padded - column, values);
    }
  }
}

/// One row a block: read for the sum, and read again, most of it from L2, to be overwritten.
/// @tparam Vectors  rows are vectors of `run_size` elements, and so is the vocabulary
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(cross_entropy_threads)
    cross_entropy_kernel(T* logits, const std::int32_t* targets, float* losses, Index vocabulary,
                         Index padded, float gradient_scale) {
  T* row = logits + Index{blockIdx.x} * padded;
  const std::int32_t target = targets[blockIdx.x];
  const bool ignored = target < 0;
  const float at_target = ignored ? 0.0f : static_cast<float>(row[target]);
  const ExponentialSum total = block_exponential_sum(row_part<Vectors>(row, vocabulary));
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = ignored ? 0.0f : logf(total.sum) - (at_target - total.largest);
  }
  if (gradient_scale == 0) return;
  const float scale = ignored ? 0.0f : gradient_scale;
  store_gradient<Vectors>(row, vocabulary, padded, target, total.largest, scale / total.sum, scale);
}

}  // namespace detail

/// See cross_entropy.
template <class T>
void cross_entropy_body(TensorView<T, 2, Cuda> logits,
                        TensorView<const std::int32_t, 1, Cuda> targets,
                        TensorView<float, 1, Cuda> losses, Index vocabulary, float gradient_scale,
                        const Context<Cuda>& context) {
  const Index padded = logits.extent(1);
  const bool vectors =
      vocabulary % detail::run_size == 0 && detail::rows_are_vectors(padded, logits.data());
  detail::launch(
      "cross_entropy",
      vectors ? detail::cross_entropy_kernel<true, T> : detail::cross_entropy_kernel<false, T>,
      logits.extent(0), detail::cross_entropy_threads, 0, context, logits.data(), targets.data(),
      losses.data(), vocabulary, padded, gradient_scale);
}

}  // namespace octavo
