/// @file
/// Adapters of fused linear layers on the `Cuda` device.
#pragma once

#include <octavo/kernels/adapter.hpp>
#include <octavo/kernels/cuda/for_each.cuh>

namespace octavo OCTAVO_ABI::detail {

template <class T>
struct SpreadAdapters {
  const T* stacked;
  AdapterLayout layout;
  T* spread;
  __device__ void operator()(Index place) const {
    const Index i = layout.stacked(place / layout.width, place % layout.width);
    spread[place] = i < 0 ? T(0.0f) : T(layout.scale * static_cast<float>(stacked[i]));
  }
};

template <class G>
struct StackAdapterGradients {
  const G* spread;
  AdapterLayout layout;
  G* gradient;
  bool accumulate;
  __device__ void operator()(Index i) const {
    const float before = accumulate ? static_cast<float>(gradient[i]) : 0.0f;
    // Rounded as on the `Cpu`, where the sum is not fused with the product.
    const float scaled = __fmul_rn(layout.scale, static_cast<float>(spread[layout.spread(i)]));
    gradient[i] = G(__fadd_rn(before, scaled));
  }
};

/// See spread_adapters.
template <class T>
void spread_adapters_body(TensorView<const T, 2, Cuda> stacked, const AdapterLayout& layout,
                          TensorView<T, 2, Cuda> spread, const Context<Cuda>& context) {
  kernels::for_each_index("spread_adapters", spread.size(), context,
                          SpreadAdapters<T>{stacked.data(), layout, spread.data()});
}

/// See stack_adapter_gradients.
template <class G>
void stack_adapter_gradients_body(TensorView<const G, 2, Cuda> spread_gradient,
                                  const AdapterLayout& layout, TensorView<G, 2, Cuda> gradient,
                                  bool accumulate, const Context<Cuda>& context) {
  kernels::for_each_index(
      "stack_adapter_gradients", gradient.size(), context,
      StackAdapterGradients<G>{spread_gradient.data(), layout, gradient.data(), accumulate});
}

}  // namespace octavo::detail
