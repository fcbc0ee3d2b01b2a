/// @file
/// Embedding look-up and cross-entropy of a vocabulary shard, on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cross_entropy.cuh>
#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/vocabulary_parallel.hpp>

#include <cmath>

namespace octavo OCTAVO_ABI::detail {

struct LocalTokens {
  const std::int32_t* tokens;
  Index first;
  Index rows;
  std::int32_t* local;
  __device__ void operator()(Index i) const {
    const Index row = tokens[i] - first;
    local[i] = row >= 0 && row < rows ? static_cast<std::int32_t>(row) : -1;
  }
};

/// See local_tokens.
inline void local_tokens_body(TensorView<const std::int32_t, 1, Cuda> tokens, Index first,
                              Index rows, TensorView<std::int32_t, 1, Cuda> local,
                              const Context<Cuda>& context) {
  for_each_index("local_tokens", tokens.extent(0), context,
                 LocalTokens{tokens.data(), first, rows, local.data()});
}

inline constexpr int logit_threads = 1024;
inline constexpr Index logit_stride = Index{logit_threads} * run_size;

/// Processes one row per block. Each thread computes the maximum of its logits first, so that no
/// exponential is spent on rescaling.
/// @tparam Vectors  rows are vectors
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(logit_threads)
    sum_logits_kernel(const T* logits, const std::int32_t* targets, Index columns,
                      VocabularyPart part, LogitSum* sums) {
  __shared__ ExponentialSum warps[logit_threads / 32];
  const T* row = logits + Index{blockIdx.x} * columns;
  const Index live = part.live(columns);
  const Index begin = Index{threadIdx.x} * run_size;
  ExponentialSum own = empty_sum();
  for (Index column = begin; column < live; column += logit_stride) {
    const Floats floats = load_floats<Vectors>(row + column, columns - column);
#pragma unroll
    for (int e = 0; e < run_size; ++e) {
      if (column + e < live) own.largest = fmaxf(own.largest, floats.values[e]);
    }
  }
  for (Index column = begin; column < live; column += logit_stride) {
    const Floats floats = load_floats<Vectors>(row + column, columns - column);
#pragma unroll
    for (int e = 0; e < run_size; ++e) {
      if (column + e < live) own.sum += negative_exponential(floats.values[e] - own.largest);
    }
  }
  own = warp_exponential_sum(own);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  const ExponentialSum total = warp_exponential_sum(warps[threadIdx.x % 32]);
  if (threadIdx.x != 0) return;
  const Index target = targets[blockIdx.x] - part.first;
  const bool has_target = target >= 0 && target < live;
  sums[blockIdx.x] = {live == 0 ? -INFINITY : total.largest, total.sum,
                      has_target ? static_cast<float>(row[target]) : 0.0f};
}

/// See sum_logits.
template <class T>
void sum_logits_body(TensorView<const T, 2, Cuda> logits,
                     TensorView<const std::int32_t, 1, Cuda> targets, VocabularyPart part,
                     TensorView<LogitSum, 1, Cuda> sums, const Context<Cuda>& context) {
  const Index columns = logits.extent(1);
  launch("sum_logits",
         rows_are_vectors(columns, logits.data()) ? sum_logits_kernel<true, T>
                                                  : sum_logits_kernel<false, T>,
         logits.extent(0), logit_threads, 0, context, logits.data(), targets.data(), columns, part,
         sums.data());
}

/// Processes one row per block; each thread adds the few ranks' sums itself.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(logit_threads)
    parallel_cross_entropy_kernel(const LogitSum* sums, Index ranks, Index tokens, T* logits,
                                  const std::int32_t* targets, float* losses, Index columns,
                                  VocabularyPart part, const float* gradient_scale) {
  T* row = logits + Index{blockIdx.x} * columns;
  const Index live = part.live(columns);
  const Index target = targets[blockIdx.x];
  const bool ignored = target < 0;
  const bool exists = !ignored && target < part.whole;
  const LogitSum* of_ranks = sums + blockIdx.x;
  const float largest = largest_logit(of_ranks, ranks, tokens);
  float sum = 0;
  for (Index rank = 0; rank < ranks; ++rank) {
    const LogitSum& of_rank = of_ranks[rank * tokens];
    if (of_rank.sum != 0) sum += of_rank.sum * negative_exponential(of_rank.largest - largest);
  }
  const float at_target = exists ? of_ranks[target / columns * tokens].at_target : NAN;
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = ignored ? 0.0f : logf(sum) - (at_target - largest);
  }
  if (gradient_scale == nullptr) return;
  const float scale = ignored ? 0.0f : exists ? *gradient_scale : NAN;
  const float factor = scale / sum;
  const Index own = exists ? target - part.first : Index{-1};
  for (Index column = Index{threadIdx.x} * run_size; column < columns; column += logit_stride) {
    Floats floats = load_floats<Vectors>(row + column, columns - column);
#pragma unroll
    for (int e = 0; e < run_size; ++e) {
      float gradient = 0.0f;
      if (column + e < live) {
        gradient = negative_exponential(floats.values[e] - largest) * factor;
        if (column + e == own) gradient -= scale;
      }
      floats.values[e] = gradient;
    }
    store_floats<Vectors>(row + column, columns - column, floats);
  }
}

/// See parallel_cross_entropy.
template <class T>
void parallel_cross_entropy_body(TensorView<const LogitSum, 2, Cuda> sums,
                                 TensorView<T, 2, Cuda> logits,
                                 TensorView<const std::int32_t, 1, Cuda> targets,
                                 TensorView<float, 1, Cuda> losses, VocabularyPart part,
                                 TensorView<const float, 1, Cuda> gradient_scale,
                                 const Context<Cuda>& context) {
  const Index columns = logits.extent(1);
  launch("parallel_cross_entropy",
         rows_are_vectors(columns, logits.data()) ? parallel_cross_entropy_kernel<true, T>
                                                  : parallel_cross_entropy_kernel<false, T>,
         logits.extent(0), logit_threads, 0, context, sums.data(), sums.extent(0), sums.extent(1),
         logits.data(), targets.data(), losses.data(), columns, part, gradient_scale.data());
}

}  // namespace octavo::detail
