/// @file
/// Initial values of parameters and master weights on the `Cpu` device.
#pragma once

#include <octavo/kernels/initialize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See initialize_values.
template <class W>
void initialize_values_body(TensorView<W, 1, Cpu> weight, const InitialValues& values,
                            const Context<Cpu>& context) {
  parallel_for(weight.extent(0), 1, context,
               [&](Index i) { weight.data()[i] = W(initial_value(values, i)); });
}

/// See widen.
template <class W>
void widen_body(TensorView<const W, 1, Cpu> weight, TensorView<float, 1, Cpu> master,
                const Context<Cpu>& context) {
  parallel_for(weight.extent(0), 1, context,
               [&](Index i) { master.data()[i] = static_cast<float>(weight.data()[i]); });
}

}  // namespace octavo::detail
