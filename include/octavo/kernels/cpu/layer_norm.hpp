/// @file
/// Layer normalisation on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/layer_norm.hpp>

#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// See layer_norm_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void layer_norm_forward_body(TensorView<const T, 2, Cpu> x, TensorView<const T, 1, Cpu> weight,
                             TensorView<const T, 1, Cpu> bias, float epsilon,
                             const Operand<P, Kind, Cpu>& y, TensorView<float, 1, Cpu> statistics,
                             const Context<Cpu>& context) {
  const Index hidden = x.extent(1);
  const auto count = static_cast<float>(hidden);
  parallel_for(x.extent(0), hidden, context, [&](Index t) {
    const T* row = x.row(t);
    const float mean =
        lane_sum(hidden, [&](Index i) { return static_cast<float>(row[i]); }) / count;
    const float squares = lane_sum(hidden, [&](Index i) {
      const float value = static_cast<float>(row[i]) - mean;
      return value * value;
    });
    const float inverse = 1.0f / std::sqrt(squares / count + epsilon);
    statistics.data()[2 * t] = mean;
    statistics.data()[2 * t + 1] = inverse;
    T* result = y.values.row(t);
    for (Index i = 0; i < hidden; ++i) {
      result[i] =
          T((static_cast<float>(row[i]) - mean) * inverse * static_cast<float>(weight.data()[i]) +
            static_cast<float>(bias.data()[i]));
    }
  });
  quantize(y, context);
}

/// See layer_norm_backward. With n = (x − m) · r and g = dy · w:
/// dx = r · (g − mean(g) − n · mean(g · n)), dw = Σ dy · n, db = Σ dy.
template <class T, class G>
void layer_norm_backward_body(TensorView<const T, 2, Cpu> y_gradient, TensorView<const T, 2, Cpu> x,
                              TensorView<const T, 1, Cpu> weight,
                              TensorView<const float, 1, Cpu> statistics,
                              TensorView<T, 2, Cpu> x_gradient,
                              TensorView<G, 1, Cpu> weight_gradient,
                              TensorView<G, 1, Cpu> bias_gradient, const Context<Cpu>& context) {
  const Index tokens = x.extent(0);
  const Index hidden = x.extent(1);
  const auto normalised = [&](const T* row, Index t, Index i) {
    return (static_cast<float>(row[i]) - statistics.data()[2 * t]) * statistics.data()[2 * t + 1];
  };
  parallel_for(tokens, hidden, context, [&](Index t) {
    const T* dy = y_gradient.row(t);
    const T* row = x.row(t);
    const T* w = weight.data();
    T* dx = x_gradient.row(t);
    const auto g = [&](Index i) { return static_cast<float>(dy[i]) * static_cast<float>(w[i]); };
    const auto count = static_cast<float>(hidden);
    const float mean = lane_sum(hidden, g) / count;
    const float product =
        lane_sum(hidden, [&](Index i) { return g(i) * normalised(row, t, i); }) / count;
    const float inverse = statistics.data()[2 * t + 1];
    for (Index i = 0; i < hidden; ++i) {
      dx[i] =
          T(static_cast<float>(dx[i]) + inverse * (g(i) - mean - normalised(row, t, i) * product));
    }
  });
  // Columns in parallel and tokens in order, so that the order of summation is fixed.
  constexpr Index width = 64;
  parallel_for(ceil_divide(hidden, width), width * tokens, context, [&](Index piece) {
    const Index begin = piece * width;
    const Index columns = std::min(width, hidden - begin);
    std::array<float, width> weight_sums{};
    std::array<float, width> bias_sums{};
    for (Index t = 0; t < tokens; ++t) {
      const T* dy = y_gradient.row(t) + begin;
      const T* row = x.row(t) + begin;
      for (Index i = 0; i < columns; ++i) {
        const auto place = static_cast<std::size_t>(i);
        weight_sums[place] += static_cast<float>(dy[i]) * normalised(row, t, i);
        bias_sums[place] += static_cast<float>(dy[i]);
      }
    }
    for (Index i = 0; i < columns; ++i) {
      const auto add = [&](G& target, float sum) { target = G(static_cast<float>(target) + sum); };
      add(weight_gradient.data()[begin + i], weight_sums[static_cast<std::size_t>(i)]);
      add(bias_gradient.data()[begin + i], bias_sums[static_cast<std::size_t>(i)]);
    }
  });
}

}  // namespace octavo::detail
