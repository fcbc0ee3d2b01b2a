/// @file
/// Dequantisation on the `Cpu` device.
#pragma once

#include <octavo/kernels/dequantize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See dequantize.
template <class W, class Granularity, class T>
void dequantize_body(QuantizedView<W, Granularity, Layout::row_major, Cpu> source,
                     TensorView<T, 2, Cpu> values, const Context<Cpu>& context) {
  const Index columns = source.inner();
  parallel_for(source.outer(), columns, context, [&](Index row) {
    for (Index column = 0; column < columns; ++column) {
      const Index scale = scale_index<Granularity>(row, column, source.outer(), columns);
      const Index place = row * columns + column;
      values.data()[place] = T(static_cast<float>(source.data()[place]) *
                               static_cast<float>(source.scale_inverses()[scale]));
    }
  });
}

}  // namespace octavo::detail
