/// @file
/// Transformations between the QKV projection and attention, as types.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/key_value_cache.hpp>
#include <octavo/layers/parameter.hpp>
#include <octavo/layers/rope.hpp>
#include <octavo/layers/shapes.hpp>

namespace octavo OCTAVO_ABI {

/// Rotates queries and keys by their position, as in Llama. A custom rotation defines all of these
/// members itself; do not derive from this class, because text generation would still rotate as
/// defined here.
template <BlockShape Shape, class T, class G, Device D>
class Rotation final {
 public:
  /// The position data that blocks receive.
  using Positions = RoPE<D>;
  /// Whether the result overwrites the projection, which the backward then does not need.
  static constexpr bool in_place = true;
  /// Whether the backward can compute the gradient of the projection's bias.
  static constexpr bool sums_bias = true;

  void declare(const std::string&) {}

  /// Rotates the rows of a training batch: row r has rotation r % period of `positions.rotations`.
  /// @param qkv      [tokens, qkv_columns]
  /// @param rotated  [tokens, qkv_columns], including values; `qkv` itself if `in_place`
  void forward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch, const Positions& positions,
               TensorView<T, 2, D> rotated, const Context<D>& context) const {
    const auto [angles, period] = positions.rotations(batch, Shape.rotation);
    rope_forward(qkv, Shape.head_layout(), QkNorm<const T, D>{}, angles, period, rotated, context);
  }

  /// Describes how queries, keys and values of tokens that continue a text are added to its cache:
  /// pairs of a whole head are rotated by a table, or nothing is rotated. Any other rotation has
  /// `append` instead: see `NormalisedRotation`.
  [[nodiscard]] CacheRows<T, D> cache_rows(const BatchView<D>& batch, const Positions& positions,
                                           const KeyValueCache<T, D>& cache) const {
    return {Shape.head_layout(), positions.rotations(batch, Shape.rotation).table,
            batch.documents.positions, cache};
  }

  /// Computes the gradient of the projection, cast for its GEMMs, from that of the rotated values
  /// in `qkv_gradient.values`. `quantize(qkv_gradient, context)` casts it unless a kernel already
  /// does.
  /// @param bias_gradient  of the projection, added to; empty without a bias
  template <class Gradient>
  void backward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch,
                const Positions& positions, const Gradient& qkv_gradient,
                TensorView<G, 1, D> bias_gradient, const Context<D>& context) const {
    const auto [angles, period] = positions.rotations(batch, Shape.rotation);
    const auto rotate_to = [&, table = angles, rows = period](const auto& target) {
      rope_backward(qkv_gradient.values, Shape.head_layout(), qkv, QkNorm<const T, D>{},
                    QkNorm<G, D>{}, table, rows, target, context);
    };
    if (bias_gradient.empty()) return rotate_to(qkv_gradient);
    rotate_to(Operand<T, OperandKind::output_gradient, D>{qkv_gradient.values});
    bias_backward(qkv_gradient, bias_gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&&) {}
};

/// Normalises the heads of queries and keys and then rotates them like `Rotation`, as in Qwen3.
/// Source: Qwen3 technical report, arXiv 2505.09388.
template <BlockShape Shape, class T, class G, Device D>
class NormalisedRotation final {
 public:
  using Positions = RoPE<D>;
  static constexpr bool in_place = false;
  static constexpr bool sums_bias = false;

  void declare(const std::string& name) {
    const Initial initial = Shape.norm_offset == 0 ? Initial::ones() : Initial::zeros();
    query_norm_.declare(name + ".query_norm.weight", 1, Shape.head_dim, initial);
    key_norm_.declare(name + ".key_norm.weight", 1, Shape.head_dim, initial);
  }

  void forward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch, const Positions& positions,
               TensorView<T, 2, D> rotated, const Context<D>& context) const {
    const auto [angles, period] = positions.rotations(batch, Shape.rotation);
    rope_forward(qkv, Shape.head_layout(), weights(), angles, period, rotated, context);
  }

  /// Normalises and rotates, in place, the queries of tokens that continue a text, and caches their
  /// keys, treated in the same way, and their values. The position of row r in the text is
  /// `batch.documents.positions[r]`, for any division of the text into calls. A rotation that has
  /// already rotated queries and keys passes no table to `append_to_cache`.
  /// @param qkv  [tokens, qkv_columns]
  void append(TensorView<T, 2, D> qkv, const BatchView<D>& batch, const Positions& positions,
              const KeyValueCache<T, D>& cache, const Context<D>& context) const {
    append_to_cache(qkv, Shape.head_layout(), weights(),
                    positions.rotations(batch, Shape.rotation).table, batch.documents.positions,
                    cache, context);
  }

  template <class Gradient>
  void backward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch,
                const Positions& positions, const Gradient& qkv_gradient, TensorView<G, 1, D>,
                const Context<D>& context) const {
    const QkNorm<G, D> gradients{query_norm_.gradient_vector(), key_norm_.gradient_vector(),
                                 Shape.norm_epsilon};
    const auto [angles, period] = positions.rotations(batch, Shape.rotation);
    rope_backward(qkv_gradient.values, Shape.head_layout(), qkv, weights(), gradients, angles,
                  period, qkv_gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(query_norm_);
    visitor(key_norm_);
  }

 private:
  [[nodiscard]] QkNorm<const T, D> weights() const {
    return {query_norm_.vector(), key_norm_.vector(), Shape.norm_epsilon, Shape.norm_offset};
  }

  Parameter<T, G, D> query_norm_;
  Parameter<T, G, D> key_norm_;
};

/// The empty position data of blocks whose positions are part of the embedding.
template <Device D>
struct NoPositions {
  void allocate(Arena<D>&, BatchShape) {}
  void initialize_sync(const Context<D>&) {}
  void place(const BatchView<D>&, const Context<D>&) const {}
};

/// Passes the projection to attention unchanged, because positions are part of the embedding, as in
/// GPT-2.
template <BlockShape Shape, class T, class G, Device D>
class NoRotation final {
 public:
  using Positions = NoPositions<D>;
  static constexpr bool in_place = true;
  static constexpr bool sums_bias = true;

  void declare(const std::string&) {}

  void forward(TensorView<const T, 2, D>, const BatchView<D>&, const Positions&,
               TensorView<T, 2, D>, const Context<D>&) const {}

  [[nodiscard]] CacheRows<T, D> cache_rows(const BatchView<D>& batch, const Positions&,
                                           const KeyValueCache<T, D>& cache) const {
    return {Shape.head_layout(), {}, batch.documents.positions, cache};
  }

  template <class Gradient>
  void backward(TensorView<const T, 2, D>, const BatchView<D>&, const Positions&,
                const Gradient& qkv_gradient, TensorView<G, 1, D> bias_gradient,
                const Context<D>& context) const {
    if (bias_gradient.empty()) {
      quantize(qkv_gradient, context);
    } else {
      bias_backward(qkv_gradient, bias_gradient, context);
    }
  }

  template <class Visitor>
  void visit(Visitor&&) {}
};

}  // namespace octavo
