/// @file
/// The end of a decoder: final norm, projection to the vocabulary, and cross-entropy.
#pragma once

#include <octavo/kernels/cross_entropy.hpp>
#include <octavo/layers/before_norm.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/layers/mode.hpp>

namespace octavo OCTAVO_ABI {

/// Processes the tokens in chunks, so that the logits of all tokens never exist at once. In
/// training, a chunk's gradients are computed immediately after its loss.
/// @tparam T       format of weights and activations
/// @tparam P       precision of the projection
/// @tparam Norm    `RMSNorm<…>`, `LayerNorm<…>`, or a type with the same members
/// @tparam Padded  rows of the projection: the padded vocabulary
template <class T, class P, class Norm, int Hidden, int Padded, class G, Device D>
class LanguageModelHead {
 public:
  using Projection = Linear<P, Hidden, Padded, G, D>;

  /// Declares the layer.
  /// @param chunk       number of tokens processed together
  /// @param vocabulary  rows of the projection without padding
  void declare(LayerRegistry<D> registry, Index chunk, Index vocabulary, float epsilon) {
    chunk_ = chunk;
    vocabulary_ = vocabulary;
    norm_.declare("final_norm", epsilon);
    projection_.declare("head", registry, {.is_head = true, .tokens = chunk});
  }

  /// Allocates the quantised copies of the projection's weight.
  /// @param weight  the head's own weight, or the embedding's
  void allocate_weight_copies(Arena<D>& arena, const Parameter<T, G, D>& weight) {
    projection_.allocate_weight_copies(arena, weight);
  }

  /// Allocates the temporary memory of a chunk.
  void allocate_scratch(Arena<D>& arena) {
    constexpr auto kind = MemoryKind::activations;
    input_.allocate_values(arena, kind, chunk_, Hidden);
    input_.allocate_row_major(arena, kind, chunk_, Hidden);
    if constexpr (Projection::quantized) input_.allocate_transposed(arena, kind, chunk_, Hidden);
    logits_.allocate_values(arena, kind, chunk_, Padded);
    logits_.allocate_row_major(arena, kind, chunk_, Padded);
    if constexpr (Projection::quantized) logits_.allocate_transposed(arena, kind, chunk_, Padded);
    statistics_ = arena.template allocate<float>(kind, Norm::statistics * chunk_);
    input_gradient_ = arena.template allocate<T>(kind, chunk_ * Hidden);
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    projection_.template quantize_weight<M>(context);
  }

  /// Returns the number of chunks in which `tokens` are processed.
  [[nodiscard]] Index chunks(Index tokens) const { return ceil_divide(tokens, chunk_); }
  [[nodiscard]] Index chunk() const { return chunk_; }

  /// Computes the loss of every token and, in training, the gradients of x and of the weights; the
  /// norm's gradients are added to. A frozen head's weights have no gradients.
  /// @param x           [tokens, Hidden]
  /// @param targets     [tokens]; ignored if negative
  /// @param losses      [tokens]
  /// @param x_gradient  [tokens, Hidden], added to; not used in evaluation
  /// @param weight_gradient  [Padded, Hidden], the projection's; not used in evaluation
  /// @param gradient_scale  [1]: 1 / number of targets in the optimizer step; not used in
  ///                        evaluation
  /// @param accumulate  whether `weight_gradient` is added to instead of overwritten
  template <class M>
  void loss(TensorView<const T, 2, D> x, TensorView<const std::int32_t, 1, D> targets,
            TensorView<float, 1, D> losses, TensorView<T, 2, D> x_gradient,
            TensorView<G, 2, D> weight_gradient, TensorView<const float, 1, D> gradient_scale,
            bool accumulate, const Context<D>& context) {
    for (Index begin = 0; begin < x.extent(0); begin += chunk_) {
      const Index count = std::min(chunk_, x.extent(0) - begin);
      const auto input = project<M>(x.rows(begin, count), context);
      const auto logits = projection_.output_gradient(logits_, count);
      cross_entropy(logits.values, targets.rows(begin, count), losses.rows(begin, count),
                    vocabulary_, M::saves ? gradient_scale : TensorView<const float, 1, D>(),
                    context);
      if constexpr (M::saves) {
        quantize(logits, context);
        if constexpr (!Projection::frozen) {
          projection_.backward_weight(logits, input, weight_gradient, accumulate || begin > 0,
                                      context);
        }
        const TensorView<T, 2, D> gradient{input_gradient_, {count, Hidden}};
        projection_.backward_input(logits, gradient, context);
        norm_.backward(gradient, x.rows(begin, count), statistics(count),
                       x_gradient.rows(begin, count), context);
      }
    }
  }

  /// Computes the logits of at most `chunk()` tokens, in memory that the next call overwrites.
  /// @param x  [tokens, Hidden]
  /// @return   [tokens, Padded]
  template <class M>
  [[nodiscard]] TensorView<T, 2, D> logits(TensorView<const T, 2, D> x, const Context<D>& context) {
    project<M>(x, context);
    return {logits_.values, {x.extent(0), Padded}};
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    norm_.visit(visitor);
  }

 private:
  template <class M>
  auto project(TensorView<const T, 2, D> x, const Context<D>& context) {
    const Index count = x.extent(0);
    const auto input =
        projection_.template input<M>(input_, count, {.row_major = true, .transposed = M::saves});
    const TensorView<T, 2, D> logits{logits_.values, {count, Padded}};
    if constexpr (leaves_norm_to_layer<M, Norm>) {
      projection_.forward(BeforeNorm{norm_, x, input, statistics(count)}, {}, logits, context);
    } else {
      norm_.forward(x, input, statistics(count), context);
      projection_.forward(input, {}, logits, context);
    }
    return input;
  }

  [[nodiscard]] TensorView<float, 1, D> statistics(Index tokens) const {
    return {statistics_, {Norm::statistics * tokens}};
  }

  Projection projection_;
  Norm norm_;
  typename Projection::InputMemory input_;
  typename Projection::OutputGradientMemory logits_;
  float* statistics_ = nullptr;  ///< [Norm::statistics · chunk]
  T* input_gradient_ = nullptr;
  Index chunk_ = 0;
  Index vocabulary_ = 0;
};

}  // namespace octavo
