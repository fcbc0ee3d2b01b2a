/// @file
/// The GEMMs of a mixture of experts: one linear layer per expert, on the rows of `ExpertRows`.
///
/// The number of rows of each expert is known only on the device, and a step is recorded once for
/// all batches. Grouped GEMMs that read the sizes from the host, such as those of cuBLAS before
/// 13.4, are therefore not possible, and one GEMM per expert with the worst-case number of rows
/// would be too slow. The rows of an expert begin at multiples of `expert_tile`, so that each tile
/// of the result belongs to one expert (`ExpertRows::tiles`). `Cuda` launches a fixed grid for all
/// tiles of the worst case; tiles of unused rows only write zeros. Padding, at most `expert_tile` -
/// 1 rows per expert, costs time, but needs no branches: its inputs and results are zeros.
#pragma once

#include <octavo/gemm/manifest.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

namespace detail {

template <Device D>
void check_expert_gemm(const char* operation, const ExpertRows<D>& rows, Index x_rows, Index y_rows,
                       Index w_rows) {
  require<ShapeError>(x_rows == rows.rows() && y_rows == rows.rows(), operation,
                      ": the operands have ", x_rows, " and ", y_rows,
                      " rows, but the experts' are ", rows.rows());
  require<ShapeError>(w_rows % rows.experts() == 0, operation, ": the weight has ", w_rows,
                      " rows or columns, but must have the same number for each of ",
                      rows.experts(), " experts");
}

}  // namespace detail

/// Computes y = x · wᵀ with the weight of each row's expert, accumulated in FP32.
/// @param x  [rows, in]; 0 in padding
/// @param w  [experts · out, in]
/// @param y  [rows, out]; 0 in padding and in unused rows
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `expert_gemm_workspace` bytes of the context's
///   workspace
template <class T, Device D>
[[nodiscard]] GemmRun experts_forward(TensorView<const T, 2, D> x, TensorView<const T, 2, D> w,
                                      const ExpertRows<D>& rows, TensorView<T, 2, D> y,
                                      const Context<D>& context) {
  constexpr const char* name = "experts_forward";
  detail::check_expert_gemm(name, rows, x.extent(0), y.extent(0), w.extent(0));
  check_shape(name, "w", w, {rows.experts() * y.extent(1), x.extent(1)});
  return experts_forward_body(x, w, rows, y, context);
}

/// Computes dx = dy · w with the weight of each row's expert, accumulated in FP32.
/// @param y_gradient  [rows, out]; 0 in padding
/// @param w           [experts · out, in]
/// @param x_gradient  [rows, in]; 0 in padding and in unused rows
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `expert_gemm_workspace` bytes of the context's
///   workspace
template <class T, Device D>
[[nodiscard]] GemmRun experts_input_gradient(TensorView<const T, 2, D> y_gradient,
                                             TensorView<const T, 2, D> w, const ExpertRows<D>& rows,
                                             TensorView<T, 2, D> x_gradient,
                                             const Context<D>& context) {
  constexpr const char* name = "experts_input_gradient";
  detail::check_expert_gemm(name, rows, x_gradient.extent(0), y_gradient.extent(0), w.extent(0));
  check_shape(name, "w", w, {rows.experts() * y_gradient.extent(1), x_gradient.extent(1)});
  return experts_input_gradient_body(y_gradient, w, rows, x_gradient, context);
}

/// Computes dw = dyᵀ · x for each expert's rows, accumulated in FP32, which is added to if
/// `accumulate` and overwritten otherwise. An expert without rows has a gradient of 0.
/// @param y_gradient  [rows, out]; 0 in padding
/// @param x           [rows, in]
/// @param w_gradient  [experts · out, in]
/// @return the implementation that ran, for the manifest
/// @note enqueues; does not synchronise; uses `expert_gemm_workspace` bytes of the context's
///   workspace
template <class T, class G, Device D>
[[nodiscard]] GemmRun experts_weight_gradient(TensorView<const T, 2, D> y_gradient,
                                              TensorView<const T, 2, D> x,
                                              const ExpertRows<D>& rows,
                                              TensorView<G, 2, D> w_gradient, bool accumulate,
                                              const Context<D>& context) {
  constexpr const char* name = "experts_weight_gradient";
  detail::check_expert_gemm(name, rows, x.extent(0), y_gradient.extent(0), w_gradient.extent(0));
  check_shape(name, "w_gradient", w_gradient, {rows.experts() * y_gradient.extent(1), x.extent(1)});
  return experts_weight_gradient_body(y_gradient, x, rows, w_gradient, accumulate, context);
}

/// Computes experts_forward on quantised operands, with `GemmAccumulation::fast` if the scales are
/// of tensors or rows. The weight is one operand: a scale per tensor is shared by all experts.
/// @param x  [rows, in]
/// @param w  [experts · out, in]
template <class X, class W, class Gx, class Gw, class T, Device D>
[[nodiscard]] GemmRun experts_forward(QuantizedView<X, Gx, Layout::row_major, D> x,
                                      QuantizedView<W, Gw, Layout::row_major, D> w,
                                      const ExpertRows<D>& rows, TensorView<T, 2, D> y,
                                      const Context<D>& context) {
  constexpr const char* name = "experts_forward";
  detail::check_expert_gemm(name, rows, x.outer(), y.extent(0), w.outer());
  require<ShapeError>(w.inner() == x.inner() && w.outer() == rows.experts() * y.extent(1), name,
                      ": the weight is [", w.outer(), ", ", w.inner(), "], but must be [",
                      rows.experts() * y.extent(1), ", ", x.inner(), "]");
  detail::check_scales<Gx, Gw>();
  detail::check_fp8_reduction(name, x.inner());
  return experts_forward_body(x, w, rows, y, context);
}

/// Computes experts_input_gradient on quantised operands.
/// @param y_gradient  [rows, out]
/// @param w           [in, experts · out]: the transposed copy
template <class Y, class W, class Gy, class Gw, class T, Device D>
[[nodiscard]] GemmRun experts_input_gradient(QuantizedView<Y, Gy, Layout::row_major, D> y_gradient,
                                             QuantizedView<W, Gw, Layout::transposed, D> w,
                                             const ExpertRows<D>& rows,
                                             TensorView<T, 2, D> x_gradient,
                                             const Context<D>& context) {
  constexpr const char* name = "experts_input_gradient";
  detail::check_expert_gemm(name, rows, x_gradient.extent(0), y_gradient.outer(), w.inner());
  const Index columns = rows.experts() * y_gradient.inner();
  require<ShapeError>(w.outer() == x_gradient.extent(1) && w.inner() == columns, name,
                      ": the weight is [", w.outer(), ", ", w.inner(), "], but must be [",
                      x_gradient.extent(1), ", ", columns, "]");
  detail::check_scales<Gy, Gw>();
  detail::check_fp8_reduction(name, y_gradient.inner());
  return experts_input_gradient_body(y_gradient, w, rows, x_gradient, context);
}

/// Computes experts_weight_gradient on quantised operands.
/// @param y_gradient  [out, rows]: the transposed copy
/// @param x           [in, rows]: the transposed copy
template <class Y, class X, class Gy, class Gx, class G, Device D>
[[nodiscard]] GemmRun experts_weight_gradient(
    QuantizedView<Y, Gy, Layout::transposed, D> y_gradient,
    QuantizedView<X, Gx, Layout::transposed, D> x, const ExpertRows<D>& rows,
    TensorView<G, 2, D> w_gradient, bool accumulate, const Context<D>& context) {
  constexpr const char* name = "experts_weight_gradient";
  detail::check_expert_gemm(name, rows, x.inner(), y_gradient.inner(), w_gradient.extent(0));
  check_shape(name, "w_gradient", w_gradient, {rows.experts() * y_gradient.outer(), x.outer()});
  detail::check_scales<Gy, Gx>();
  return experts_weight_gradient_body(y_gradient, x, rows, w_gradient, accumulate, context);
}

}  // namespace octavo

#include <octavo/gemm/cpu/expert_gemms.hpp>
