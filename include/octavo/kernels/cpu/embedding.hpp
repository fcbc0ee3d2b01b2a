/// @file
/// Look-up of token embeddings on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/embedding.hpp>

#include <algorithm>
#include <limits>

namespace octavo OCTAVO_ABI::detail {

/// See embedding_forward.
template <class T>
void embedding_forward_body(TensorView<const std::int32_t, 1, Cpu> tokens,
                            TensorView<const T, 2, Cpu> table, TensorView<T, 2, Cpu> y,
                            const Context<Cpu>& context) {
  parallel_for(tokens.extent(0), table.extent(1), context, [&](Index t) {
    const Index columns = table.extent(1);
    const Index token = tokens.data()[t];
    if (token < 0 || token >= table.extent(0)) {
      constexpr float nan = std::numeric_limits<float>::quiet_NaN();
      std::fill(y.row(t), y.row(t) + columns, T(token < 0 ? 0.0f : nan));
    } else {
      std::copy(table.row(token), table.row(token) + columns, y.row(t));
    }
  });
}

/// See embedding_backward. Sorting positions by token makes the occurrences of each row contiguous.
template <class T, class G>
void embedding_backward_body(TensorView<const std::int32_t, 1, Cpu> tokens,
                             TensorView<const T, 2, Cpu> y_gradient,
                             TensorView<G, 2, Cpu> table_gradient, const Context<Cpu>& context) {
  const Index count = tokens.extent(0);
  auto* order =
      workspace_of<std::int64_t>(context, embedding_workspace(count), "embedding_backward");
  for (Index t = 0; t < count; ++t) {
    order[t] = (static_cast<std::int64_t>(tokens.data()[t]) << 32) | t;
  }
  std::sort(order, order + count);
  constexpr Index width = 64;
  const Index hidden = y_gradient.extent(1);
  parallel_for(ceil_divide(hidden, width), width * count, context, [&](Index piece) {
    const Index begin = piece * width;
    const Index columns = std::min(width, hidden - begin);
    for (Index t = 0; t < count;) {
      const std::int64_t token = order[t] >> 32;
      std::array<float, width> sums{};
      for (; t < count && order[t] >> 32 == token; ++t) {
        const T* row = y_gradient.row(order[t] & 0xffffffff) + begin;
        for (Index i = 0; i < columns; ++i) {
          sums[static_cast<std::size_t>(i)] += static_cast<float>(row[i]);
        }
      }
      if (token < 0 || token >= table_gradient.extent(0)) continue;
      G* target = table_gradient.row(token) + begin;
      for (Index i = 0; i < columns; ++i) {
        target[i] = G(static_cast<float>(target[i]) + sums[static_cast<std::size_t>(i)]);
      }
    }
  });
}

}  // namespace octavo::detail
