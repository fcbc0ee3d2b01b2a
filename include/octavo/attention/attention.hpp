/// @file
/// Causal attention with grouped queries, within documents.
#pragma once

#include <octavo/attention/attention_shape.hpp>
#include <octavo/tensor/tensor.hpp>

#include <cmath>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Throws ShapeError unless the window and the scale are valid.
inline void check_options(const char* operation, const AttentionOptions& options) {
  require<ShapeError>(options.window >= 0, operation, ": window must not be negative, but is ",
                      options.window, "; 0 means no limit");
  require<ShapeError>(options.scale >= 0.0f && std::isfinite(options.scale), operation,
                      ": scale must be positive, but is ", options.scale,
                      "; 0 means 1 / sqrt(head_dim)");
}

template <class T, Device D>
void check_attention(const char* operation, const AttentionShape& shape, TensorView<T, 2, D> qkv,
                     Index log_sum_exps) {
  check_shape(operation, "qkv", qkv, {shape.rows(), shape.heads.columns()});
  require_even_sharing(operation, shape.heads);
  check_options(operation, shape.options);
  require<ShapeError>(log_sum_exps == shape.rows() * shape.heads.heads, operation,
                      ": log_sum_exp has ", log_sum_exps, " elements, but ",
                      shape.rows() * shape.heads.heads, " are needed");
}

/// Throws ShapeError unless the documents have the tables that the shape requires.
template <Device D>
void check_documents(const char* operation, const AttentionShape& shape,
                     const Documents<D>& documents) {
  const Index most = shape.most_documents;
  require<ShapeError>(documents.empty() == (most == 0), operation, ": documents are ",
                      documents.empty() ? "not given" : "given", ", but most_documents is ", most,
                      "; set 0 if each sequence is one document");
  if (most == 0) return;
  check_shape(operation, "begins of documents", documents.begins, {most + 1});
  check_shape(operation, "positions in documents", documents.positions, {shape.rows()});
  check_shape(operation, "followers in documents", documents.followers, {shape.rows()});
}

}  // namespace detail

/// Returns the limits of a context's device for attention of format `T` with these shapes, whose
/// batches are equal. The limits state whether libraries support each shape, and how much memory it
/// needs. Plans based on these limits remain valid when attention runs.
/// @throws ConfigError  if neither the device's kernels nor a library that the context's settings
///                      name support a shape
template <class T, Device D>
[[nodiscard]] DeviceLimits<D> attention_limits(const std::vector<AttentionShape>& shapes,
                                               const Context<D>& context) {
  DeviceLimits<D> limits = context;
  for (const AttentionShape& shape : shapes) {
    add_attention_limits(shape, std::is_same_v<T, Bf16>, limits, context);
  }
  return limits;
}
/// Returns the limits for one attention.
template <class T, Device D>
[[nodiscard]] DeviceLimits<D> attention_limits(const AttentionShape& shape,
                                               const Context<D>& context) {
  return attention_limits<T>(std::vector<AttentionShape>{shape}, context);
}

/// Computes output = softmax(scale · Q · Kᵀ) · V for each head. A token attends to itself and to
/// earlier tokens of its document that are in its window; `heads / kv_heads` adjacent query heads
/// share a KV head.
/// @param qkv          [rows, heads.columns()], after RoPE. An 8-bit forward replaces it by
///     rotated and rounded queries and keys and rounded values, which the backward then multiplies.
/// @param documents    empty if each sequence is one document
/// @param output       [rows, heads · head_dim]
/// @param log_sum_exp  [sequences, heads, tokens], saved for the backward; with documents [rows,
///                     heads] on `Cuda`
/// @return the implementation that ran, for the manifest: see `attention_implementation`
/// @note enqueues; does not synchronise; uses `attention_workspace` bytes of the context's
///   workspace. Source: Ainslie et al. 2023, arXiv 2305.13245; Dao 2023, arXiv 2307.08691;
///   windows: Beltagy et al. 2020, arXiv 2004.05150.
template <class T, Device D>
[[nodiscard]] const char* attention_forward(const AttentionShape& shape, TensorView<T, 2, D> qkv,
                                            const std::type_identity_t<Documents<D>>& documents,
                                            TensorView<T, 2, D> output,
                                            TensorView<float, 1, D> log_sum_exp,
                                            const Context<D>& context) {
  detail::check_attention("attention_forward", shape, qkv, log_sum_exp.size());
  detail::check_documents("attention_forward", shape, documents);
  check_shape("attention_forward", "output", output,
              {shape.rows(), shape.heads.heads * shape.heads.head_dim});
  return attention_forward_body(shape, qkv, documents, output, log_sum_exp, context);
}

/// Computes the gradient of `qkv`.
/// @param qkv              [rows, heads.columns()], after RoPE
/// @param documents        of the forward
/// @param output           [rows, heads · head_dim], of the forward
/// @param output_gradient  [rows, heads · head_dim]
/// @param log_sum_exp      of the forward
/// @param qkv_gradient     [rows, heads.columns()]
/// @return the implementation that ran, for the manifest: see `attention_implementation`
/// @note enqueues; does not synchronise; uses `attention_workspace` bytes of the context's
///   workspace
template <class T, Device D>
[[nodiscard]] const char* attention_backward(
    const AttentionShape& shape, TensorView<const T, 2, D> qkv,
    const std::type_identity_t<Documents<D>>& documents, TensorView<const T, 2, D> output,
    TensorView<const T, 2, D> output_gradient, TensorView<const float, 1, D> log_sum_exp,
    TensorView<T, 2, D> qkv_gradient, const Context<D>& context) {
  detail::check_attention("attention_backward", shape, qkv, log_sum_exp.size());
  detail::check_documents("attention_backward", shape, documents);
  check_shape("attention_backward", "output", output,
              {shape.rows(), shape.heads.heads * shape.heads.head_dim});
  check_shape("attention_backward", "output_gradient", output_gradient, output.shape());
  check_shape("attention_backward", "qkv_gradient", qkv_gradient, qkv.shape());
  return attention_backward_body(shape, qkv, documents, output, output_gradient, log_sum_exp,
                                 qkv_gradient, context);
}

}  // namespace octavo

#include <octavo/attention/cpu/attention.hpp>
