/// @file
/// Root-mean-square normalisation on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Returns x · inverse · weight.
template <class T>
T normalised(T x, float inverse, float weight) {
  return T(static_cast<float>(x) * inverse * weight);
}

/// See rms_norm_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void rms_norm_forward_body(TensorView<const T, 2, Cpu> x, const NormWeight<T, Cpu>& weight,
                           float epsilon, const Operand<P, Kind, Cpu>& y,
                           TensorView<float, 1, Cpu> inverse_rms, const Context<Cpu>& context) {
  const Index hidden = x.extent(1);
  parallel_for(x.extent(0), hidden, context, [&](Index t) {
    const T* row = x.row(t);
    const float inverse = inverse_root_mean_square(row, hidden, epsilon);
    inverse_rms.data()[t] = inverse;
    T* result = y.values.row(t);
    const T* w = weight.values.data();
    for (Index i = 0; i < hidden; ++i) {
      result[i] = normalised(row[i], inverse, static_cast<float>(w[i]) + weight.offset);
    }
  });
  quantize(y, context);
}

/// See rms_norm_backward. With g = dy · w: dx = r · (g − x · r² · mean(g · x)).
template <class T, class G>
void rms_norm_backward_body(TensorView<const T, 2, Cpu> y_gradient, TensorView<const T, 2, Cpu> x,
                            const NormWeight<T, Cpu>& weight,
                            TensorView<const float, 1, Cpu> inverse_rms,
                            TensorView<T, 2, Cpu> x_gradient, TensorView<G, 1, Cpu> weight_gradient,
                            const Context<Cpu>& context) {
  const Index tokens = x.extent(0);
  const Index hidden = x.extent(1);
  parallel_for(tokens, hidden, context, [&](Index t) {
    const T* dy = y_gradient.row(t);
    const T* row = x.row(t);
    const T* w = weight.values.data();
    T* dx = x_gradient.row(t);
    const float inverse = inverse_rms.data()[t];
    const float dot = lane_sum(hidden, [&](Index i) {
      return static_cast<float>(dy[i]) * (static_cast<float>(w[i]) + weight.offset) *
             static_cast<float>(row[i]);
    });
    const float mean = dot * inverse * inverse / static_cast<float>(hidden);
    for (Index i = 0; i < hidden; ++i) {
      const float g = static_cast<float>(dy[i]) * (static_cast<float>(w[i]) + weight.offset);
      dx[i] = T(static_cast<float>(dx[i]) + inverse * (g - static_cast<float>(row[i]) * mean));
    }
  });
  if (weight_gradient.empty()) return;
  // Columns in parallel and tokens in order, so that the order of summation is fixed.
  constexpr Index width = 64;
  parallel_for(ceil_divide(hidden, width), width * tokens, context, [&](Index piece) {
    const Index begin = piece * width;
    const Index count = std::min(width, hidden - begin);
    std::array<float, width> sums{};
    for (Index t = 0; t < tokens; ++t) {
      const T* dy = y_gradient.row(t) + begin;
      const T* row = x.row(t) + begin;
      const float inverse = inverse_rms.data()[t];
      for (Index i = 0; i < count; ++i) {
        sums[static_cast<std::size_t>(i)] +=
            static_cast<float>(dy[i]) * static_cast<float>(row[i]) * inverse;
      }
    }
    for (Index i = 0; i < count; ++i) {
      G& target = weight_gradient.data()[begin + i];
      target = G(static_cast<float>(target) + sums[static_cast<std::size_t>(i)]);
    }
  });
}

}  // namespace octavo::detail
