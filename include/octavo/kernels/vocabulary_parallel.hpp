/// @file
/// Embedding look-up and cross-entropy with the vocabulary divided among ranks.
#pragma once

#include <octavo/tensor/tensor.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Converts tokens to rows of this rank's shard of a table: local[t] = tokens[t] − first, or −1 for
/// a token of another rank's shard, which `embedding_forward` maps to zeros and
/// `embedding_backward` skips.
/// @param tokens  [tokens]
/// @param first   the token of the shard's first row
/// @param rows    of the shard
/// @param local   [tokens]
/// @note enqueues; does not synchronise
template <Device D>
void local_tokens(TensorView<const std::int32_t, 1, D> tokens, Index first, Index rows,
                  TensorView<std::int32_t, 1, D> local, const Context<D>& context) {
  check_shape("local_tokens", "local", local, tokens.shape());
  local_tokens_body(tokens, first, rows, local, context);
}

/// The contribution of one rank's logits of a token to cross-entropy.
struct LogitSum {
  float largest;    ///< maximum logit; −∞ if there are none
  float sum;        ///< Σ exp(logit − largest)
  float at_target;  ///< the target's logit, if this rank has it
};

/// The columns of a rank's logits; all ranks have the same number.
struct VocabularyPart {
  Index first = 0;  ///< token of the first column
  Index whole = 0;  ///< vocabulary size; later columns are padding
  /// Returns the number of columns, of the first `columns`, that are not padding.
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index live(Index columns) const {
    const Index left = whole - first;
    return left < 0 ? 0 : left < columns ? left : columns;
  }
};

/// Computes the sums over this rank's columns.
/// @param logits   [tokens, columns]
/// @param targets  [tokens], of the whole vocabulary
/// @param sums     [tokens]
/// @note enqueues; does not synchronise
template <class T, Device D>
void sum_logits(TensorView<const T, 2, D> logits, TensorView<const std::int32_t, 1, D> targets,
                VocabularyPart part, TensorView<LogitSum, 1, D> sums, const Context<D>& context) {
  check_shape("sum_logits", "targets", targets, {logits.extent(0)});
  check_shape("sum_logits", "sums", sums, {logits.extent(0)});
  sum_logits_body(logits, targets, part, sums, context);
}

/// Computes the same as cross_entropy for this rank's columns of the logits, given the sums of all
/// ranks. They are added in rank order, so the losses have the same bits on each rank.
/// @param sums    [ranks, tokens]
/// @param logits  [tokens, columns], overwritten with their gradients unless `gradient_scale` is
///                empty
/// @note enqueues; does not synchronise
template <class T, Device D>
void parallel_cross_entropy(TensorView<const LogitSum, 2, D> sums, TensorView<T, 2, D> logits,
                            TensorView<const std::int32_t, 1, D> targets,
                            TensorView<float, 1, D> losses, VocabularyPart part,
                            TensorView<const float, 1, D> gradient_scale,
                            const Context<D>& context) {
  check_shape("parallel_cross_entropy", "sums", sums, {sums.extent(0), logits.extent(0)});
  check_shape("parallel_cross_entropy", "targets", targets, {logits.extent(0)});
  check_shape("parallel_cross_entropy", "losses", losses, {logits.extent(0)});
  require<ShapeError>(part.whole > 0 && part.whole <= sums.extent(0) * logits.extent(1),
                      "parallel_cross_entropy: a vocabulary of ", part.whole, " does not fit ",
                      sums.extent(0), " ranks with ", logits.extent(1), " columns each");
  if (!gradient_scale.empty()) {
    check_shape("parallel_cross_entropy", "gradient_scale", gradient_scale, {1});
  }
  parallel_cross_entropy_body(sums, logits, targets, losses, part, gradient_scale, context);
}

namespace detail {

/// Returns the maximum logit of one token over all ranks, on every device.
/// @param of_ranks  values of the first rank; those of the others follow at multiples of `stride`
OCTAVO_HOST_DEVICE inline float largest_logit(const LogitSum* of_ranks, Index ranks, Index stride) {
  float largest = of_ranks[0].largest;
  for (Index rank = 1; rank < ranks; ++rank) {
    if (of_ranks[rank * stride].largest > largest) largest = of_ranks[rank * stride].largest;
  }
  return largest;
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/vocabulary_parallel.hpp>
