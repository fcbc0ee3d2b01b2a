/// @file
/// What stands between an attention's projection and the attention itself, as types.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/key_value_cache.hpp>
#include <octavo/layers/parameter.hpp>
#include <octavo/layers/rope.hpp>
#include <octavo/layers/shapes.hpp>

namespace octavo OCTAVO_ABI {

/// Queries and keys are rotated by their position: Llama's. A rotation of one's own has the same
/// members, all of them its own: none can be derived from, because what generates text would go on
/// to rotate as here.
template <BlockShape Shape, class T, class G, Device D>
class Rotation final {
 public:
  /// What blocks are given of positions.
  using Positions = RoPE<D>;
  /// Whether the result takes the place of the projection, which the backward then does not need.
  static constexpr bool in_place = true;
  /// Whether the backward can make the gradient of the projection's bias.
  static constexpr bool sums_bias = false;

  void declare(const std::string&) {}

  /// Of a training session: row r of the batch has rotation r % period of `positions.rotations`.
  /// @param qkv      [tokens, qkv_columns]
  /// @param rotated  [tokens, qkv_columns], values too; `qkv` itself if `in_place`
  void forward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch, const Positions& positions,
               TensorView<T, 2, D> rotated, const Context<D>& context) const {
    const auto [angles, period] = positions.rotations(batch);
    rope_forward(qkv, Shape.head_layout(), QkNorm<const T, D>{}, angles, period, rotated, context);
  }

  /// How queries, keys and values of tokens that go on with a text join its cache: where pairs of a
  /// whole head are rotated by a table, or nothing is. Any other rotation has `append` in its
  /// place: see `NormalisedRotation`.
  [[nodiscard]] CacheRows<T, D> cache_rows(const BatchView<D>& batch, const Positions& positions,
                                           const KeyValueCache<T, D>& cache) const {
    return {Shape.head_layout(), positions.rotations(batch).table, batch.documents.positions,
            cache};
  }

  /// From the gradient of the rotated values, in `qkv_gradient.values`, to that of the projection,
  /// cast for its GEMMs: by `quantize(qkv_gradient, context)`, where no kernel casts on its way.
  /// @param bias_gradient  of the projection, added to; empty without a bias
  template <class Gradient>
  void backward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch,
                const Positions& positions, const Gradient& qkv_gradient,
                [[maybe_unused]] TensorView<G, 1, D> bias_gradient,
                const Context<D>& context) const {
    const auto [angles, period] = positions.rotations(batch);
    rope_backward(qkv_gradient.values, Shape.head_layout(), qkv, QkNorm<const T, D>{},
                  QkNorm<G, D>{}, angles, period, qkv_gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&&) {}
};

/// As `Rotation`, of queries and keys whose heads are normalised before: Qwen3's.
/// Source: Qwen3 technical report, arXiv 2505.09388.
template <BlockShape Shape, class T, class G, Device D>
class NormalisedRotation final {
 public:
  using Positions = RoPE<D>;
  static constexpr bool in_place = false;
  static constexpr bool sums_bias = false;

  void declare(const std::string& name) {
    query_norm_.declare(name + ".query_norm.weight", 1, Shape.head_dim, Initial::ones());
    key_norm_.declare(name + ".key_norm.weight", 1, Shape.head_dim, Initial::ones());
  }

  void forward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch, const Positions& positions,
               TensorView<T, 2, D> rotated, const Context<D>& context) const {
    const auto [angles, period] = positions.rotations(batch);
    rope_forward(qkv, Shape.head_layout(), weights(), angles, period, rotated, context);
  }

  /// Normalises and rotates the queries of tokens that go on with a text, where they are, and
  /// caches their keys, like them, and their values. Row r is at `batch.documents.positions` r of
  /// the text, wherever it was cut. Who has rotated queries and keys already gives
  /// `append_to_cache` no table.
  /// @param qkv  [tokens, qkv_columns]
  void append(TensorView<T, 2, D> qkv, const BatchView<D>& batch, const Positions& positions,
              const KeyValueCache<T, D>& cache, const Context<D>& context) const {
    append_to_cache(qkv, Shape.head_layout(), weights(), positions.rotations(batch).table,
                    batch.documents.positions, cache, context);
  }

  template <class Gradient>
  void backward(TensorView<const T, 2, D> qkv, const BatchView<D>& batch,
                const Positions& positions, const Gradient& qkv_gradient, TensorView<G, 1, D>,
                const Context<D>& context) const {
    const QkNorm<G, D> gradients{query_norm_.gradient_vector(), key_norm_.gradient_vector(),
                                 Shape.norm_epsilon};
    const auto [angles, period] = positions.rotations(batch);
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
    return {query_norm_.vector(), key_norm_.vector(), Shape.norm_epsilon};
  }

  Parameter<T, G, D> query_norm_;
  Parameter<T, G, D> key_norm_;
};

/// What blocks are given of positions where these are in the embedding: nothing.
template <Device D>
struct NoPositions {
  void take(Arena<D>&, BatchShape) {}
  void initialize_sync(const Context<D>&) {}
  void place(const BatchView<D>&, const Context<D>&) const {}
};

/// The projection is attended to as it is; positions are in the embedding: GPT-2's.
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
