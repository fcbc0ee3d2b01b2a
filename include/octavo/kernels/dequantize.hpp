/// @file
/// Dequantisation of a matrix.
#pragma once

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

}  // namespace octavo

#include <octavo/kernels/cpu/dequantize.hpp>
