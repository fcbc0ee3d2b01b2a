/// @file
/// The table of token embeddings.
#pragma once

#include <octavo/kernels/embedding.hpp>
#include <octavo/layers/parameter.hpp>

namespace octavo {

/// Token embeddings of `Hidden` features.
/// @tparam T  format of weights and activations
/// @tparam G  format of the table's gradient
template <class T, int Hidden, class G, Device D>
class Embedding {
 public:
  /// @param rows        of the table; those from `vocabulary` on pad it
  /// @param initial     values of the others
  void declare(const std::string& name, Index rows, Index vocabulary, Initial initial) {
    weight_.declare(name + ".weight", rows, Hidden, initial);
    weight_.initialised_rows = vocabulary;
  }

  /// @param tokens  [tokens]
  /// @param y       [tokens, Hidden]
  void forward(TensorView<const std::int32_t, 1, D> tokens, TensorView<T, 2, D> y,
               const Context<D>& context) const {
    const TensorView<const T, 2, D> table = weight_.weight;
    embedding_forward(tokens, table, y, context);
  }

  /// Adds to the table's gradient.
  /// @param y_gradient  [tokens, Hidden]
  void backward(TensorView<const std::int32_t, 1, D> tokens, TensorView<const T, 2, D> y_gradient,
                const Context<D>& context) const {
    embedding_backward(tokens, y_gradient, weight_.gradient, context);
  }

  [[nodiscard]] const Parameter<T, G, D>& weight() const { return weight_; }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(weight_);
  }

 private:
  Parameter<T, G, D> weight_;
};

}  // namespace octavo
