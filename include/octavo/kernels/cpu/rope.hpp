/// @file
/// Rotary position embeddings on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/rope.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Rotates one head by the angles with these cosines and sines; `sign` −1 rotates back. `source`
/// and `target` may be the same.
template <class T, class Value>
void rotate_head(const Value& source, T* target, Index half, const float* rotation, float sign) {
  for (Index j = 0; j < half; ++j) {
    const float first = source(j);
    const float second = source(j + half);
    const float cosine = rotation[j];
    const float sine = sign * rotation[half + j];
    target[j] = T(first * cosine - second * sine);
    target[j + half] = T(second * cosine + first * sine);
  }
}

/// Normalises one head, unless `weight` is null, and rotates it. `head` and `target` may be the
/// same.
/// @param angles  of its position: head_dim / 2 cosines, then sines
template <class T>
void rotate_normalised_head(const T* head, T* target, const T* weight, float epsilon, float offset,
                            Index dim, const float* angles) {
  if (weight == nullptr) {
    const auto plain = [&](Index j) { return static_cast<float>(head[j]); };
    rotate_head(plain, target, dim / 2, angles, 1.0f);
  } else {
    const float inverse = inverse_root_mean_square(head, dim, epsilon);
    const auto normalised = [&](Index j) {
      return static_cast<float>(head[j]) * inverse * (static_cast<float>(weight[j]) + offset);
    };
    rotate_head(normalised, target, dim / 2, angles, 1.0f);
  }
}

/// Converts the gradient of normalised heads to that of the heads, in place.
template <class T>
void head_norm_backward(T* gradient, const T* head, const T* weight, float offset, Index head_dim,
                        float epsilon) {
  const float inverse = inverse_root_mean_square(head, head_dim, epsilon);
  const float dot = lane_sum(head_dim, [&](Index j) {
    return static_cast<float>(gradient[j]) * (static_cast<float>(weight[j]) + offset) *
           static_cast<float>(head[j]);
  });
  const float mean = dot * inverse * inverse / static_cast<float>(head_dim);
  for (Index j = 0; j < head_dim; ++j) {
    const float g = static_cast<float>(gradient[j]) * (static_cast<float>(weight[j]) + offset);
    gradient[j] = T(inverse * (g - static_cast<float>(head[j]) * mean));
  }
}

/// Adds Σ over tokens and heads of gradient · normalised head to the gradient of a norm's weight.
template <class T, class G>
void head_norm_weight_gradient(TensorView<const T, 2, Cpu> gradient,
                               TensorView<const T, 2, Cpu> qkv, Index first_head, Index heads,
                               Index head_dim, float epsilon, G* weight_gradient) {
  for (Index j = 0; j < head_dim; ++j) {
    float sum = 0;
    for (Index t = 0; t < qkv.extent(0); ++t) {
      for (Index h = first_head; h < first_head + heads; ++h) {
        const T* head = qkv.row(t) + h * head_dim;
        sum += static_cast<float>(gradient.row(t)[h * head_dim + j]) * static_cast<float>(head[j]) *
               inverse_root_mean_square(head, head_dim, epsilon);
      }
    }
    weight_gradient[j] = G(static_cast<float>(weight_gradient[j]) + sum);
  }
}

/// See rope_forward.
template <class T>
void rope_forward_body(TensorView<const T, 2, Cpu> qkv, HeadLayout layout,
                       const QkNorm<const T, Cpu>& norm, TensorView<const float, 2, Cpu> rotation,
                       Index sequence, TensorView<T, 2, Cpu> rotated, const Context<Cpu>& context) {
  const Index dim = layout.head_dim;
  parallel_for(qkv.extent(0), qkv.extent(1), context, [&](Index t) {
    const float* angles = rotation.row(t % sequence);
    for (Index h = 0; h < layout.heads + layout.kv_heads; ++h) {
      const T* weight = (h < layout.heads ? norm.query : norm.key).data();
      rotate_normalised_head(qkv.row(t) + h * dim, rotated.row(t) + h * dim, weight, norm.epsilon,
                             norm.offset, dim, angles);
    }
    if (rotated.data() == qkv.data()) return;
    const Index values = (layout.heads + layout.kv_heads) * dim;
    std::copy(qkv.row(t) + values, qkv.row(t) + layout.columns(), rotated.row(t) + values);
  });
}

/// See rope_backward.
template <LinearPrecision P, class T, class G>
void rope_backward_body(TensorView<T, 2, Cpu> rotated_gradient, HeadLayout layout,
                        TensorView<const T, 2, Cpu> qkv, const QkNorm<const T, Cpu>& norm,
                        const QkNorm<G, Cpu>& norm_gradient,
                        TensorView<const float, 2, Cpu> rotation, Index sequence,
                        const Operand<P, OperandKind::output_gradient, Cpu>& qkv_gradient,
                        const Context<Cpu>& context) {
  const Index dim = layout.head_dim;
  const Index rotated_heads = layout.heads + layout.kv_heads;
  parallel_for(rotated_gradient.extent(0), rotated_gradient.extent(1), context, [&](Index t) {
    const float* angles = rotation.row(t % sequence);
    for (Index h = 0; h < rotated_heads; ++h) {
      T* head = rotated_gradient.row(t) + h * dim;
      const auto value = [&](Index j) { return static_cast<float>(head[j]); };
      rotate_head(value, head, dim / 2, angles, -1.0f);
    }
  });
  if (!norm.query.empty()) {
    const TensorView<const T, 2, Cpu> gradient = rotated_gradient;
    if (!norm_gradient.query.empty()) {
      head_norm_weight_gradient(gradient, qkv, Index{0}, layout.heads, dim, norm.epsilon,
                                norm_gradient.query.data());
      head_norm_weight_gradient(gradient, qkv, layout.heads, layout.kv_heads, dim, norm.epsilon,
                                norm_gradient.key.data());
    }
    parallel_for(rotated_gradient.extent(0), rotated_gradient.extent(1), context, [&](Index t) {
      for (Index h = 0; h < rotated_heads; ++h) {
        const T* weight = (h < layout.heads ? norm.query : norm.key).data();
        head_norm_backward(rotated_gradient.row(t) + h * dim, qkv.row(t) + h * dim, weight,
                           norm.offset, dim, norm.epsilon);
      }
    });
  }
  if (qkv_gradient.values.data() != rotated_gradient.data()) {
    std::copy(rotated_gradient.data(), rotated_gradient.data() + rotated_gradient.size(),
              qkv_gradient.values.data());
  }
  quantize(qkv_gradient, context);
}

}  // namespace octavo::detail
