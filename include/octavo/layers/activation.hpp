/// @file
/// The activations of MLPs, as types.
#pragma once

#include <octavo/kernels/gelu.hpp>
#include <octavo/kernels/swiglu.hpp>

namespace octavo OCTAVO_ABI {

/// silu(gate) · up: Llama's. An activation of one's own has the same members.
struct SwiGlu {
  /// The name of the projection that the activation works on.
  static constexpr const char* projection = "gate_up";
  /// Columns of that projection for each column of the result.
  static constexpr int inputs = 2;
  /// Whether the backward can make the gradient of the projection's bias.
  static constexpr bool sums_bias = false;
  /// The forward is silu(gate) · up, the gates first: a product of few rows may make it in its
  /// place. An activation with another forward leaves it out.
  static constexpr bool is_silu_gate = true;

  /// @param wide  [tokens, inputs · ffn]
  /// @param y     [tokens, ffn], an operand
  template <class T, class Y, Device D>
  static void forward(TensorView<const T, 2, D> wide, const Y& y, const Context<D>& context) {
    swiglu_forward(wide, y, context);
  }
  /// @param y_gradient     [tokens, ffn]
  /// @param wide           [tokens, inputs · ffn]
  /// @param wide_gradient  [tokens, inputs · ffn], an operand
  /// @param bias_gradient  [inputs · ffn], added to; empty without a bias
  template <class T, class Gradient, class G, Device D>
  static void backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> wide,
                       const Gradient& wide_gradient, TensorView<G, 1, D> bias_gradient,
                       const Context<D>& context) {
    (void)bias_gradient;
    swiglu_backward(y_gradient, wide, wide_gradient, context);
  }
};

/// gelu(x) in its tanh form: GPT-2's.
struct Gelu {
  static constexpr const char* projection = "up";
  static constexpr int inputs = 1;
  static constexpr bool sums_bias = true;

  template <class T, class Y, Device D>
  static void forward(TensorView<const T, 2, D> wide, const Y& y, const Context<D>& context) {
    gelu_forward(wide, y, context);
  }
  template <class T, class Gradient, class G, Device D>
  static void backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> wide,
                       const Gradient& wide_gradient, TensorView<G, 1, D> bias_gradient,
                       const Context<D>& context) {
    gelu_backward(y_gradient, wide, wide_gradient, bias_gradient, context);
  }
};

}  // namespace octavo
