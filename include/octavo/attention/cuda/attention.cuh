/// @file
/// Causal attention on the `Cuda` device: in BF16 through cuDNN where the program is compiled with
/// it (OCTAVO_WITH_CUDNN) and sequences are multiples of 64 tokens, else through own kernels. FP32
/// always runs through plain own kernels. workspace.hpp decides.
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

/// The choices that a context has for attention in BF16.
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

namespace detail {

/// The limits that a context's settings give attention, before any library is asked.
/// @throws ConfigError  if they want cuDNN and the program is compiled without it
inline DeviceLimits<Cuda> attention_settings_limits(const Context<Cuda>& context) {
  DeviceLimits<Cuda> limits = context;
  limits.cudnn = attention_settings(context).library == AttentionLibrary::cudnn;
#if !defined(OCTAVO_WITH_CUDNN)
  require<ConfigError>(!limits.cudnn,
                       "attention is to run through cuDNN, but this program is compiled without "
                       "it; choose AttentionLibrary::octavo, or configure the build where cuDNN "
                       "and its frontend are found");
#endif
  return limits;
}

}  // namespace detail

/// See attention_limits. Makes cuDNN's plans of the shape, which its first use would make else.
inline DeviceLimits<Cuda> attention_limits_body(const AttentionShape& shape, bool is_bf16,
                                                const Context<Cuda>& context) {
  DeviceLimits<Cuda> limits = detail::attention_settings_limits(context);
  limits.cudnn = limits.cudnn && is_bf16;
#if defined(OCTAVO_WITH_CUDNN)
  if (limits.cudnn && shape.rows() > 0 && shape.tokens % cudnn_attention_multiple == 0) {
    limits.cudnn_workspace =
        context.state<detail::CudnnAttention>().workspace(shape, limits.deterministic);
  }
#endif
  return limits;
}

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
    const DeviceLimits<Cuda> limits = detail::attention_settings_limits(context);
    const auto kernels = detail::attention_kernels<T>(AttentionPass::forward, shape, limits);
    if (kernels == detail::AttentionKernels::octavo) {
      detail::own_attention_forward(shape, qkv, output, log_sum_exp, context);
      return;
    }
#if defined(OCTAVO_WITH_CUDNN)
    context.state<detail::CudnnAttention>().forward(shape, qkv.data(), output.data(),
                                                    log_sum_exp.data(), context);
#endif
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
    const DeviceLimits<Cuda> limits = attention_limits<T>(shape, context);
    const auto kernels = detail::attention_kernels<T>(AttentionPass::backward, shape, limits);
    if (kernels == detail::AttentionKernels::octavo) {
      detail::own_attention_backward(shape, qkv, output, output_gradient, log_sum_exp, qkv_gradient,
                                     context);
      return;
    }
#if defined(OCTAVO_WITH_CUDNN)
    context.state<detail::CudnnAttention>().backward(shape, qkv.data(), output.data(),
                                                     output_gradient.data(), log_sum_exp.data(),
                                                     qkv_gradient.data(), context);
#endif
  }
}

}  // namespace octavo
