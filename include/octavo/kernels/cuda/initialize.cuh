/// @file
/// Initial values of parameters and master weights on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/initialize.hpp>

namespace octavo OCTAVO_ABI::detail {

template <class W>
struct Initialize {
  W* weight;
  InitialValues values;
  __device__ void operator()(Index i) const { weight[i] = W(initial_value(values, i)); }
};

template <class W>
struct Widen {
  const W* weight;
  float* master;
  __device__ void operator()(Index i) const { master[i] = static_cast<float>(weight[i]); }
};

/// See initialize_values.
template <class W>
void initialize_values_body(TensorView<W, 1, Cuda> weight, const InitialValues& values,
                            const Context<Cuda>& context) {
  kernels::for_each_index("initialize_values", weight.extent(0), context,
                          Initialize<W>{weight.data(), values});
}

/// See widen.
template <class W>
void widen_body(TensorView<const W, 1, Cuda> weight, TensorView<float, 1, Cuda> master,
                const Context<Cuda>& context) {
  kernels::for_each_index("widen", weight.extent(0), context,
                          Widen<W>{weight.data(), master.data()});
}

}  // namespace octavo::detail
