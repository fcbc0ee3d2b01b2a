/// @file
/// Sums and multiples of matrices on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/elementwise.hpp>

namespace octavo OCTAVO_ABI::detail {

/// One run per thread: y += x, or y *= factor if `x` is null.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    elementwise_kernel(const T* x, float factor, T* y, Index size) {
  const Index begin = global_thread() * run_size;
  if (begin >= size) return;
  const Index count = size - begin;
  Floats values = load_floats<Vectors>(y + begin, count);
  if (x == nullptr) {
#pragma unroll
    for (float& value : values.values) value *= factor;
  } else {
    const Floats added = load_floats<Vectors>(x + begin, count);
#pragma unroll
    for (int i = 0; i < run_size; ++i) values.values[i] += added.values[i];
  }
  store_floats<Vectors>(y + begin, count, values);
}

template <class T>
void enqueue_elementwise(const char* name, const T* x, float factor, TensorView<T, 2, Cuda> y,
                         const Context<Cuda>& context) {
  const Index runs = ceil_divide(y.size(), Index{run_size});
  const bool vectors =
      x == nullptr ? rows_are_vectors(y.size(), y.data()) : rows_are_vectors(y.size(), x, y.data());
  launch(name, vectors ? elementwise_kernel<true, T> : elementwise_kernel<false, T>,
         ceil_divide(runs, Index{elementwise_threads}), elementwise_threads, 0, context, x, factor,
         y.data(), y.size());
}

/// See add.
template <class T>
void add_body(TensorView<const T, 2, Cuda> x, TensorView<T, 2, Cuda> y,
              const Context<Cuda>& context) {
  enqueue_elementwise("add", x.data(), 1.0f, y, context);
}

/// See multiply.
template <class T>
void multiply_body(float factor, TensorView<T, 2, Cuda> y, const Context<Cuda>& context) {
  enqueue_elementwise("multiply", static_cast<const T*>(nullptr), factor, y, context);
}

}  // namespace octavo::detail
