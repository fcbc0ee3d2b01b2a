/// @file
/// The end of a decoder with the vocabulary divided among ranks.
#pragma once

#include <octavo/kernels/vocabulary_parallel.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/tensor_parallel_group.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// A head like `LanguageModelHead`, but each rank of a tensor-parallel group has only some rows of
/// the projection. A chunk contains the same number of rows of each rank, which normalises them
/// before they are gathered. Each rank computes its columns of the logits, and ranks exchange three
/// numbers per token for the loss (`LogitSum`).
/// @tparam Rows    this rank's rows of the projection
/// @tparam Degree  number of ranks that share it
template <class T, class P, class Norm, int Hidden, int Rows, class G, Device D, int Degree>
class ParallelHead {
 public:
  using Projection = Linear<P, Hidden, Rows, G, D>;

  /// Declares the layer.
  /// @param chunk       number of tokens, over all ranks, processed together; a multiple of
  ///                    `Degree`
  /// @param vocabulary  rows of the whole projection without padding
  void declare(LayerRegistry<D> registry, Index chunk, Index vocabulary, float epsilon) {
    group_ = registry.group;
    chunk_ = chunk;
    vocabulary_ = {Index{Rows} * registry.tensor_rank, vocabulary};
    norm_.declare("final_norm", epsilon);
    projection_.declare("head", registry, {.is_head = true});
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
    logits_.allocate_values(arena, kind, std::max<Index>(chunk_, Degree + 1), Rows);
    logits_.allocate_row_major(arena, kind, chunk_, Rows);
    if constexpr (Projection::quantized) logits_.allocate_transposed(arena, kind, chunk_, Rows);
    statistics_ = arena.template allocate<float>(kind, Norm::statistics * chunk_);
    input_gradient_ = arena.template allocate<T>(kind, chunk_ / Degree * Hidden);
    targets_ = arena.template allocate<std::int32_t>(kind, chunk_);
    losses_ = arena.template allocate<float>(kind, chunk_);
    sums_ = arena.template allocate<LogitSum>(kind, (Degree + 1) * chunk_);
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    projection_.template quantize_weight<M>(context);
  }

  /// Returns the number of chunks in which `tokens` are processed.
  [[nodiscard]] Index chunks(Index tokens) const { return ceil_divide(tokens, chunk_); }
  /// Returns the number of rows of logits over the whole vocabulary that fit at once.
  [[nodiscard]] Index chunk() const { return std::max<Index>(1, chunk_ / (Degree + 1)); }

  /// See LanguageModelHead::loss.
  /// @param x           [own rows, Hidden]
  /// @param targets     [tokens] of all ranks
  /// @param losses      [tokens] of all ranks; every rank receives all of them
  /// @param x_gradient  [own rows, Hidden], added to; not used in evaluation
  /// @param weight_gradient  [Rows, Hidden]
  template <class M>
  void loss(TensorView<const T, 2, D> x, TensorView<const std::int32_t, 1, D> targets,
            TensorView<float, 1, D> losses, TensorView<T, 2, D> x_gradient,
            TensorView<G, 2, D> weight_gradient, TensorView<const float, 1, D> gradient_scale,
            bool accumulate, const Context<D>& context) {
    const Index own = x.extent(0);
    for (Index begin = 0; begin < own; begin += chunk_ / Degree) {
      const Index count = std::min(chunk_ / Degree, own - begin);
      const auto input = project<M>(x.rows(begin, count), context);
      const auto logits = projection_.output_gradient(logits_, Degree * count);
      cross_entropy_of_chunk(logits.values, targets, losses, {own, begin, count},
                             M::saves ? gradient_scale : TensorView<const float, 1, D>(), context);
      if constexpr (M::saves) {
        quantize(logits, context);
        projection_.backward_weight(logits, input, weight_gradient, accumulate || begin > 0,
                                    context);
        const PartialView<T, 2, D> terms = group_->template terms<T>(Degree * count, Hidden);
        projection_.backward_input(logits, terms.terms(), context);
        const TensorView<T, 2, D> gradient{input_gradient_, {count, Hidden}};
        group_->sum_rows(terms, gradient, false, "sums of the head's gradients", context);
        norm_.backward(gradient, x.rows(begin, count), statistics(count),
                       x_gradient.rows(begin, count), context);
      }
    }
  }

  /// Computes the logits over the whole vocabulary for at most `chunk()` tokens, in memory that the
  /// next call overwrites.
  /// @param x      [own rows, Hidden]
  /// @param begin  index of the first token, among those of all ranks
  /// @return       [count, Degree · Rows]
  template <class M>
  [[nodiscard]] TensorView<T, 2, D> logits(TensorView<const T, 2, D> x, Index begin, Index count,
                                           const Context<D>& context) {
    const TensorView<T, 2, D> all = group_->template gathered<T>(Degree * x.extent(0), Hidden);
    group_->gather_rows(x, all, "rows for logits", context);
    const auto input = projection_.template input<M>(input_, count, {true, false});
    norm_.forward(all.rows(begin, count), input, statistics(count), context);
    const TensorView<T, 2, D> whole{logits_.values, {count, Degree * Rows}};
    const TensorView<T, 2, D> own{whole.data() + whole.size(), {count, Rows}};
    projection_.forward(input, {}, own, context);
    for (Index i = 0; i < count; ++i) {
      const TensorView<const T, 2, D> row = own.rows(i, 1);
      group_->gather_rows(row, TensorView<T, 2, D>{whole.row(i), {Degree, Rows}}, "logits",
                          context);
    }
    return whole;
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    norm_.visit(visitor);
  }

 private:
  /// The rows of a chunk: `count` rows of each rank, starting at `begin` among its `own`.
  struct ChunkRows {
    Index own, begin, count;
  };

  template <class M>
  auto project(TensorView<const T, 2, D> x, const Context<D>& context) {
    const Index all = Degree * x.extent(0);
    const auto input =
        projection_.template input<M>(input_, all, {.row_major = true, .transposed = M::saves});
    const Operand<T, OperandKind::input, D> own{group_->own_rows(input.values)};
    norm_.forward(x, own, statistics(x.extent(0)), context);
    const TensorView<const T, 2, D> own_values = own.values;
    group_->gather_rows(own_values, input.values, "rows of the head's input", context);
    quantize(input, context);
    projection_.forward(input, {}, TensorView<T, 2, D>{logits_.values, {all, Rows}}, context);
    return input;
  }

  void cross_entropy_of_chunk(TensorView<T, 2, D> logits,
                              TensorView<const std::int32_t, 1, D> targets,
                              TensorView<float, 1, D> losses, ChunkRows rows,
                              TensorView<const float, 1, D> gradient_scale,
                              const Context<D>& context) {
    const Index all = Degree * rows.count;
    const TensorView<std::int32_t, 1, D> chunk_targets{targets_, {all}};
    const TensorView<float, 1, D> chunk_losses{losses_, {all}};
    const auto copy = [&](auto target, auto source) {
      copy_on_device(target.data(), source.data(), source.bytes(), context);
    };
    for (Index rank = 0; rank < Degree; ++rank) {
      copy(chunk_targets.rows(rank * rows.count, rows.count),
           targets.rows(rank * rows.own + rows.begin, rows.count));
    }
    const TensorView<LogitSum, 2, D> own{sums_, {1, all}};
    const TensorView<LogitSum, 2, D> sums{sums_ + all, {Degree, all}};
    sum_logits(TensorView<const T, 2, D>(logits),
               TensorView<const std::int32_t, 1, D>(chunk_targets), vocabulary_,
               TensorView<LogitSum, 1, D>{own.data(), {all}}, context);
    group_->gather_rows(TensorView<const LogitSum, 2, D>(own), sums, "sums of logits", context);
    parallel_cross_entropy(TensorView<const LogitSum, 2, D>(sums), logits,
                           TensorView<const std::int32_t, 1, D>(chunk_targets), chunk_losses,
                           vocabulary_, gradient_scale, context);
    for (Index rank = 0; rank < Degree; ++rank) {
      copy(losses.rows(rank * rows.own + rows.begin, rows.count),
           chunk_losses.rows(rank * rows.count, rows.count));
    }
  }

  [[nodiscard]] TensorView<float, 1, D> statistics(Index tokens) const {
    return {statistics_, {Norm::statistics * tokens}};
  }

  const TensorParallelGroup<D>* group_ = nullptr;
  Projection projection_;
  Norm norm_;
  typename Projection::InputMemory input_;
  typename Projection::OutputGradientMemory logits_;
  float* statistics_ = nullptr;      ///< [Norm::statistics · chunk]
  T* input_gradient_ = nullptr;      ///< [chunk / Degree, Hidden]
  std::int32_t* targets_ = nullptr;  ///< [chunk]
  float* losses_ = nullptr;          ///< [chunk]
  LogitSum* sums_ = nullptr;         ///< [Degree + 1, chunk]: this rank's, then those of all ranks
  Index chunk_ = 0;
  VocabularyPart vocabulary_;
};

}  // namespace octavo
