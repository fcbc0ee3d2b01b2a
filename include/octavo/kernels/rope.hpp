/// @file
/// Rotary position embeddings, with optional normalisation of queries and keys.
#pragma once

#include <octavo/kernels/norm_epsilon.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/tensor/head_layout.hpp>

namespace octavo OCTAVO_ABI {

/// Weights of the root-mean-square normalisation of each query and key head before the rotation;
/// empty views if a model has none. Source: Qwen3 technical report, arXiv 2505.09388.
template <class T, Device D>
struct QkNorm {
  TensorView<T, 1, D> query;  ///< [head_dim]
  TensorView<T, 1, D> key;    ///< [head_dim]
  float epsilon = 0;
  float offset = 0;  ///< added to the weights: see NormWeight
};

namespace detail {

template <class T, Device D>
void check_rope(const char* operation, HeadLayout layout, const QkNorm<T, D>& norm,
                TensorView<const float, 2, D> rotation, Index sequence) {
  if (sequence <= 0 || sequence > rotation.extent(0) || rotation.extent(1) != layout.head_dim) {
    throw ShapeError(message(operation, ": a sequence of ", sequence, " tokens with heads of ",
                             layout.head_dim, " needs as many rotations, but the table is ",
                             shape_text(rotation)));
  }
  if (norm.query.empty()) return;
  check_shape(operation, "query norm", norm.query, {layout.head_dim});
  check_shape(operation, "key norm", norm.key, {layout.head_dim});
  check_norm_epsilon(operation, norm.epsilon);
}

}  // namespace detail

/// Rotates queries and keys by their position; copies values. The halves of a head are rotated
/// against each other, as in Hugging Face's Llama: element j with element j + head_dim / 2.
/// @param qkv       [tokens, layout.columns()]; consecutive sequences
/// @param norm      empty, or the weights of the normalisation before the rotation
/// @param rotation  [sequence length or more, head_dim]: head_dim / 2 cosines, then sines
/// @param sequence  tokens per sequence
/// @param rotated   [tokens, layout.columns()]; may be `qkv` itself if `norm` is empty
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
/// Source: Su et al. 2021, arXiv 2104.09864.
template <class T, Device D>
void rope_forward(TensorView<const T, 2, D> qkv, HeadLayout layout, const QkNorm<const T, D>& norm,
                  TensorView<const float, 2, D> rotation, Index sequence,
                  TensorView<T, 2, D> rotated, const Context<D>& context) {
  check_shape("rope_forward", "qkv", qkv, {qkv.extent(0), layout.columns()});
  check_shape("rope_forward", "rotated", rotated, qkv.shape());
  detail::check_rope("rope_forward", layout, norm, rotation, sequence);
  require<ShapeError>(norm.query.empty() || rotated.data() != qkv.data(),
                      "rope_forward: with query and key normalisation the result must not alias "
                      "qkv, which the backward needs");
  rope_forward_body(qkv, layout, norm, rotation, sequence, rotated, context);
}

/// Computes the gradient of `rope_forward`'s input, as an operand for the backward GEMMs.
/// @param rotated_gradient  [tokens, layout.columns()]; overwritten
/// @param qkv               [tokens, layout.columns()]; the forward's input; read only with `norm`
/// @param norm_gradient     added to; empty if `norm` is empty or its weights are frozen
/// @param qkv_gradient      [tokens, layout.columns()]; its values may be `rotated_gradient`
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <LinearPrecision P, class T, class G, Device D>
void rope_backward(TensorView<T, 2, D> rotated_gradient, HeadLayout layout,
                   TensorView<const T, 2, D> qkv, const QkNorm<const T, D>& norm,
                   const QkNorm<G, D>& norm_gradient, TensorView<const float, 2, D> rotation,
                   Index sequence, const Operand<P, OperandKind::output_gradient, D>& qkv_gradient,
                   const Context<D>& context) {
  check_shape("rope_backward", "rotated_gradient", rotated_gradient,
              {rotated_gradient.extent(0), layout.columns()});
  check_shape("rope_backward", "qkv_gradient", qkv_gradient.values, rotated_gradient.shape());
  detail::check_rope("rope_backward", layout, norm, rotation, sequence);
  rope_backward_body(rotated_gradient, layout, qkv, norm, norm_gradient, rotation, sequence,
                     qkv_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/rope.hpp>
