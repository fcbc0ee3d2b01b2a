/// @file
/// Choice of the attention implementation on the `Cuda` device, and its workspace. Needs no CUDA,
/// so that any machine can plan memory.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/eight_bit.hpp>
#include <octavo/precision/gpu_precisions.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The minimum sequence length for cuDNN: shorter sequences leave most of a tile empty, and cuDNN
/// has no backward for a single token.
inline constexpr Index cudnn_attention_least = 64;

namespace detail {

/// The maximum head_dim of the built-in kernels, on tensor cores and in FP32.
inline constexpr int own_attention_dim = 256;
inline constexpr int simple_attention_dim = 256;
/// The maximum head_dim of the 8-bit forward.
inline constexpr int eight_bit_attention_dim = 128;

/// Queries or keys that a block of the built-in kernels processes; in the backward of heads wider
/// than 128, half of them.
inline constexpr int attention_rows = 128;

/// Returns the longest sequence whose blocks fit in a grid's second dimension.
constexpr Index own_attention_tokens(Index head_dim) {
  return Index{65535} * (head_dim <= 128 ? attention_rows : attention_rows / 2);
}

/// Throws ConfigError if the built-in kernels do not support the attention. Every model needs them,
/// even with cuDNN, because they run shapes that are used once, as in text generation.
inline void require_own_attention(const AttentionShape& shape, bool is_bf16) {
  const Index dim = shape.heads.head_dim;
  if (!is_bf16) {
    require<ConfigError>(dim <= simple_attention_dim, "head_dim is ", dim,
                         ", but attention in fp32 on Cuda needs at most ", simple_attention_dim,
                         "; choose another model");
    return;
  }
  require<ConfigError>(dim % 8 == 0 && dim <= own_attention_dim, "head_dim is ", dim,
                       ", but attention in bf16 on Cuda needs a multiple of 8, at most ",
                       own_attention_dim, "; choose another model");
  if (shape.options.forward == AttentionForward::eight_bit) {
    require<ConfigError>(dim <= eight_bit_attention_dim, "head_dim is ", dim,
                         ", but the 8-bit forward of attention on Cuda needs at most ",
                         eight_bit_attention_dim,
                         "; choose a precision without ForAttention<EightBitForward>");
  }
  require<ConfigError>(shape.tokens <= own_attention_tokens(dim), "a sequence has ", shape.tokens,
                       " tokens, but attention in bf16 on Cuda supports at most ",
                       own_attention_tokens(dim), "; choose a shorter one");
}

/// Returns the bytes of workspace that the built-in kernels need: the backward's deltas.
inline std::size_t own_attention_workspace(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.rows() * shape.heads.heads) * sizeof(float);
}

/// Returns the number of columns of the 8-bit forward's tiles, to which heads are padded.
constexpr Index eight_bit_attention_columns(Index head_dim) { return head_dim <= 64 ? 64 : 128; }

/// Returns the tiles of the 8-bit copies of queries, keys and values.
inline Index eight_bit_attention_tiles(const AttentionShape& shape) {
  return shape.sequences * (shape.heads.heads + 2 * shape.heads.kv_heads) *
         ceil_divide(shape.tokens, eight_bit_attention_rows);
}

/// Returns the bytes of workspace that the 8-bit forward needs: the copies and their factors.
inline std::size_t eight_bit_attention_workspace(const AttentionShape& shape) {
  const Index tile = eight_bit_attention_rows * eight_bit_attention_columns(shape.heads.head_dim);
  return static_cast<std::size_t>(eight_bit_attention_tiles(shape) * (tile + Index{sizeof(float)}));
}

/// Returns an upper bound of the workspace that cuDNN's backward needs, for machines where it
/// cannot be queried: softmax sums, an FP32 accumulator of the queries' gradient and, if heads
/// share KV heads, gradients of keys and values for each head. The forward needs none. A
/// deterministic backward uses no atomics: it stores the gradients of all scores, in BF16. Rows are
/// rounded up to cuDNN's tiles of 128. With documents, gradients have the stride of fused rows;
/// gradients for each head have that stride times the number of heads in a group. Heads whose width
/// is not a multiple of 16, and the gradients of scores, are stored as if each document were as
/// long as a sequence.
/// @note on a GPU, the workspace that cuDNN requests is used instead: see attention_limits
inline std::size_t cudnn_attention_workspace(const AttentionShape& shape, bool deterministic) {
  const auto [heads, kv_heads, dim] = shape.heads;
  const bool documents = shape.most_documents > 0;
  const Index tokens = round_up(shape.tokens, 128);
  const Index longest = tokens * (documents ? shape.most_documents : shape.sequences);
  const Index shared = heads == kv_heads ? 0 : 2;
  Index bytes = longest * heads * (4 + dim * (4 + 2 * shared));
  if (documents && dim % 16 == 0) {
    bytes = round_up(shape.rows(), 128) *
            (4 * heads + 4 * shape.heads.columns() * (1 + shared * heads / kv_heads));
  }
  if (deterministic) bytes += longest * heads * 2 * tokens;
  constexpr Index slack = Index{1} << 20;
  return static_cast<std::size_t>(bytes + slack);
}

/// Returns the bytes of one of the tables that describe documents to cuDNN, and of all four. They
/// are at the beginning of the workspace.
inline std::size_t cudnn_document_table(const AttentionShape& shape) {
  constexpr Index alignment = 256;
  return static_cast<std::size_t>(
      round_up((shape.most_documents + 1) * Index{sizeof(std::int64_t)}, alignment));
}
inline std::size_t cudnn_document_tables(const AttentionShape& shape) {
  return shape.most_documents == 0 ? 0 : 4 * cudnn_document_table(shape);
}

/// Returns the key of a shape among `cudnn_support`.
inline std::array<Index, 4> cudnn_key(const AttentionShape& shape) {
  return {shape.heads.heads, shape.heads.kv_heads, shape.heads.head_dim, shape.window()};
}

/// Returns cuDNN's support of a shape, or null if cuDNN was not queried.
inline const CudnnSupport* find_cudnn_support(const AttentionShape& shape,
                                              const DeviceLimits<Cuda>& limits) {
  for (const auto& [key, support] : limits.cudnn_support) {
    if (key == cudnn_key(shape)) return &support;
  }
  return nullptr;
}

/// Returns the bytes of workspace that cuDNN requested, or otherwise the upper bound.
inline std::size_t cudnn_workspace(AttentionPass pass, const AttentionShape& shape,
                                   const DeviceLimits<Cuda>& limits) {
  const bool forward = pass == AttentionPass::forward;
  if (const CudnnSupport* support = find_cudnn_support(shape, limits)) {
    return forward ? support->forward : support->backward;
  }
  return forward ? 0 : cudnn_attention_workspace(shape, limits.deterministic);
}

/// The kernels through which attention can run.
enum class AttentionKernels { octavo, cudnn, cudnn_deterministic, octavo_eight_bit };

/// Returns the kernels that run. cuDNN supports BF16 and sequences that are long enough. It
/// compiles a plan for each shape, which is not worthwhile for a shape that is used once.
template <class T>
AttentionKernels attention_kernels(AttentionPass pass, const AttentionShape& shape,
                                   const DeviceLimits<Cuda>& limits) {
  if (pass == AttentionPass::forward && shape.options.forward == AttentionForward::eight_bit) {
    require_eight_bit_attention(limits);
    return AttentionKernels::octavo_eight_bit;
  }
  const bool fits = shape.tokens >= cudnn_attention_least && !shape.once;
  if (!std::is_same_v<T, Bf16> || !limits.cudnn || !fits) return AttentionKernels::octavo;
  const CudnnSupport* support = find_cudnn_support(shape, limits);
  if (support != nullptr && !support->forward_refusal.empty()) return AttentionKernels::octavo;
  if (pass == AttentionPass::forward) return AttentionKernels::cudnn;
  if (support != nullptr && !support->refusal.empty()) return AttentionKernels::octavo;
  if (!limits.deterministic) return AttentionKernels::cudnn;
  const bool small = cudnn_workspace(pass, shape, limits) <= limits.max_deterministic_workspace;
  return small ? AttentionKernels::cudnn_deterministic : AttentionKernels::octavo;
}

}  // namespace detail

/// Returns the implementation of attention of format `T` on the `Cuda` device: "cudnn", "cudnn
/// deterministic", "octavo" or "octavo 8-bit", the 8-bit forward. The built-in kernels are always
/// deterministic, as is cuDNN's forward; its deterministic backward runs if determinism is
/// requested and its workspace is within the limits.
/// @param limits  those of `attention_limits` if there is a GPU
/// @throws ConfigError  if the built-in kernels, which every model needs, do not support the
///                      head_dim or length
template <class T = Bf16>
const char* attention_implementation(AttentionPass pass, const AttentionShape& shape,
                                     const DeviceLimits<Cuda>& limits) {
  detail::require_own_attention(shape, std::is_same_v<T, Bf16>);
  constexpr std::array names{"octavo", "cudnn", "cudnn deterministic", "octavo 8-bit"};
  return names[static_cast<std::size_t>(detail::attention_kernels<T>(pass, shape, limits))];
}

/// Returns the reason why a pass runs in the built-in kernels although cuDNN runs similar shapes;
/// empty if it does not.
/// @param limits  see attention_implementation
template <class T = Bf16>
std::string attention_fallback(AttentionPass pass, const AttentionShape& shape,
                               const DeviceLimits<Cuda>& limits) {
  DeviceLimits<Cuda> default_limits;
  default_limits.cudnn = limits.cudnn;
  const auto octavo = detail::AttentionKernels::octavo;
  if (detail::attention_kernels<T>(pass, shape, default_limits) == octavo ||
      detail::attention_kernels<T>(pass, shape, limits) != octavo) {
    return {};
  }
  const CudnnSupport* support = detail::find_cudnn_support(shape, limits);
  if (support != nullptr && !support->forward_refusal.empty()) return support->forward_refusal;
  if (support != nullptr && !support->refusal.empty()) return support->refusal;
  return message("cuDNN's deterministic backward needs a workspace of ",
                 detail::cudnn_workspace(AttentionPass::backward, shape, limits),
                 " bytes, of which only ", limits.max_deterministic_workspace, " are allowed");
}

/// Returns the bytes of workspace that attention of this shape and format needs, for the
/// implementation of each pass.
template <class T = Bf16>
std::size_t attention_workspace(const AttentionShape& shape, const DeviceLimits<Cuda>& limits) {
  std::size_t bytes = detail::own_attention_workspace(shape);
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const auto kernels = detail::attention_kernels<T>(pass, shape, limits);
    if (kernels == detail::AttentionKernels::octavo_eight_bit) {
      bytes = std::max(bytes, detail::eight_bit_attention_workspace(shape));
    } else if (kernels != detail::AttentionKernels::octavo) {
      bytes = std::max(bytes, detail::cudnn_document_tables(shape) +
                                  detail::cudnn_workspace(pass, shape, limits));
    }
  }
  return bytes;
}

}  // namespace octavo
