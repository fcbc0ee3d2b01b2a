/// @file
/// The RMSNorm layer: a weight, and the normalisation of a layer's input.
#pragma once

#include <octavo/kernels/rms_norm.hpp>
#include <octavo/layers/parameter.hpp>

namespace octavo OCTAVO_ABI {

/// Root-mean-square normalisation over rows of `Hidden` features. A norm of a `ResidualBranch`.
/// @tparam T  format of weights and activations
/// @tparam G       format of the weight's gradient
/// @tparam Offset  1 if the weight is stored as its difference from 1, as in Gemma
template <class T, int Hidden, class G, Device D, int Offset = 0>
class RMSNorm {
 public:
  /// Values per token that the backward needs: the inverse root mean square.
  static constexpr Index statistics = 1;

  void declare(const std::string& name, float epsilon) {
    weight_.declare(name + ".weight", 1, Hidden, Offset == 0 ? Initial::ones() : Initial::zeros());
    epsilon_ = epsilon;
  }

  /// Writes the normalised rows of `x` to the operand `y`.
  /// @param x            [tokens, Hidden]
  /// @param inverse_rms  [tokens], kept for the backward
  template <LinearPrecision P>
  void forward(TensorView<const T, 2, D> x, const Operand<P, OperandKind::input, D>& y,
               TensorView<float, 1, D> inverse_rms, const Context<D>& context) const {
    rms_norm_forward(x, {weight_vector(), Offset}, epsilon_, y, inverse_rms, context);
  }

  /// Returns the normalisation of a row, for a GEMM that applies it.
  [[nodiscard]] RowNorm<T, D> row_norm() const
    requires(Offset == 0)
  {
    return {weight_vector(), epsilon_};
  }

  /// Adds the gradient of `x` to `x_gradient`, and that of the weight to its gradient.
  void backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> x,
                TensorView<const float, 1, D> inverse_rms, TensorView<T, 2, D> x_gradient,
                const Context<D>& context) const {
    rms_norm_backward(y_gradient, x, {weight_vector(), Offset}, inverse_rms, x_gradient,
                      weight_.gradient_vector(), context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(weight_);
  }

 private:
  [[nodiscard]] TensorView<const T, 1, D> weight_vector() const { return weight_.vector(); }

  Parameter<T, G, D> weight_;
  float epsilon_ = 0;
};

}  // namespace octavo
