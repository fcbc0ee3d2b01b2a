/// @file
/// What attention runs through on the `Cuda` device, and its workspace. Needs no CUDA, so that any
/// machine can plan memory.
#pragma once

#include <octavo/attention/attention.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>

namespace octavo {

/// cuDNN runs sequences that are multiples of this many tokens.
inline constexpr Index cudnn_attention_multiple = 64;

namespace detail {

/// The largest head_dim of the own kernels: on tensor cores, and in FP32.
inline constexpr int own_attention_dim = 128;
inline constexpr int simple_attention_dim = 256;

/// Queries or keys that a block of the own kernels works on, and the tokens of a sequence that the
/// most blocks in a grid's second dimension cover.
inline constexpr int attention_rows = 128;
inline constexpr Index own_attention_tokens = Index{65535} * attention_rows;

/// Throws ConfigError where the own kernels cannot run attention. Every model needs them, cuDNN or
/// not: texts of every length are generated, of which cuDNN gets those in 64s.
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
  require<ConfigError>(shape.tokens <= own_attention_tokens, "a sequence has ", shape.tokens,
                       " tokens, but attention in bf16 on Cuda takes at most ",
                       own_attention_tokens, "; choose a shorter one");
}

/// Bytes of workspace that the own kernels need: the backward's deltas.
inline std::size_t own_attention_workspace(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.rows() * shape.heads.heads) * sizeof(float);
}

/// Bytes of workspace that cuDNN's backward needs at most, where it cannot be asked: softmax sums
/// and an FP32 accumulator of the queries' gradient, and where heads share KV heads, gradients of
/// keys and values for each head. The forward needs none. A deterministic backward adds nothing up
/// with atomics: it keeps the gradients of all scores, in BF16. Rows are counted as cuDNN's tiles
/// of 128 cover them.
/// @note what cuDNN asks for on a GPU counts in place of it: see attention_limits
inline std::size_t cudnn_attention_workspace(const AttentionShape& shape, bool deterministic) {
  const Index tokens = round_up(shape.tokens, 128);
  const Index rows = shape.sequences * tokens * shape.heads.heads;
  const Index shared = shape.heads.heads == shape.heads.kv_heads ? 0 : 2;
  const Index row = 4 + shape.heads.head_dim * (4 + 2 * shared) + (deterministic ? 2 * tokens : 0);
  constexpr Index slack = Index{1} << 20;
  return static_cast<std::size_t>(rows * row + slack);
}

/// Bytes of workspace that cuDNN asked for, or else what it needs at most.
inline std::size_t cudnn_workspace(AttentionPass pass, const AttentionShape& shape,
                                   const DeviceLimits<Cuda>& limits) {
  const bool forward = pass == AttentionPass::forward;
  if (limits.cudnn_answer) {
    return forward ? limits.cudnn_answer->forward : limits.cudnn_answer->backward;
  }
  return forward ? 0 : cudnn_attention_workspace(shape, limits.deterministic);
}

/// The kernels that attention can run through.
enum class AttentionKernels { octavo, cudnn, cudnn_deterministic };

/// Those that it does. cuDNN serves BF16, and sequences in 64s: it compiles a plan for each length,
/// which lengths that are met once, such as those of a text that is being generated, do not repay.
template <class T>
AttentionKernels attention_kernels(AttentionPass pass, const AttentionShape& shape,
                                   const DeviceLimits<Cuda>& limits) {
  const bool fits = shape.tokens % cudnn_attention_multiple == 0;
  if (!std::is_same_v<T, Bf16> || !limits.cudnn || !fits) return AttentionKernels::octavo;
  if (pass == AttentionPass::forward || !limits.deterministic) return AttentionKernels::cudnn;
  const bool refused = limits.cudnn_answer && !limits.cudnn_answer->refusal.empty();
  const bool small = cudnn_workspace(pass, shape, limits) <= limits.most_deterministic_workspace;
  return small && !refused ? AttentionKernels::cudnn_deterministic : AttentionKernels::octavo;
}

}  // namespace detail

/// What runs attention of format `T` on the `Cuda` device: "cudnn", "cudnn deterministic" or
/// "octavo". Octavo's own kernels always are deterministic, and so is cuDNN's forward; its
/// deterministic backward runs where one is asked for and its workspace is within the limits.
/// @param limits  those of `attention_limits` where there is a GPU
/// @throws ConfigError  for a head_dim or a length that the own kernels do not run, which every
///                      model needs
template <class T = Bf16>
const char* attention_implementation(AttentionPass pass, const AttentionShape& shape,
                                     const DeviceLimits<Cuda>& limits) {
  detail::require_own_attention(shape, std::is_same_v<T, Bf16>);
  constexpr std::array names{"octavo", "cudnn", "cudnn deterministic"};
  return names[static_cast<std::size_t>(detail::attention_kernels<T>(pass, shape, limits))];
}

/// Why a deterministic backward runs in Octavo's own kernels where the forward runs through cuDNN;
/// empty where it does not.
/// @param limits  see attention_implementation
template <class T = Bf16>
std::string attention_fallback(const AttentionShape& shape, const DeviceLimits<Cuda>& limits) {
  const auto kernels = [&](AttentionPass pass) {
    return detail::attention_kernels<T>(pass, shape, limits);
  };
  if (kernels(AttentionPass::forward) == detail::AttentionKernels::octavo ||
      kernels(AttentionPass::backward) != detail::AttentionKernels::octavo) {
    return {};
  }
  if (limits.cudnn_answer && !limits.cudnn_answer->refusal.empty()) {
    return limits.cudnn_answer->refusal;
  }
  return message("cuDNN's deterministic backward takes a workspace of ",
                 detail::cudnn_workspace(AttentionPass::backward, shape, limits),
                 " bytes, of which ", limits.most_deterministic_workspace, " are allowed");
}

/// Bytes of workspace that attention of this shape and format needs, through whatever each pass
/// runs.
template <class T = Bf16>
std::size_t attention_workspace(const AttentionShape& shape, const DeviceLimits<Cuda>& limits) {
  std::size_t bytes = detail::own_attention_workspace(shape);
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    if (detail::attention_kernels<T>(pass, shape, limits) != detail::AttentionKernels::octavo) {
      bytes = std::max(bytes, detail::cudnn_workspace(pass, shape, limits));
    }
  }
  return bytes;
}

}  // namespace octavo
