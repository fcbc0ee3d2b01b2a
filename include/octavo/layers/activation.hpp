/// @file
/// MLP activations as types.
#pragma once

#include <octavo/kernels/gelu.hpp>
#include <octavo/kernels/swiglu.hpp>

namespace octavo OCTAVO_ABI {

/// silu(gate) · up, as in Llama. A custom activation has the same members.
struct SwiGlu {
  /// The name of the projection whose result the activation reads.
  static constexpr const char* projection = "gate_up";
  /// Columns of that projection per column of the result.
  static constexpr int inputs = 2;
  /// Whether the backward can compute the gradient of the projection's bias.
  static constexpr bool sums_bias = false;
  /// Whether the forward is silu(gate) · up with the gates first, which allows a GEMM of few rows
  /// to compute it. Activations with another forward omit this member.
  static constexpr bool is_silu_gate = true;

  /// @param wide  [tokens, inputs · ffn]
  /// @param y     [tokens, ffn], an operand
  template <class T, class Y, Device D>
  static void forward(TensorView<const T, 2, D> wide, const Y& y, const Context<D>& context) {
    swiglu_forward(wide, y, context);
  }
  /// Reads E4M3 (`ActivationInput`), and counts values that may have saturated. Activations that do
  /// not read E4M3 omit this overload.
  /// @param statistics  see `swiglu_forward`
  template <class Y, Device D>
  static void forward(TensorView<const E4M3, 2, D> wide, const Y& y, OperandStatistics* statistics,
                      const Context<D>& context) {
    swiglu_forward(wide, y, statistics, context);
  }
  /// @param y_gradient     [tokens, ffn]
  /// @param wide           [tokens, inputs · ffn]: of the storage format, or of E4M3
  /// @param wide_gradient  [tokens, inputs · ffn], an operand
  /// @param bias_gradient  [inputs · ffn], added to; empty without a bias
  template <class T, class Wide, class Gradient, class G, Device D>
  static void backward(TensorView<const T, 2, D> y_gradient, TensorView<const Wide, 2, D> wide,
                       const Gradient& wide_gradient, TensorView<G, 1, D> bias_gradient,
                       const Context<D>& context) {
    (void)bias_gradient;
    swiglu_backward(y_gradient, wide, wide_gradient, context);
  }
};

/// gelu(gate) · up with gelu's tanh approximation, as in Gemma.
struct GeGlu {
  static constexpr const char* projection = "gate_up";
  static constexpr int inputs = 2;
  static constexpr bool sums_bias = false;

  template <class T, class Y, Device D>
  static void forward(TensorView<const T, 2, D> wide, const Y& y, const Context<D>& context) {
    geglu_forward(wide, y, context);
  }
  template <class Y, Device D>
  static void forward(TensorView<const E4M3, 2, D> wide, const Y& y, OperandStatistics* statistics,
                      const Context<D>& context) {
    geglu_forward(wide, y, statistics, context);
  }
  template <class T, class Wide, class Gradient, class G, Device D>
  static void backward(TensorView<const T, 2, D> y_gradient, TensorView<const Wide, 2, D> wide,
                       const Gradient& wide_gradient, TensorView<G, 1, D>,
                       const Context<D>& context) {
    geglu_backward(y_gradient, wide, wide_gradient, context);
  }
};

/// gelu(x) in its tanh approximation, as in GPT-2.
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

/// Whether an activation reads E4M3 and counts values that may have saturated.
/// @tparam Y  the operand that its forward writes
template <class Activation, class Y, Device D>
inline constexpr bool counts_saturated =
    requires(TensorView<const E4M3, 2, D> wide, const Y& y, OperandStatistics* statistics,
             const Context<D>& context) { Activation::forward(wide, y, statistics, context); };

}  // namespace octavo
