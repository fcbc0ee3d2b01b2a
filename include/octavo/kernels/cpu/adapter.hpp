/// @file
/// Adapters of fused linear layers on the `Cpu` device.
#pragma once

#include <octavo/kernels/adapter.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See spread_adapters.
template <class T>
void spread_adapters_body(TensorView<const T, 2, Cpu> stacked, const AdapterLayout& layout,
                          TensorView<T, 2, Cpu> spread, const Context<Cpu>& context) {
  parallel_for(spread.extent(0), layout.width, context, [&](Index row) {
    for (Index column = 0; column < layout.width; ++column) {
      const Index i = layout.stacked(row, column);
      spread.row(row)[column] =
          i < 0 ? T(0.0f) : T(layout.scale * static_cast<float>(stacked.data()[i]));
    }
  });
}

/// See stack_adapter_gradients.
template <class G>
void stack_adapter_gradients_body(TensorView<const G, 2, Cpu> spread_gradient,
                                  const AdapterLayout& layout, TensorView<G, 2, Cpu> gradient,
                                  bool accumulate, const Context<Cpu>& context) {
  parallel_for(gradient.size(), 1, context, [&](Index i) {
    G& target = gradient.data()[i];
    const float before = accumulate ? static_cast<float>(target) : 0.0f;
    const float spread = static_cast<float>(spread_gradient.data()[layout.spread(i)]);
    target = G(before + layout.scale * spread);
  });
}

}  // namespace octavo::detail
