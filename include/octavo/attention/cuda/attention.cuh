/// @file
/// Causal attention on the `Cuda` device, through the implementation chosen by
/// `attention_implementation`.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cuda/own_attention.cuh>
#include <octavo/attention/cuda/simple_attention.cuh>
#include <octavo/attention/cuda/workspace.hpp>
#if defined(OCTAVO_WITH_CUDNN)
#include <octavo/attention/cuda/cudnn_documents.cuh>
#endif

#include <string_view>
#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// See attention_limits. Creates cuDNN's plans for the shape, which its first use would otherwise
/// create.
/// @throws ConfigError  if the built-in kernels do not support the head_dim or length
inline void add_attention_limits(const AttentionShape& shape, bool is_bf16,
                                 DeviceLimits<Cuda>& limits, const Context<Cuda>& context) {
  require_own_attention(shape, is_bf16);
  limits.cudnn = limits.cudnn && is_bf16;
#if defined(OCTAVO_WITH_CUDNN)
  AttentionShape in_storage = shape;  // the backward may run in cuDNN after an 8-bit forward
  in_storage.options.forward = AttentionForward::storage;
  const bool uses_cudnn = is_bf16 && attention_kernels<Bf16>(AttentionPass::forward, in_storage,
                                                             limits) != AttentionKernels::octavo;
  if (uses_cudnn && shape.rows() > 0 && find_cudnn_support(shape, limits) == nullptr) {
    limits.cudnn_support.emplace_back(
        cudnn_key(shape),
        context.state<CudnnAttention>().query_support(shape, limits.deterministic));
  }
#else
  static_cast<void>(context);
#endif
}

/// See attention_forward.
template <class T>
const char* attention_forward_body(const AttentionShape& shape, TensorView<T, 2, Cuda> qkv,
                                   const Documents<Cuda>& documents, TensorView<T, 2, Cuda> output,
                                   TensorView<float, 1, Cuda> log_sum_exp,
                                   const Context<Cuda>& context) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, float>,
                "attention on Cuda supports bf16 and fp32; choose one of them");
  const char* by = attention_implementation<T>(AttentionPass::forward, shape,
                                               attention_limits<T>(shape, context));
  if constexpr (std::is_same_v<T, float>) {
    simple_attention_forward(shape, qkv, documents, output, log_sum_exp, context);
  } else {
    if (shape.options.forward == AttentionForward::eight_bit) {
      eight_bit_attention_forward<T>(shape, qkv, documents, output, log_sum_exp, context);
      return by;
    }
#if defined(OCTAVO_WITH_CUDNN)
    if (std::string_view(by) != "octavo") {
      context.state<CudnnAttention>().forward(
          shape, make_cudnn_documents(shape, documents, context), qkv.data(), output.data(),
          log_sum_exp.data(), context);
      return by;
    }
#endif
    own_attention_forward<T>(shape, qkv, documents, output, log_sum_exp, context);
  }
  return by;
}

/// See attention_backward.
template <class T>
const char* attention_backward_body(const AttentionShape& shape, TensorView<const T, 2, Cuda> qkv,
                                    const Documents<Cuda>& documents,
                                    TensorView<const T, 2, Cuda> output,
                                    TensorView<const T, 2, Cuda> output_gradient,
                                    TensorView<const float, 1, Cuda> log_sum_exp,
                                    TensorView<T, 2, Cuda> qkv_gradient,
                                    const Context<Cuda>& context) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, float>,
                "attention on Cuda supports bf16 and fp32; choose one of them");
  const char* by = attention_implementation<T>(AttentionPass::backward, shape,
                                               attention_limits<T>(shape, context));
  if constexpr (std::is_same_v<T, float>) {
    simple_attention_backward(shape, qkv, documents, output, output_gradient, log_sum_exp,
                              qkv_gradient, context);
  } else {
    const bool is_own = std::string_view(by) == "octavo";
    if (is_own) {
      own_attention_backward<T>(shape, qkv, documents, output, output_gradient, log_sum_exp,
                                qkv_gradient, context);
    }
#if defined(OCTAVO_WITH_CUDNN)
    if (!is_own) {
      context.state<CudnnAttention>().backward(
          shape, make_cudnn_documents(shape, documents, context), qkv.data(), output.data(),
          output_gradient.data(), log_sum_exp.data(), qkv_gradient.data(), context);
    }
#endif
    if (shape.options.forward == AttentionForward::eight_bit) {
      rotate_attention_gradients<T>(shape, qkv_gradient, context);
    }
  }
  return by;
}

}  // namespace octavo::detail
