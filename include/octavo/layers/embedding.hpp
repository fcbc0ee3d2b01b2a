/// @file
/// Token embeddings.
#pragma once

#include <octavo/kernels/elementwise.hpp>
#include <octavo/kernels/embedding.hpp>
#include <octavo/kernels/positions.hpp>
#include <octavo/layers/parameter.hpp>
#include <octavo/layers/shapes.hpp>

#include <cmath>

namespace octavo OCTAVO_ABI {

/// Token embeddings of `Hidden` features.
/// @tparam T  format of weights and activations
/// @tparam G  format of the table's gradient
template <class T, int Hidden, class G, Device D>
class Embedding {
 public:
  /// Declares the table.
  /// @param rows        of the table; rows from `vocabulary` on are padding
  /// @param initial     values of the other rows
  void declare(const std::string& name, Index rows, Index vocabulary, Initial initial) {
    weight_.declare(name + ".weight", rows, Hidden, initial);
    weight_.initialised_rows = vocabulary;
  }

  /// Looks up the embeddings of tokens.
  /// @param tokens  [tokens]
  /// @param batch   the sequences of the batch; ignored
  /// @param y       [tokens, Hidden]
  void forward(TensorView<const std::int32_t, 1, D> tokens,
               [[maybe_unused]] const BatchView<D>& batch, TensorView<T, 2, D> y,
               const Context<D>& context) const {
    embedding_forward(tokens, weight_.weight, y, context);
  }

  /// Adds to the table's gradient.
  /// @param y_gradient  [tokens, Hidden]
  void backward(TensorView<const std::int32_t, 1, D> tokens,
                [[maybe_unused]] const BatchView<D>& batch, TensorView<const T, 2, D> y_gradient,
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

/// Token embeddings of `Hidden` features times √Hidden, as in Gemma. The factor is rounded to the
/// format of the weights.
/// @tparam T  format of weights and activations
/// @tparam G  format of the table's gradient
template <class T, int Hidden, class G, Device D>
class ScaledEmbedding {
 public:
  /// See Embedding::declare.
  void declare(const std::string& name, Index rows, Index vocabulary, Initial initial) {
    tokens_.declare(name, rows, vocabulary, initial);
  }

  /// See Embedding::forward.
  void forward(TensorView<const std::int32_t, 1, D> tokens, const BatchView<D>& batch,
               TensorView<T, 2, D> y, const Context<D>& context) const {
    tokens_.forward(tokens, batch, y, context);
    multiply(factor(), y, context);
  }

  /// Adds to the table's gradient.
  /// @param y_gradient  [tokens, Hidden]; overwritten
  void backward(TensorView<const std::int32_t, 1, D> tokens, const BatchView<D>& batch,
                TensorView<T, 2, D> y_gradient, const Context<D>& context) const {
    multiply(factor(), y_gradient, context);
    tokens_.backward(tokens, batch, y_gradient, context);
  }

  [[nodiscard]] const Parameter<T, G, D>& weight() const { return tokens_.weight(); }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    tokens_.visit(visitor);
  }

 private:
  static float factor() { return static_cast<float>(T(std::sqrt(static_cast<float>(Hidden)))); }

  Embedding<T, Hidden, G, D> tokens_;
};

/// Token embeddings of `Hidden` features with a learned vector for each of `Positions` positions.
/// @tparam T  format of weights and activations
/// @tparam G  format of the tables' gradients
template <class T, int Hidden, int Positions, class G, Device D>
class PositionEmbedding {
 public:
  /// Declares both tables.
  /// @param rows        of the token table; rows from `vocabulary` on are padding
  void declare(const std::string& name, Index rows, Index vocabulary, Initial initial) {
    tokens_.declare(name, rows, vocabulary, initial);
    positions_.declare("positions.weight", Positions, Hidden, initial);
  }

  /// Adds the embeddings of tokens and their positions.
  /// @param tokens  [tokens]
  /// @param batch   has sequences of at most `Positions` tokens
  /// @param y       [tokens, Hidden]
  void forward(TensorView<const std::int32_t, 1, D> tokens, const BatchView<D>& batch,
               TensorView<T, 2, D> y, const Context<D>& context) const {
    position_embedding_forward(tokens, tokens_.weight().weight, positions_.weight,
                               batch.positions(), y, context);
  }

  /// Adds to the tables' gradients.
  /// @param y_gradient  [tokens, Hidden]
  void backward(TensorView<const std::int32_t, 1, D> tokens, const BatchView<D>& batch,
                TensorView<const T, 2, D> y_gradient, const Context<D>& context) const {
    tokens_.backward(tokens, batch, y_gradient, context);
    if (batch.documents.empty()) {
      positions_backward(y_gradient, batch.tokens, positions_.gradient, context);
    } else {
      embedding_backward(batch.documents.positions, y_gradient, positions_.gradient, context);
    }
  }

  /// Returns the token table.
  [[nodiscard]] const Parameter<T, G, D>& weight() const { return tokens_.weight(); }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    tokens_.visit(visitor);
    visitor(positions_);
  }

 private:
  Embedding<T, Hidden, G, D> tokens_;
  Parameter<T, G, D> positions_;
};

}  // namespace octavo
