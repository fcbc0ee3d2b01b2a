/// @file
/// The GEMMs of a linear layer, for every precision.
#pragma once

#include <octavo/gemm/manifest.hpp>
#include <octavo/tensor/bf16_element.hpp>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// The result of a GEMM, with an optional addend and bias.
template <class T, Device D>
struct GemmOutput {
  TensorView<T, 2, D> result;        ///< [m, n]
  TensorView<const T, 2, D> addend;  ///< [m, n], added before rounding; empty: nothing. May be
                                     ///< `result` itself
  TensorView<const T, 1, D> bias{};  ///< [n], added to each row before rounding; empty: nothing
};

namespace detail {

template <class T, Device D>
void check_gemm(const char* operation, Index m, Index n, Index k_a, Index k_b,
                const GemmOutput<T, D>& y) {
  require<ShapeError>(k_a == k_b, operation, ": the operands' reduced dimensions are ", k_a,
                      " and ", k_b, ", but must be equal");
  check_shape(operation, "result", y.result, {m, n});
  if (!y.addend.empty()) check_shape(operation, "addend", y.addend, {m, n});
  if (!y.bias.empty()) check_shape(operation, "bias", y.bias, {n});
}

template <class Ga, class Gb>
constexpr void check_scales() {
  static_assert(scales_match<Ga, Gb>,
                "matmul: the scales of the operands are incompatible; quantise both with one "
                "recipe: both PerTensor, both PerRow, both PerBlock<1, 32, E8M0>, or PerBlock<1, "
                "128, float> with the same or PerBlock<128, 128, float>");
}

/// Whether a GEMM has dense operands of one format, writable or not. A writable view converts to
/// the required type, but the overload that rejects all other operands would match it better.
template <class A, class B, class Y>
inline constexpr bool are_dense = false;
template <class A, class B, class T, Device D>
inline constexpr bool are_dense<TensorView<A, 2, D>, TensorView<B, 2, D>, GemmOutput<T, D>> =
    std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>;

/// False, evaluated once `T` is known.
template <class T>
inline constexpr bool no_such_operands = false;

/// Checks the reduced dimension: the FP8 GEMMs of the emulated hardware reduce 16 elements at a
/// time.
inline void check_fp8_reduction(const char* operation, Index k) {
  require<ShapeError>(k % 16 == 0, operation, ": the reduced dimension is ", k,
                      ", but FP8 GEMMs need a multiple of 16; change the number of tokens (batch x "
                      "sequence length) or the layer's sizes");
}

}  // namespace detail

/// Computes y = x · Wᵀ (+ addend) (+ bias), accumulated in FP32.
/// @param x  [tokens, in]
/// @param w  [out, in]
/// @param y  [tokens, out]
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class T, Device D>
[[nodiscard]] GemmRun matmul_forward(TensorView<const T, 2, D> x, TensorView<const T, 2, D> w,
                                     const GemmOutput<T, D>& y, const Context<D>& context) {
  detail::check_gemm("matmul_forward", x.extent(0), w.extent(0), x.extent(1), w.extent(1), y);
  return matmul_dense_body(x, false, w, true, y, context);
}

/// Computes dx = dy · W, accumulated in FP32.
/// @param y_gradient  [tokens, out]
/// @param w           [out, in]
/// @param x_gradient  [tokens, in]
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class T, Device D>
[[nodiscard]] GemmRun matmul_input_gradient(TensorView<const T, 2, D> y_gradient,
                                            TensorView<const T, 2, D> w,
                                            const GemmOutput<T, D>& x_gradient,
                                            const Context<D>& context) {
  detail::check_gemm("matmul_input_gradient", y_gradient.extent(0), w.extent(1),
                     y_gradient.extent(1), w.extent(0), x_gradient);
  return matmul_dense_body(y_gradient, false, w, false, x_gradient, context);
}

/// Computes dW = dyᵀ · x (+ addend), accumulated in FP32.
/// @param y_gradient  [tokens, out]
/// @param x           [tokens, in]
/// @param w_gradient  [out, in]
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class T, class Gradient, Device D>
[[nodiscard]] GemmRun matmul_weight_gradient(TensorView<const T, 2, D> y_gradient,
                                             TensorView<const T, 2, D> x,
                                             const GemmOutput<Gradient, D>& w_gradient,
                                             const Context<D>& context) {
  detail::check_gemm("matmul_weight_gradient", y_gradient.extent(1), x.extent(1),
                     y_gradient.extent(0), x.extent(0), w_gradient);
  return matmul_dense_body(y_gradient, true, x, false, w_gradient, context);
}

/// Factors of a product and its addend.
struct GemmFactors {
  float product = 1.0f;
  float addend = 1.0f;
};

/// Computes result = product · op(a) · op(b) + addend · C, accumulated in FP32 and rounded to BF16
/// once.
/// @param a, b  matrices of BF16 values; op transposes if the flag is set
/// @param y     the result and C, which may be empty; neither may be a or b. No bias
/// @note enqueues; does not synchronise; on `Cuda` uses `matmul_workspace` bytes of the context's
/// workspace, on `Cpu` none
template <class T, Device D>
void matmul_bf16(TensorView<const T, 2, D> a, bool transpose_a, TensorView<const T, 2, D> b,
                 bool transpose_b, const GemmFactors& factors, const GemmOutput<T, D>& y,
                 const Context<D>& context) {
  static_assert(std::is_same_v<T, Bf16Element<D>>,
                "matmul_bf16: matrices must have elements of Bf16Element<D>");
  detail::check_gemm("matmul_bf16", a.extent(transpose_a ? 1 : 0), b.extent(transpose_b ? 0 : 1),
                     a.extent(transpose_a ? 0 : 1), b.extent(transpose_b ? 1 : 0), y);
  matmul_bf16_body(a, transpose_a, b, transpose_b, factors, y, context);
}

/// Computes y = x · Wᵀ (+ addend) (+ bias) on quantised operands, with `GemmAccumulation::fast` if
/// the scales support it.
/// @param x  [tokens, in]
/// @param w  [out, in]
/// @param y  [tokens, out]
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class X, class W, class Gx, class Gw, class T, Device D>
[[nodiscard]] GemmRun matmul_forward(QuantizedView<X, Gx, Layout::row_major, D> x,
                                     QuantizedView<W, Gw, Layout::row_major, D> w,
                                     const GemmOutput<T, D>& y, const Context<D>& context) {
  detail::check_gemm("matmul_forward", x.outer(), w.outer(), x.inner(), w.inner(), y);
  detail::check_scales<Gx, Gw>();
  detail::check_fp8_reduction("matmul_forward", x.inner());
  return matmul_quantized_body(GemmAccumulation::fast, x, w, y, context);
}

/// Computes dx = dy · W on quantised operands.
/// @param y_gradient    [tokens, out]
/// @param w             [in, out]: the transposed copy
/// @param x_gradient    [tokens, in]
/// @param accumulation  used if the scales support it
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class Y, class W, class Gy, class Gw, class T, Device D>
[[nodiscard]] GemmRun matmul_input_gradient(QuantizedView<Y, Gy, Layout::row_major, D> y_gradient,
                                            QuantizedView<W, Gw, Layout::transposed, D> w,
                                            const GemmOutput<T, D>& x_gradient,
                                            GemmAccumulation accumulation,
                                            const Context<D>& context) {
  detail::check_gemm("matmul_input_gradient", y_gradient.outer(), w.outer(), y_gradient.inner(),
                     w.inner(), x_gradient);
  detail::check_scales<Gy, Gw>();
  detail::check_fp8_reduction("matmul_input_gradient", w.inner());
  return matmul_quantized_body(accumulation, y_gradient, w, x_gradient, context);
}

/// Computes dx = dy · W on quantised operands with `GemmAccumulation::full`.
template <class Y, class W, class Gy, class Gw, class T, Device D>
[[nodiscard]] GemmRun matmul_input_gradient(QuantizedView<Y, Gy, Layout::row_major, D> y_gradient,
                                            QuantizedView<W, Gw, Layout::transposed, D> w,
                                            const GemmOutput<T, D>& x_gradient,
                                            const Context<D>& context) {
  return matmul_input_gradient(y_gradient, w, x_gradient, GemmAccumulation::full, context);
}

/// Computes dW = dyᵀ · x (+ addend) on quantised operands.
/// @param y_gradient    [out, tokens]: the transposed copy
/// @param x             [in, tokens]: the transposed copy
/// @param w_gradient    [out, in]
/// @param accumulation  used if the scales support it
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class Y, class X, class Gy, class Gx, class Gradient, Device D>
[[nodiscard]] GemmRun matmul_weight_gradient(QuantizedView<Y, Gy, Layout::transposed, D> y_gradient,
                                             QuantizedView<X, Gx, Layout::transposed, D> x,
                                             const GemmOutput<Gradient, D>& w_gradient,
                                             GemmAccumulation accumulation,
                                             const Context<D>& context) {
  detail::check_gemm("matmul_weight_gradient", y_gradient.outer(), x.outer(), y_gradient.inner(),
                     x.inner(), w_gradient);
  detail::check_scales<Gy, Gx>();
  detail::check_fp8_reduction("matmul_weight_gradient", x.inner());
  return matmul_quantized_body(accumulation, y_gradient, x, w_gradient, context);
}

/// Computes dW = dyᵀ · x (+ addend) on quantised operands with `GemmAccumulation::full`.
template <class Y, class X, class Gy, class Gx, class Gradient, Device D>
[[nodiscard]] GemmRun matmul_weight_gradient(QuantizedView<Y, Gy, Layout::transposed, D> y_gradient,
                                             QuantizedView<X, Gx, Layout::transposed, D> x,
                                             const GemmOutput<Gradient, D>& w_gradient,
                                             const Context<D>& context) {
  return matmul_weight_gradient(y_gradient, x, w_gradient, GemmAccumulation::full, context);
}

/// Computes result = a · bᵀ (+ addend) (+ bias) for the values of quantised operands: see
/// `Emulated`.
/// @param a  [m, k]
/// @param b  [n, k]
/// @param y  [m, n]
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `emulated_matmul_workspace` bytes of the context's
/// workspace
template <class A, class B, class Ga, class Gb, Layout La, Layout Lb, class T, Device D>
[[nodiscard]] GemmRun matmul_emulated(QuantizedView<A, Ga, La, D> a, QuantizedView<B, Gb, Lb, D> b,
                                      const GemmOutput<T, D>& y, const Context<D>& context) {
  detail::check_gemm("matmul_emulated", a.outer(), b.outer(), a.inner(), b.inner(), y);
  detail::check_scales<Ga, Gb>();
  detail::check_fp8_reduction("matmul_emulated", a.inner());
  return matmul_emulated_body(a, b, y, context);
}

/// @name Calls with invalid operands
///
/// Selected for any other operands, to report in one line which operands are required.
/// @{

template <class X, class W, class Y, class C>
  requires(!detail::are_dense<X, W, Y>)
[[nodiscard]] GemmRun matmul_forward(const X&, const W&, const Y&, const C&) {
  static_assert(detail::no_such_operands<X>,
                "matmul_forward(x, w, y, context): x and w must be two TensorView<T, 2, D> "
                "and y a GemmOutput<T, D>, or x and w two QuantizedView with Layout::row_major; "
                "the transposed copies are for the gradients");
  return {};
}

template <class X, class W, class Y, class C>
  requires(!detail::are_dense<X, W, Y>)
[[nodiscard]] GemmRun matmul_input_gradient(const X&, const W&, const Y&, const C&) {
  static_assert(
      detail::no_such_operands<X>,
      "matmul_input_gradient(dy, w, dx, context): dy and w must be two "
      "TensorView<T, 2, D> and dx a GemmOutput<T, D>, or dy a QuantizedView with Layout::row_major "
      "and w one with Layout::transposed");
  return {};
}

template <class X, class W, class Y, class C>
  requires(!detail::are_dense<X, W, Y>)
[[nodiscard]] GemmRun matmul_weight_gradient(const X&, const W&, const Y&, const C&) {
  static_assert(detail::no_such_operands<X>,
                "matmul_weight_gradient(dy, x, dw, context): dy and x must be two "
                "TensorView<T, 2, D>, or two QuantizedView with Layout::transposed");
  return {};
}

/// @}

}  // namespace octavo

#include <octavo/gemm/cpu/matmul.hpp>
