/// @file
/// Workspace of attention on the `Cuda` device. Needs no CUDA, so that any machine can plan memory.
#pragma once

#include <octavo/attention/attention.hpp>

#include <algorithm>
#include <type_traits>

namespace octavo {

/// What runs a pass of attention of format `T` on the `Cuda` device. In BF16 that is cuDNN where
/// the limits have it and sequences are multiples of 64 tokens, else own kernels: cuDNN compiles a
/// plan for each length, which lengths that are met once, such as those of a text that is being
/// generated, do not repay, and it refuses sequences of one token. Its backward adds up the
/// gradient of queries in an order of its own, so own kernels run where equal bits are asked for.
/// FP32 runs through plain own kernels.
/// @return "cudnn" or "octavo"
template <class T>
constexpr const char* attention_implementation(AttentionPass pass, const AttentionShape& shape,
                                               const DeviceLimits<Cuda>& limits) {
  constexpr Index cudnn_multiple = 64;
  const bool repeats = pass == AttentionPass::forward || !limits.deterministic;
  const bool cudnn =
      std::is_same_v<T, Bf16> && limits.cudnn && repeats && shape.tokens % cudnn_multiple == 0;
  return cudnn ? "cudnn" : "octavo";
}

namespace detail {

/// Bytes of workspace that the own kernels need: the backward's deltas.
inline std::size_t own_attention_workspace(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.rows() * shape.heads.heads) * sizeof(float);
}

/// Bytes of workspace that cuDNN's backward needs at most: softmax sums and an FP32 accumulator of
/// the queries' gradient, and where heads share KV heads, gradients of keys and values for each
/// head. The forward needs none. Rows are counted as cuDNN's tiles of 128 cover them.
/// @note the plans check it against what cuDNN asks for
inline std::size_t cudnn_attention_workspace(const AttentionShape& shape) {
  const Index rows = shape.sequences * round_up(shape.tokens, 128) * shape.heads.heads;
  const Index shared = shape.heads.heads == shape.heads.kv_heads ? 0 : 2;
  const Index bytes = rows * (4 + shape.heads.head_dim * (4 + 2 * shared));
  constexpr Index slack = Index{1} << 20;
  return static_cast<std::size_t>(bytes + slack);
}

}  // namespace detail

/// Bytes of workspace that attention of this shape needs, through whatever it runs.
inline std::size_t attention_workspace(const AttentionShape& shape,
                                       const DeviceLimits<Cuda>& limits) {
  const std::size_t own = detail::own_attention_workspace(shape);
  return limits.cudnn ? std::max(own, detail::cudnn_attention_workspace(shape)) : own;
}

}  // namespace octavo
