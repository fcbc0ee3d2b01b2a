/// @file
/// Embedding look-up and cross-entropy of a vocabulary shard, on the `Cpu` device.
#pragma once

#include <octavo/core/math.hpp>
#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/vocabulary_parallel.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo OCTAVO_ABI::detail {

/// See local_tokens.
inline void local_tokens_body(TensorView<const std::int32_t, 1, Cpu> tokens, Index first,
                              Index rows, TensorView<std::int32_t, 1, Cpu> local,
                              const Context<Cpu>&) {
  for (Index t = 0; t < tokens.extent(0); ++t) {
    const Index row = tokens.data()[t] - first;
    local.data()[t] = row >= 0 && row < rows ? static_cast<std::int32_t>(row) : -1;
  }
}

/// See sum_logits.
template <class T>
void sum_logits_body(TensorView<const T, 2, Cpu> logits,
                     TensorView<const std::int32_t, 1, Cpu> targets, VocabularyPart part,
                     TensorView<LogitSum, 1, Cpu> sums, const Context<Cpu>& context) {
  const Index live = part.live(logits.extent(1));
  parallel_for(logits.extent(0), logits.extent(1), context, [&](Index t) {
    const T* row = logits.row(t);
    LogitSum own{-std::numeric_limits<float>::infinity(), 0.0f, 0.0f};
    for (Index i = 0; i < live; ++i) {
      const float value = static_cast<float>(row[i]);
      own.largest = value > own.largest ? value : own.largest;
    }
    own.sum =
        lane_sum(live, [&](Index i) { return fast_exp(static_cast<float>(row[i]) - own.largest); });
    const Index target = targets.data()[t] - part.first;
    if (target >= 0 && target < live) own.at_target = static_cast<float>(row[target]);
    sums.data()[t] = own;
  });
}

/// See parallel_cross_entropy.
template <class T>
void parallel_cross_entropy_body(TensorView<const LogitSum, 2, Cpu> sums,
                                 TensorView<T, 2, Cpu> logits,
                                 TensorView<const std::int32_t, 1, Cpu> targets,
                                 TensorView<float, 1, Cpu> losses, VocabularyPart part,
                                 TensorView<const float, 1, Cpu> gradient_scale,
                                 const Context<Cpu>& context) {
  const Index columns = logits.extent(1);
  const Index live = part.live(columns);
  parallel_for(logits.extent(0), logits.extent(1), context, [&](Index t) {
    T* row = logits.row(t);
    const Index target = targets.data()[t];
    const bool ignored = target < 0;
    const bool exists = !ignored && target < part.whole;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const LogitSum* of_ranks = sums.data() + t;
    const Index stride = sums.extent(1);
    const float largest = largest_logit(of_ranks, sums.extent(0), stride);
    float sum = 0;
    for (Index rank = 0; rank < sums.extent(0); ++rank) {
      const LogitSum& of_rank = of_ranks[rank * stride];
      if (of_rank.sum != 0) sum += of_rank.sum * fast_exp(of_rank.largest - largest);
    }
    const float at_target = exists ? of_ranks[target / columns * stride].at_target : nan;
    losses.data()[t] = ignored ? 0.0f : std::log(sum) - (at_target - largest);
    if (gradient_scale.empty()) return;
    const float of_target = exists ? gradient_scale.data()[0] : nan;
    const float scale = ignored ? 0.0f : of_target;
    const float factor = scale / sum;
    for (Index i = 0; i < live; ++i) {
      row[i] = T(fast_exp(static_cast<float>(row[i]) - largest) * factor);
    }
    const Index own = target - part.first;
    if (exists && own >= 0 && own < live) {
      row[own] = T(fast_exp(at_target - largest) * factor - scale);
    }
    std::fill(row + live, row + columns, T(0.0f));
  });
}

}  // namespace octavo::detail
