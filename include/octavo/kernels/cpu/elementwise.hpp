/// @file
/// Sums and multiples of matrices on the `Cpu` device.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/kernels/elementwise.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See add.
template <class T>
void add_body(TensorView<const T, 2, Cpu> x, TensorView<T, 2, Cpu> y, const Context<Cpu>& context) {
  parallel_for(y.extent(0), y.extent(1), context, [&](Index row) {
    const T* from = x.row(row);
    T* to = y.row(row);
    for (Index c = 0; c < y.extent(1); ++c) {
      to[c] = T(static_cast<float>(to[c]) + static_cast<float>(from[c]));
    }
  });
}

/// See multiply.
template <class T>
void multiply_body(float factor, TensorView<T, 2, Cpu> y, const Context<Cpu>& context) {
  parallel_for(y.extent(0), y.extent(1), context, [&](Index row) {
    T* to = y.row(row);
    for (Index c = 0; c < y.extent(1); ++c) to[c] = T(factor * static_cast<float>(to[c]));
  });
}

}  // namespace octavo::detail
