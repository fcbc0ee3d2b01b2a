/// @file
/// The LayerNorm layer: weight and bias, and the normalisation of a layer's input.
#pragma once

#include <octavo/kernels/layer_norm.hpp>
#include <octavo/layers/parameter.hpp>

namespace octavo OCTAVO_ABI {

/// Layer normalisation over rows of `Hidden` features. A norm of a `ResidualBranch`.
/// @tparam T  format of weights and activations
/// @tparam G  format of the gradients of weight and bias
template <class T, int Hidden, class G, Device D>
class LayerNorm {
 public:
  /// Values per token that the backward needs: the mean and the inverse standard deviation.
  static constexpr Index statistics = 2;

  void declare(const std::string& name, float epsilon) {
    weight_.declare(name + ".weight", 1, Hidden, Initial::ones());
    bias_.declare(name + ".bias", 1, Hidden, Initial::zeros());
    epsilon_ = epsilon;
  }

  /// Writes the normalised rows of `x` to the operand `y`.
  /// @param x     [tokens, Hidden]
  /// @param kept  [statistics · tokens], for the backward
  template <LinearPrecision P>
  void forward(TensorView<const T, 2, D> x, const Operand<P, OperandKind::input, D>& y,
               TensorView<float, 1, D> kept, const Context<D>& context) const {
    layer_norm_forward(x, weight_.vector(), bias_.vector(), epsilon_, y, kept, context);
  }

  /// Adds the gradient of `x` to `x_gradient`, and those of weight and bias to their gradients.
  void backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> x,
                TensorView<const float, 1, D> kept, TensorView<T, 2, D> x_gradient,
                const Context<D>& context) const {
    layer_norm_backward(y_gradient, x, weight_.vector(), kept, x_gradient,
                        weight_.gradient_vector(), bias_.gradient_vector(), context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(weight_);
    visitor(bias_);
  }

 private:
  Parameter<T, G, D> weight_;
  Parameter<T, G, D> bias_;
  float epsilon_ = 0;
};

}  // namespace octavo
