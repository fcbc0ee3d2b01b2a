/// @file
/// Dequantisation on the `Cpu` device.
#pragma once

#include <octavo/kernels/dequantize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Dequantises one row.
template <class W, class Granularity, class T>
void dequantize_row(QuantizedView<W, Granularity, Layout::row_major, Cpu> source, Index row,
                    TensorView<T, 2, Cpu> values) {
  const Index columns = source.inner();
  const float tensor_scale = has_tensor_scale<Granularity> ? tensor_scale_inverse(source) : 1.0f;
  for (Index column = 0; column < columns; ++column) {
    const Index scale = scale_index<Granularity>(row, column, source.outer(), columns);
    const Index place = row * columns + column;
    values.data()[place] = T(static_cast<float>(source.data()[place]) *
                             static_cast<float>(source.scale_inverses()[scale]) * tensor_scale);
  }
}

/// See dequantize.
template <class W, class Granularity, class T>
void dequantize_body(QuantizedView<W, Granularity, Layout::row_major, Cpu> source,
                     TensorView<T, 2, Cpu> values, const Context<Cpu>& context) {
  parallel_for(source.outer(), source.inner(), context,
               [&](Index row) { dequantize_row(source, row, values); });
}

/// See dequantize_experts.
template <class W, class Granularity, class T>
void dequantize_experts_body(QuantizedView<W, Granularity, Layout::row_major, Cpu> source,
                             const ExpertRows<Cpu>& rows, TensorView<T, 2, Cpu> values,
                             const Context<Cpu>& context) {
  const Index rows_per_expert = source.outer() / rows.experts();
  const std::int32_t* offsets = rows.offsets.data();
  parallel_for(source.outer(), source.inner(), context, [&](Index row) {
    const Index expert = row / rows_per_expert;
    if (offsets[expert] != offsets[expert + 1]) dequantize_row(source, row, values);
  });
}

}  // namespace octavo::detail
