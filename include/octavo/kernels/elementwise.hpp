/// @file
/// Sums and multiples of matrices, element by element.
#pragma once

#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y += x.
/// @param x  [rows, columns]
/// @param y  [rows, columns]; must not alias x
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class T, Device D>
void add(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, const Context<D>& context) {
  check_shape("add", "x", x, y.shape());
  add_body(x, y, context);
}

/// Computes y *= factor.
/// @param y  [rows, columns]
/// @note enqueues; does not synchronise
template <class T, Device D>
void multiply(float factor, TensorView<T, 2, D> y, const Context<D>& context) {
  multiply_body(factor, y, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/elementwise.hpp>
