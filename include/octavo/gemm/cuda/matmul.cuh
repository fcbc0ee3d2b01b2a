/// @file
/// GEMMs on the `Cuda` device, through cuBLASLt.
#pragma once

#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/gemm/cuda/mx_scales.cuh>
#include <octavo/gemm/cuda/plans.cuh>
#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/cuda/dequantize.cuh>
#include <octavo/memory/cuda/buffer.cuh>

#include <bit>

namespace octavo OCTAVO_ABI::detail {

/// Returns the largest power of two, up to 256, to which all addresses are aligned.
template <class... Elements>
std::uint32_t common_alignment(const Elements*... addresses) {
  const auto bits = (std::uintptr_t{256} | ... | reinterpret_cast<std::uintptr_t>(addresses));
  return std::uint32_t{1} << std::countr_zero(bits);
}

/// Describes a GEMM for `GemmPlans::run`.
/// @param key  with the properties that do not follow from the other arguments
template <class A, class B, class Y>
GemmCall gemm_call(GemmKey key, const A* a, const B* b, const GemmVectors& scales,
                   const GemmOutput<Y, Cuda>& y, const Context<Cuda>& context,
                   const GemmFactors& factors = {}, const GemmFactors* device_factors = nullptr) {
  auto* workspace = workspace_of<std::byte>(context, cublas_workspace_bytes, "a GEMM");
  const Y* addend = y.addend.empty() ? y.result.data() : y.addend.data();
  key.m = y.result.extent(0);
  key.n = y.result.extent(1);
  key.a = gemm_format<A>;
  key.b = gemm_format<B>;
  key.result = gemm_format<Y>;
  key.adds = !y.addend.empty();
  key.bias = !y.bias.empty();
  key.alignment = common_alignment(a, b, addend, y.result.data());
  return {key,
          {scales.scales_a, scales.scales_b, y.bias.data()},
          {a, b, addend, y.result.data(), workspace, factors, device_factors}};
}

/// Computes result = op(a) · op(b) + addend + bias for dense operands.
template <class T, class Y>
GemmRun matmul_dense_body(TensorView<const T, 2, Cuda> a, bool transpose_a,
                          TensorView<const T, 2, Cuda> b, bool transpose_b,
                          const GemmOutput<Y, Cuda>& y, const Context<Cuda>& context) {
  static_assert(std::is_same_v<Y, T> || std::is_same_v<Y, float>,
                "matmul on Cuda: the result must have the operands' format or be fp32; choose "
                "fp32 for the weight's gradient");
  GemmKey key;
  key.k = a.extent(transpose_a ? 0 : 1);
  key.transpose_a = transpose_a;
  key.transpose_b = transpose_b;
  context.state<GemmPlans>().run(gemm_call(key, a.data(), b.data(), {}, y, context), context);
  return {FormatTraits<T>::name, FormatTraits<T>::name, cublas_implementation};
}

/// See matmul_bf16.
inline void matmul_bf16_body(TensorView<const Bf16, 2, Cuda> a, bool transpose_a,
                             TensorView<const Bf16, 2, Cuda> b, bool transpose_b,
                             const GemmFactors& factors, const GemmOutput<Bf16, Cuda>& y,
                             const Context<Cuda>& context) {
  GemmKey key;
  key.k = a.extent(transpose_a ? 0 : 1);
  key.transpose_a = transpose_a;
  key.transpose_b = transpose_b;
  context.state<GemmPlans>().run(gemm_call(key, a.data(), b.data(), {}, y, context, factors),
                                 context);
}

/// Checks the reduced dimension of NVFP4 GEMMs, whose rows must be multiples of 16 bytes.
inline void check_nvfp4_reduction(Index k) {
  require<ShapeError>(
      k % 32 == 0, "matmul: the reduced dimension is ", k,
      ", but NVFP4 GEMMs need a multiple of 32 on Cuda; change the number of tokens "
      "(batch x sequence length) or the layer's sizes");
}

/// Computes result = a · bᵀ + addend + bias for quantised operands.
template <class A, class B, class Ga, class Gb, Layout La, Layout Lb, class Y>
GemmRun matmul_quantized_body(GemmAccumulation accumulation, QuantizedView<A, Ga, La, Cuda> a,
                              QuantizedView<B, Gb, Lb, Cuda> b, const GemmOutput<Y, Cuda>& y,
                              const Context<Cuda>& context) {
  static_assert(!(std::is_same_v<A, E5M2> && std::is_same_v<B, E5M2>),
                "matmul on Cuda: no GPU multiplies E5M2 by E5M2; choose Hybrid or E4M3Only");
  static_assert(!std::is_same_v<Y, E4M3> || std::is_same_v<Ga, PerTensor>,
                "matmul on Cuda: only operands with one scale per tensor have a result in E4M3");
  GemmKey key;
  key.k = a.inner();
  key.transpose_b = true;
  key.scales_a = cublas_scales<Ga>();
  key.scales_b = cublas_scales<Gb>();
  key.fast_accumulation = accumulates_fast(accumulation, key.scales_a, key.scales_b);
  GemmVectors scales{a.scale_inverses(), b.scale_inverses()};
  GemmFactors* factors = nullptr;
  if constexpr (has_swizzled_scales<Ga>) {
    if constexpr (has_tensor_scale<Ga>) check_nvfp4_reduction(a.inner());
    const std::size_t bytes = matmul_workspace(a.outer(), b.outer(), a.inner(), context.limits());
    std::byte* memory = workspace_of<std::byte>(context, bytes, "a GEMM") + cublas_workspace_bytes;
    auto* a_memory = reinterpret_cast<typename Ga::Scale*>(memory + gemm_factor_bytes);
    auto* b_memory = a_memory + swizzle_scales(a, a_memory, context);
    swizzle_scales(b, b_memory, context);
    scales = {a_memory, b_memory};
    if constexpr (has_tensor_scale<Ga>) {
      factors = reinterpret_cast<GemmFactors*>(memory);
      set_gemm_factors(a, b, !y.addend.empty(), factors, context);
    }
  }
  context.state<GemmPlans>().run(
      gemm_call(key, a.data(), b.data(), scales, y, context, {}, factors), context);
  return {FormatTraits<A>::name, FormatTraits<B>::name, cublas_implementation};
}

/// See matmul_emulated: a GEMM in BF16 of both operands, dequantised in the workspace without
/// the scales of the tensors.
template <class A, class B, class Ga, class Gb, Layout La, Layout Lb, class Y>
GemmRun matmul_emulated_body(QuantizedView<A, Ga, La, Cuda> a, QuantizedView<B, Gb, Lb, Cuda> b,
                             const GemmOutput<Y, Cuda>& y, const Context<Cuda>& context) {
  const Index k = a.inner();
  std::byte* memory =
      workspace_of<std::byte>(
          context, emulated_matmul_workspace(a.outer(), b.outer(), k, context.limits()), "a GEMM") +
      cublas_workspace_bytes;
  auto* factors = reinterpret_cast<GemmFactors*>(memory);
  auto* a_memory = reinterpret_cast<Bf16*>(memory + gemm_factor_bytes);
  Bf16* b_memory = a_memory + round_up(a.outer() * k, 128);
  using Values = TensorView<Bf16, 2, Cuda>;
  dequantize_with<AppliedScales::of_blocks>(a, nullptr, 1, Values{a_memory, {a.outer(), k}},
                                            context);
  dequantize_with<AppliedScales::of_blocks>(b, nullptr, 1, Values{b_memory, {b.outer(), k}},
                                            context);
  set_gemm_factors(a, b, !y.addend.empty(), factors, context);
  GemmKey key;
  key.k = k;
  key.transpose_b = true;
  context.state<GemmPlans>().run(gemm_call(key, a_memory, b_memory, {}, y, context, {}, factors),
                                 context);
  return {FormatTraits<A>::name, FormatTraits<B>::name, emulated_implementation};
}

}  // namespace octavo::detail
