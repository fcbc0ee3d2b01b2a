/// @file
/// Token embeddings with the vocabulary divided among ranks.
#pragma once

#include <octavo/kernels/vocabulary_parallel.hpp>
#include <octavo/layers/embedding.hpp>
#include <octavo/layers/tensor_parallel_group.hpp>

namespace octavo OCTAVO_ABI {

/// Token embeddings like `Embedding`, but each rank has only some rows of the table. A rank's
/// look-up returns zeros for tokens of other ranks, so the sum over ranks is exactly the embedding;
/// each rank receives its rows.
template <class T, int Hidden, class G, Device D>
class ParallelEmbedding {
 public:
  /// Declares this rank's shard of the table.
  /// @param rows        of the shard
  /// @param vocabulary  rows of the shard that are not padding
  void declare(const std::string& name, Index rows, Index vocabulary, Initial initial) {
    table_.declare(name, rows, vocabulary, initial);
  }

  /// Sets this rank's shard of the table, and allocates memory for a batch's tokens.
  void share(Arena<D>& arena, const TensorParallelGroup<D>& group, const ParameterPart& part,
             Index tokens) {
    table_.visit([&](auto& table) { table.part = part; });
    group_ = &group;
    first_ = part.rank * part.groups[0];
    local_ = arena.template allocate<std::int32_t>(MemoryKind::activations, tokens);
  }

  /// @param tokens  [tokens]
  /// @param y       [own rows, Hidden]
  void forward(TensorView<const std::int32_t, 1, D> tokens, const BatchView<D>& batch,
               TensorView<T, 2, D> y, const Context<D>& context) const {
    const PartialView<T, 2, D> terms = group_->template terms<T>(tokens.extent(0), Hidden);
    table_.forward(local(tokens, context), batch, terms.terms(), context);
    group_->sum_rows(terms, y, false, "rows of the embedding", context);
  }

  /// Adds to the table's gradient.
  /// @param y_gradient  [own rows, Hidden]
  void backward(TensorView<const std::int32_t, 1, D> tokens, const BatchView<D>& batch,
                TensorView<const T, 2, D> y_gradient, const Context<D>& context) const {
    const TensorView<T, 2, D> all = group_->template gathered<T>(tokens.extent(0), Hidden);
    group_->gather_rows(y_gradient, all, "gradients of the embedding", context);
    table_.backward(local(tokens, context), batch, all, context);
  }

  [[nodiscard]] const Parameter<T, G, D>& weight() const { return table_.weight(); }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    table_.visit(visitor);
  }

 private:
  [[nodiscard]] TensorView<const std::int32_t, 1, D> local(
      TensorView<const std::int32_t, 1, D> tokens, const Context<D>& context) const {
    const TensorView<std::int32_t, 1, D> rows{local_, tokens.shape()};
    local_tokens(tokens, first_, weight().weight.extent(0), rows, context);
    return rows;
  }

  Embedding<T, Hidden, G, D> table_;
  const TensorParallelGroup<D>* group_ = nullptr;
  Index first_ = 0;
  std::int32_t* local_ = nullptr;  ///< [tokens]
};

}  // namespace octavo
