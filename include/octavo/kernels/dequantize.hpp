/// @file
/// Dequantisation of a matrix.
#pragma once

#include <octavo/tensor/expert_rows.hpp>
#include <octavo/tensor/quantized_view.hpp>

namespace octavo OCTAVO_ABI {

/// Computes values = round(element · scale), the values of a quantised matrix in format T.
/// @tparam W  `E4M3` or `E5M2`, with any granularity of scales
/// @param source  [rows, columns]
/// @param values  [rows, columns]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class W, class Granularity, class T, Device D>
void dequantize(QuantizedView<W, Granularity, Layout::row_major, D> source,
                TensorView<T, 2, D> values, const Context<D>& context) {
  check_shape("dequantize", "values", values, {source.outer(), source.inner()});
  dequantize_body(source, values, context);
}

/// Does the same for the stacked weights of experts. Values of experts without rows are not
/// written.
/// @param source  [experts · out, columns]
/// @param values  [experts · out, columns]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class W, class Granularity, class T, Device D>
void dequantize_experts(QuantizedView<W, Granularity, Layout::row_major, D> source,
                        const ExpertRows<D>& rows, TensorView<T, 2, D> values,
                        const Context<D>& context) {
  check_shape("dequantize_experts", "values", values, {source.outer(), source.inner()});
  require<ShapeError>(source.outer() % rows.experts() == 0, "dequantize_experts: the weight has ",
                      source.outer(), " rows, but must have the same number for each of ",
                      rows.experts(), " experts");
  dequantize_experts_body(source, rows, values, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/dequantize.hpp>
