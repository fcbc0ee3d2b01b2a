/// @file
/// Causal attention on the `Cuda` device. In BF16 it runs through cuDNN where the program is
/// compiled with it (OCTAVO_WITH_CUDNN) and sequences are multiples of 64 tokens, else through own
/// kernels: cuDNN compiles a plan for each length, which lengths that are met once, such as those
/// of a text that is being generated, do not repay, and it refuses sequences of one token. FP32
/// always runs through plain own kernels.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cuda/own_attention.cuh>
#include <octavo/attention/cuda/simple_attention.cuh>
#include <octavo/attention/cuda/workspace.hpp>
#if defined(OCTAVO_WITH_CUDNN)
#include <octavo/attention/cuda/cudnn_attention.cuh>
#endif

#include <type_traits>

namespace octavo {

/// What attention in BF16 runs through.
enum class AttentionLibrary { cudnn, octavo };

/// cuDNN runs sequences that are multiples of this many tokens.
inline constexpr Index cudnn_attention_multiple = 64;

/// The choices that a context has for attention in BF16. Octavo's backward gives equal bits for
/// equal inputs, cuDNN's does not: where the context is to be deterministic, Octavo's runs.
struct AttentionSettings {
#if defined(OCTAVO_WITH_CUDNN)
  AttentionLibrary library = AttentionLibrary::cudnn;
#else
  AttentionLibrary library = AttentionLibrary::octavo;
#endif
};

/// The context's settings, to be read or changed before the first step.
inline AttentionSettings& attention_settings(const Context<Cuda>& context) {
  return context.state<AttentionSettings>();
}

/// What runs attention of format `T` in training on the `Cuda` device, unless a context's settings
/// say otherwise: "cudnn" or "octavo".
template <class T = Bf16>
constexpr const char* attention_implementation(Cuda) {
#if defined(OCTAVO_WITH_CUDNN)
  if (std::is_same_v<T, Bf16>) return "cudnn";
#endif
  return "octavo";
}

namespace detail {

/// Whether cuDNN is to run; throws ConfigError if the settings want it and it is not there.
inline bool runs_cudnn(const AttentionSettings& settings, const AttentionShape& shape) {
#if !defined(OCTAVO_WITH_CUDNN)
  require<ConfigError>(settings.library != AttentionLibrary::cudnn,
                       "attention is to run through cuDNN, but this program is compiled without "
                       "it; choose AttentionLibrary::octavo, or configure the build where cuDNN "
                       "and its frontend are found");
#endif
  return settings.library == AttentionLibrary::cudnn &&
         shape.tokens % cudnn_attention_multiple == 0;
}

}  // namespace detail

/// See attention_forward.
template <class T>
void attention_forward_body(const AttentionShape& shape, TensorView<const T, 2, Cuda> qkv,
                            TensorView<T, 2, Cuda> output, TensorView<float, 1, Cuda> log_sum_exp,
                            const Context<Cuda>& context) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, float>,
                "attention on Cuda works on bf16 or fp32; choose one of them");
  if constexpr (std::is_same_v<T, float>) {
    detail::simple_attention_forward(shape, qkv, output, log_sum_exp, context);
  } else {
    if (detail::runs_cudnn(attention_settings(context), shape)) {
#if defined(OCTAVO_WITH_CUDNN)
      context.state<detail::CudnnAttention>().forward(shape, qkv.data(), output.data(),
                                                      log_sum_exp.data(), context);
#endif
    } else {
      detail::own_attention_forward(shape, qkv, output, log_sum_exp, context);
    }
  }
}

/// See attention_backward.
template <class T>
void attention_backward_body(const AttentionShape& shape, TensorView<const T, 2, Cuda> qkv,
                             TensorView<const T, 2, Cuda> output,
                             TensorView<const T, 2, Cuda> output_gradient,
                             TensorView<const float, 1, Cuda> log_sum_exp,
                             TensorView<T, 2, Cuda> qkv_gradient, const Context<Cuda>& context) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, float>,
                "attention on Cuda works on bf16 or fp32; choose one of them");
  if constexpr (std::is_same_v<T, float>) {
    detail::simple_attention_backward(shape, qkv, output, output_gradient, log_sum_exp,
                                      qkv_gradient, context);
  } else {
    if (detail::runs_cudnn(attention_settings(context), shape) && !context.deterministic()) {
#if defined(OCTAVO_WITH_CUDNN)
      context.state<detail::CudnnAttention>().backward(shape, qkv.data(), output.data(),
                                                       output_gradient.data(), log_sum_exp.data(),
                                                       qkv_gradient.data(), context);
#endif
    } else {
      detail::own_attention_backward(shape, qkv, output, output_gradient, log_sum_exp, qkv_gradient,
                                     context);
    }
  }
}

}  // namespace octavo
