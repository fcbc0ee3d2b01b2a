/// @file
/// The initial values of parameters and of their masters on the `Cuda` device.
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

/// One element a thread.
template <class W>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    widen_kernel(const W* weight, float* master, Index count) {
  const Index i = global_thread();
  if (i < count) master[i] = static_cast<float>(weight[i]);
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

/// See widen.
template <class W>
void widen_body(TensorView<const W, 1, Cuda> weight, TensorView<float, 1, Cuda> master,
                const Context<Cuda>& context) {
  detail::launch(
      "widen", detail::widen_kernel<W>, ceil_divide(weight.extent(0), detail::elementwise_threads),
      detail::elementwise_threads, 0, context, weight.data(), master.data(), weight.extent(0));
}

}  // namespace octavo
