/// @file
/// The initial values of parameters on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/initialize.hpp>

namespace octavo {
namespace detail {

/// One element a thread.
template <class W>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    initialize_kernel(W* weight, Index count, const InitialValues values) {
  const Index i = global_thread();
  if (i < count) weight[i] = W(initial_value(values, i));
}

}  // namespace detail

/// See initialize_values.
template <class W>
void initialize_values_body(TensorView<W, 1, Cuda> weight, const InitialValues& values,
                            const Context<Cuda>& context) {
  detail::launch("initialize_values", detail::initialize_kernel<W>,
                 ceil_divide(weight.extent(0), detail::elementwise_threads),
                 detail::elementwise_threads, 0, context, weight.data(), weight.extent(0), values);
}

}  // namespace octavo
