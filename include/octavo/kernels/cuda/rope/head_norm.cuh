/// @file
/// Rotary position embeddings with normalised queries and keys, and the backward of that
/// normalisation.
#pragma once

#include <octavo/kernels/cuda/rope/rotation.cuh>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int head_warps = elementwise_threads / 32;
/// Maximum number of rows of partial sums of a norm weight's gradient in rope_backward.
inline constexpr Index head_norm_pieces = 512;

/// Returns 1 / root mean square of a head, computed by one warp.
template <class T>
__device__ float warp_inverse_rms(const T* head, std::uint32_t head_dim, float epsilon) {
  float squares = 0;
  for (std::uint32_t j = threadIdx.x % 32; j < head_dim; j += 32) {
    const float value = static_cast<float>(head[j]);
    squares += value * value;
  }
  return 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + epsilon);
}

/// Normalises one head, unless `weight` is null, and rotates it, with one warp. `source` and
/// `target` may be the same.
/// @param angles  of its position: the cosines, then the sines
template <class T>
__device__ void warp_rotate(const T* source, T* target, const T* weight, float epsilon,
                            float offset, std::uint32_t head_dim, const float* angles) {
  const std::uint32_t half = head_dim / 2;
  const float inverse = weight == nullptr ? 1.0f : warp_inverse_rms(source, head_dim, epsilon);
  const auto normalised = [&](std::uint32_t j) {
    const float value = static_cast<float>(source[j]);
    return weight == nullptr ? value : value * inverse * (static_cast<float>(weight[j]) + offset);
  };
  for (std::uint32_t j = threadIdx.x % 32; j < half; j += 32) {
    const float first = normalised(j);
    const float second = normalised(j + half);
    target[j] = T(rotated(first, angles[j], -angles[half + j], second));
    target[j + half] = T(rotated(second, angles[j], angles[half + j], first));
  }
}

/// Copies one head with one warp.
template <class T>
__device__ void warp_copy(const T* source, T* target, std::uint32_t head_dim) {
  for (std::uint32_t j = threadIdx.x % 32; j < head_dim; j += 32) target[j] = source[j];
}

/// Normalises and rotates one head per warp; heads from `rotated_heads` on are copied.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    norm_rotate_kernel(const T* source, T* target, Index rows, const Rotation rotation,
                       const T* query_weight, const T* key_weight, std::uint32_t query_heads,
                       float epsilon, float offset) {
  const Index warp = global_thread() / 32;
  const Index row = warp / rotation.all_heads;
  if (row >= rows) return;
  const auto head = static_cast<std::uint32_t>(warp % rotation.all_heads);
  const Index place = row * rotation.columns() + Index{head} * rotation.head_dim;
  if (head >= rotation.rotated_heads) {
    warp_copy(source + place, target + place, rotation.head_dim);
  } else {
    warp_rotate(source + place, target + place, head < query_heads ? query_weight : key_weight,
                epsilon, offset, rotation.head_dim, rotation.angles(row));
  }
}

/// Arguments of head_norm_backward_kernel: the query heads or the key heads of all rows.
template <class T>
struct HeadNormArguments {
  T* gradient;         ///< [rows, columns]: gradient of normalised heads, converted in place to
                       ///< that of the heads
  const T* qkv;        ///< [rows, columns]
  const T* weight;     ///< [head_dim]
  float* weight_sums;  ///< [blocks, head_dim]
  Index rows;
  Index columns;
  Index first_head;
  Index heads;
  Index heads_per_block;  ///< number of heads, over all rows, that one block processes
  std::uint32_t head_dim;
  float epsilon;
  float offset;  ///< of the weight: see NormWeight
};

/// Converts the gradient of normalised heads to that of the heads, one head per warp; sums of the
/// weight's gradient stay in shared memory, separately for each warp.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    head_norm_backward_kernel(const HeadNormArguments<T> arguments) {
  extern __shared__ float head_sums[];
  const std::uint32_t dim = arguments.head_dim;
  const std::uint32_t lane = threadIdx.x % 32;
  float* sums = head_sums + threadIdx.x / 32 * dim;
  for (std::uint32_t j = lane; j < dim; j += 32) sums[j] = 0;
  const Index begin = Index{blockIdx.x} * arguments.heads_per_block;
  const Index end = min(begin + arguments.heads_per_block, arguments.rows * arguments.heads);
  for (Index i = begin + threadIdx.x / 32; i < end; i += head_warps) {
    const Index place = i / arguments.heads * arguments.columns +
                        (arguments.first_head + i % arguments.heads) * dim;
    T* gradient = arguments.gradient + place;
    const T* head = arguments.qkv + place;
    const float inverse = warp_inverse_rms(head, dim, arguments.epsilon);
    float dot = 0;
    for (std::uint32_t j = lane; j < dim; j += 32) {
      const float product = static_cast<float>(gradient[j]) * static_cast<float>(head[j]);
      dot += product * (static_cast<float>(arguments.weight[j]) + arguments.offset);
      sums[j] += product * inverse;
    }
    const float mean = warp_sum(dot) * inverse * inverse / static_cast<float>(dim);
    for (std::uint32_t j = lane; j < dim; j += 32) {
      const float g = static_cast<float>(gradient[j]) *
                      (static_cast<float>(arguments.weight[j]) + arguments.offset);
      gradient[j] = T(inverse * (g - static_cast<float>(head[j]) * mean));
    }
  }
  __syncthreads();
  for (std::uint32_t j = threadIdx.x; j < dim; j += elementwise_threads) {
    float total = 0;
    for (int warp = 0; warp < head_warps; ++warp) total += head_sums[warp * dim + j];
    arguments.weight_sums[Index{blockIdx.x} * dim + j] = total;
  }
}

/// Enqueues the backward of the normalisation of some heads.
/// @param weight_gradient  null: the weight is frozen
template <class T, class G>
void enqueue_head_norm_backward(HeadNormArguments<T> arguments, G* weight_gradient,
                                const Context<Cuda>& context) {
  constexpr const char* name = "rope_backward";
  const Index dim = arguments.head_dim;
  const Index heads = arguments.rows * arguments.heads;
  arguments.heads_per_block = std::max(Index{1}, ceil_divide(heads, head_norm_pieces));
  const Index pieces = ceil_divide(heads, arguments.heads_per_block);
  arguments.weight_sums =
      workspace_of<float>(context, static_cast<std::size_t>(pieces * dim) * sizeof(float), name);
  launch(name, head_norm_backward_kernel<T>, pieces, elementwise_threads,
         static_cast<std::size_t>(head_warps * dim) * sizeof(float), context, arguments);
  if (weight_gradient == nullptr) return;
  add_rows(name, arguments.weight_sums, pieces, dim, weight_gradient, context);
}

}  // namespace octavo::detail
