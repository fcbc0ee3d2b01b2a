/// @file
/// The router of a mixture of experts on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/router.hpp>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int router_threads = 256;
inline constexpr int router_warps = router_threads / 32;
/// Tokens and experts whose logits a warp computes at once.
inline constexpr int logit_tokens = 4;
inline constexpr int logit_experts = 8;

/// Computes logits; lane i of a warp sums terms i, i + 32, … of each.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(router_threads)
    router_logits_kernel(const T* x, const T* w, Index tokens, int experts, int hidden,
                         float* logits) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index token = (Index{blockIdx.x} * router_warps + threadIdx.x / 32) * logit_tokens;
  const int expert = static_cast<int>(blockIdx.y) * logit_experts;
  if (token >= tokens) return;
  const T* x_rows[logit_tokens];
  const T* w_rows[logit_experts];
#pragma unroll
  for (int i = 0; i < logit_tokens; ++i) x_rows[i] = x + min(token + i, tokens - 1) * hidden;
#pragma unroll
  for (int i = 0; i < logit_experts; ++i)
    w_rows[i] = w + Index{min(expert + i, experts - 1)} * hidden;
  float sums[logit_tokens][logit_experts]{};
  for (int k = lane; k < hidden; k += 32) {
    float weights[logit_experts];
#pragma unroll
    for (int i = 0; i < logit_experts; ++i) weights[i] = static_cast<float>(w_rows[i][k]);
#pragma unroll
    for (int t = 0; t < logit_tokens; ++t) {
      const float value = static_cast<float>(x_rows[t][k]);
#pragma unroll
      for (int i = 0; i < logit_experts; ++i) sums[t][i] += value * weights[i];
    }
  }
#pragma unroll
  for (int t = 0; t < logit_tokens; ++t) {
#pragma unroll
    for (int i = 0; i < logit_experts; ++i) {
      const float sum = warp_sum(sums[t][i]);
      if (lane == 0 && token + t < tokens && expert + i < experts) {
        logits[(token + t) * experts + expert + i] = sum;
      }
    }
  }
}

/// See router_logits.
template <class T>
void router_logits_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 2, Cuda> w,
                        TensorView<float, 2, Cuda> logits, const Context<Cuda>& context) {
  const Index tokens = x.extent(0);
  const Index experts = w.extent(0);
  if (tokens == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_divide(tokens, router_warps * logit_tokens)),
                    static_cast<unsigned>(ceil_divide(experts, logit_experts)));
  launch("router_logits", router_logits_kernel<T>, blocks, router_threads, 0, context, x.data(),
         w.data(), tokens, static_cast<int>(experts), static_cast<int>(x.extent(1)), logits.data());
}

/// Returns the maximum of the values of a warp's threads in each of these threads.
template <class T>
__device__ T warp_largest(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

/// Chooses experts: each warp processes one token.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(router_threads)
    choose_experts_kernel(const float* logits, ExpertChoices<D> choices) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index token = global_thread() / 32;
  if (token >= choices.probabilities.extent(0)) return;
  const int experts = static_cast<int>(choices.probabilities.extent(1));
  const int count = static_cast<int>(choices.experts.extent(1));
  const float* row = logits + token * experts;
  float* probabilities = choices.probabilities.data() + token * experts;
  float largest = row[0];
  for (int e = lane; e < experts; e += 32) largest = fmaxf(largest, row[e]);
  largest = warp_largest(largest);
  float sum = 0;
  for (int e = lane; e < experts; e += 32) sum += expf(row[e] - largest);
  sum = warp_sum(sum);
  for (int e = lane; e < experts; e += 32) probabilities[e] = expf(row[e] - largest) / sum;
  __syncwarp();
  unsigned long long last = no_expert_key;
  float chosen_sum = 0;
  for (int j = 0; j < count; ++j) {
    unsigned long long next = 0;
    for (int e = lane; e < experts; e += 32) {
      const unsigned long long key = expert_key(__float_as_uint(row[e]), e);
      if (key < last) next = max(next, key);
    }
    last = next = warp_largest(next);
    const std::int32_t chosen = expert_of_key(next);
    const float weight = probabilities[chosen];
    chosen_sum += weight;
    if (lane != 0) continue;
    choices.experts.data()[token * count + j] = chosen;
    choices.weights.data()[token * count + j] = weight;
  }
  if (!choices.renormalised || lane != 0) return;
  for (int j = 0; j < count; ++j) choices.weights.data()[token * count + j] /= chosen_sum;
}

/// See choose_experts.
inline void choose_experts_body(TensorView<const float, 2, Cuda> logits,
                                const ExpertChoices<Cuda>& choices, const Context<Cuda>& context) {
  launch("choose_experts", choose_experts_kernel<Cuda>, ceil_divide(logits.extent(0), router_warps),
         router_threads, 0, context, logits.data(), choices);
}

/// Counts a pair.
struct CountPair {
  const std::int32_t* experts;
  std::int32_t* counts;
  __device__ void operator()(Index i) const { atomicAdd(counts + experts[i], 1); }
};

/// See add_expert_balance. Sums of integers are the same in any order.
inline void add_expert_balance_body(const ExpertChoices<Cuda>& choices,
                                    const ExpertBalance<Cuda>& balance,
                                    const Context<Cuda>& context) {
  constexpr const char* name = "add_expert_balance";
  static_assert(sum_lanes == 32);
  add_rows(name, choices.probabilities.data(), choices.probabilities.extent(0),
           choices.probabilities.extent(1), balance.probabilities.data(), context);
  for_each_index(name, choices.experts.size(), context,
                 CountPair{choices.experts.data(), balance.counts.data()});
}

template <Device D>
OCTAVO_KERNEL void expert_balance_loss_kernel(ExpertBalance<D> balance, double n, float* loss) {
  const Index experts = balance.counts.extent(0);
  double sum = 0;
  for (Index e = 0; e < experts; ++e) {
    sum +=
        balance.counts.data()[e] / n * (static_cast<double>(balance.probabilities.data()[e]) / n);
  }
  *loss = static_cast<float>(static_cast<double>(experts) * sum);
}

/// See expert_balance_loss.
inline void expert_balance_loss_body(const ExpertBalance<Cuda>& balance, Index n,
                                     TensorView<float, 1, Cuda> loss,
                                     const Context<Cuda>& context) {
  launch("expert_balance_loss", expert_balance_loss_kernel<Cuda>, Index{1}, 1, 0, context, balance,
         static_cast<double>(n), loss.data());
}

/// Computes the gradient of the logits, one token per warp, by the formula of the `Cpu` kernel.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(router_threads)
    choose_experts_backward_kernel(ExpertChoices<D> choices, const float* weight_gradient,
                                   BalanceTerm<D> balance, float* logits_gradient) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index token = global_thread() / 32;
  if (token >= choices.probabilities.extent(0)) return;
  const int experts = static_cast<int>(choices.probabilities.extent(1));
  const int count = static_cast<int>(choices.experts.extent(1));
  const float* probabilities = choices.probabilities.data() + token * experts;
  const std::int32_t* chosen = choices.experts.data() + token * count;
  const float* weights = choices.weights.data() + token * count;
  const float* dw = weight_gradient + token * count;
  float* gradient = logits_gradient + token * experts;
  float mean = 0;
  float divisor = 1;
  if (choices.renormalised) {
    divisor = 0;
    for (int j = 0; j < count; ++j) {
      mean += dw[j] * weights[j];
      divisor += probabilities[chosen[j]];
    }
  }
  float dot = 0;
  for (int e = lane; e < experts; e += 32) {
    float value = balance.counts.empty()
                      ? 0.0f
                      : balance.factor * static_cast<float>(balance.counts.data()[e]);
    for (int j = 0; j < count; ++j) {
      if (chosen[j] == e) value += (dw[j] - mean) / divisor;
    }
    gradient[e] = value;
    dot += value * probabilities[e];
  }
  dot = warp_sum(dot);
  for (int e = lane; e < experts; e += 32) gradient[e] = probabilities[e] * (gradient[e] - dot);
}

/// See choose_experts_backward.
inline void choose_experts_backward_body(const ExpertChoices<Cuda>& choices,
                                         TensorView<const float, 2, Cuda> weight_gradient,
                                         const BalanceTerm<Cuda>& balance,
                                         TensorView<float, 2, Cuda> logits_gradient,
                                         const Context<Cuda>& context) {
  launch("choose_experts_backward", choose_experts_backward_kernel<Cuda>,
         ceil_divide(logits_gradient.extent(0), router_warps), router_threads, 0, context, choices,
         weight_gradient.data(), balance, logits_gradient.data());
}

/// Tokens, or experts, that a thread of the router's gradients processes, and the other dimension's
/// elements that a block reads at once.
inline constexpr int router_sums = 16;
inline constexpr int router_depth = 128;

/// Adds Σ over `depth` of factor(sum, d) · row(d)[column] to a thread's sums, for one column per
/// thread. All threads of the block must call it.
template <class T, class Factor>
__device__ void add_router_terms(float (&sums)[router_sums], int depth, const T* rows, Index stride,
                                 bool has_column, const Factor& factor) {
  __shared__ float factors[router_depth][router_sums];
  for (int begin = 0; begin < depth; begin += router_depth) {
    const int count = min(router_depth, depth - begin);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < router_depth * router_sums;
         i += router_threads) {
      const int d = i / router_sums;
      factors[d][i % router_sums] = d < count ? factor(i % router_sums, begin + d) : 0.0f;
    }
    __syncthreads();
    for (int d = 0; has_column && d < count; ++d) {
      const float value = static_cast<float>(rows[(begin + d) * stride]);
#pragma unroll
      for (int i = 0; i < router_sums; ++i) sums[i] += factors[d][i] * value;
    }
  }
}

/// Adds to the input gradient of `router_sums` tokens, one column per thread.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(router_threads)
    add_router_input_gradient_kernel(const float* logits_gradient, const T* w, Index tokens,
                                     int experts, Index hidden, T* x_gradient) {
  const Index first = Index{blockIdx.x} * router_sums;
  const Index column = Index{blockIdx.y} * router_threads + threadIdx.x;
  float sums[router_sums]{};
  add_router_terms(sums, experts, w + column, hidden, column < hidden, [&](int t, int e) {
    return first + t < tokens ? logits_gradient[(first + t) * experts + e] : 0.0f;
  });
  if (column >= hidden) return;
#pragma unroll
  for (int t = 0; t < router_sums; ++t) {
    if (first + t >= tokens) continue;
    T& target = x_gradient[(first + t) * hidden + column];
    target = T(static_cast<float>(target) + sums[t]);
  }
}

/// See add_router_input_gradient.
template <class T>
void add_router_input_gradient_body(TensorView<const float, 2, Cuda> logits_gradient,
                                    TensorView<const T, 2, Cuda> w,
                                    TensorView<T, 2, Cuda> x_gradient,
                                    const Context<Cuda>& context) {
  const Index tokens = x_gradient.extent(0);
  const Index hidden = x_gradient.extent(1);
  if (tokens == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_divide(tokens, router_sums)),
                    static_cast<unsigned>(ceil_divide(hidden, router_threads)));
  launch("add_router_input_gradient", add_router_input_gradient_kernel<T>, blocks, router_threads,
         0, context, logits_gradient.data(), w.data(), tokens, static_cast<int>(w.extent(0)),
         hidden, x_gradient.data());
}

/// Computes the weight gradient of `router_sums` experts over a piece of the tokens, one column per
/// thread.
/// @param sums_of_pieces  [router_pieces, experts, hidden]
template <class T>
OCTAVO_KERNEL void __launch_bounds__(router_threads)
    router_weight_gradient_kernel(const float* logits_gradient, const T* x, Index tokens,
                                  int experts, Index hidden, Index piece, float* sums_of_pieces) {
  const int first = static_cast<int>(blockIdx.x) * router_sums;
  const Index column = Index{blockIdx.y} * router_threads + threadIdx.x;
  const Index begin = min(Index{blockIdx.z} * piece, tokens);
  const Index count = min(piece, tokens - begin);
  float sums[router_sums]{};
  add_router_terms(sums, static_cast<int>(count), x + begin * hidden + column, hidden,
                   column < hidden, [&](int i, int t) {
                     return first + i < experts ? logits_gradient[(begin + t) * experts + first + i]
                                                : 0.0f;
                   });
  if (column >= hidden) return;
#pragma unroll
  for (int i = 0; i < router_sums; ++i) {
    if (first + i >= experts) continue;
    sums_of_pieces[(Index{blockIdx.z} * experts + first + i) * hidden + column] = sums[i];
  }
}

/// Adds the sums of the pieces of an element, in order.
template <class G>
struct AddPieces {
  const float* sums_of_pieces;
  Index size;
  G* w_gradient;
  bool accumulate;
  __device__ void operator()(Index i) const {
    float total = 0;
    for (Index piece = 0; piece < router_pieces; ++piece) total += sums_of_pieces[piece * size + i];
    const float before = accumulate ? static_cast<float>(w_gradient[i]) : 0.0f;
    w_gradient[i] = G(before + total);
  }
};

/// See router_weight_gradient.
template <class T, class G>
void router_weight_gradient_body(TensorView<const float, 2, Cuda> logits_gradient,
                                 TensorView<const T, 2, Cuda> x, TensorView<G, 2, Cuda> w_gradient,
                                 bool accumulate, const Context<Cuda>& context) {
  constexpr const char* name = "router_weight_gradient";
  const Index experts = w_gradient.extent(0);
  const Index hidden = w_gradient.extent(1);
  const Index tokens = x.extent(0);
  auto* sums = workspace_of<float>(context, router_workspace(experts, hidden), name);
  const dim3 blocks(static_cast<unsigned>(ceil_divide(experts, router_sums)),
                    static_cast<unsigned>(ceil_divide(hidden, router_threads)),
                    static_cast<unsigned>(router_pieces));
  launch(name, router_weight_gradient_kernel<T>, blocks, router_threads, 0, context,
         logits_gradient.data(), x.data(), tokens, static_cast<int>(experts), hidden,
         ceil_divide(tokens, router_pieces), sums);
  for_each_index(name, w_gradient.size(), context,
                 AddPieces<G>{sums, w_gradient.size(), w_gradient.data(), accumulate});
}

}  // namespace octavo::detail
