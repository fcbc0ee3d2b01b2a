/// @file
/// Causal attention in FP32, for exact comparisons: one warp per row, without tensor cores; slow,
/// but runs on any GPU.
#pragma once

#include <octavo/attention/cuda/own_attention.cuh>
#include <octavo/kernels/cuda/run.cuh>

namespace octavo OCTAVO_ABI {
namespace detail {

inline constexpr int simple_attention_threads = 128;

/// One row of a head, distributed over a warp: each lane holds every 32nd column.
struct WarpRow {
  float values[simple_attention_dim / 32] = {};

  WarpRow() = default;
  __device__ WarpRow(const float* row, int dim) {
    each(dim, [&](int i, int column) { values[i] = row[column]; });
  }
  __device__ void store(float* row, int dim) const {
    each(dim, [&](int i, int column) { row[column] = values[i]; });
  }
  __device__ void add(float factor, const WarpRow& other) {
    for (int i = 0; i < simple_attention_dim / 32; ++i) {
      values[i] = fmaf(factor, other.values[i], values[i]);
    }
  }
  __device__ void multiply(float factor) {
    for (float& value : values) value *= factor;
  }

  template <class Body>
  static __device__ void each(int dim, const Body& body) {
#pragma unroll
    for (int i = 0; i < simple_attention_dim / 32; ++i) {
      const int column = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      if (column < dim) body(i, column);
    }
  }
};

/// Returns Σ a · b, on all lanes.
__device__ inline float dot(const WarpRow& a, const WarpRow& b) {
  float sum = 0.0f;
  for (int i = 0; i < simple_attention_dim / 32; ++i) sum = fmaf(a.values[i], b.values[i], sum);
  return warp_sum(sum);
}

/// Returns the factor of scores, rounded correctly.
__device__ inline float exact_scale(const AttentionGeometry& geometry) {
  return geometry.given_scale > 0.0f ? geometry.given_scale
                                     : 1.0f / sqrtf(static_cast<float>(geometry.head_dim));
}

/// The row of one head that the calling warp processes.
struct WarpTask {
  int sequence, head, token;

  __device__ WarpTask(const AttentionGeometry& geometry, int heads) {
    const Index warp = (Index{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
    token = static_cast<int>(warp % geometry.tokens);
    head = static_cast<int>(warp / geometry.tokens % heads);
    sequence = static_cast<int>(warp / geometry.tokens / heads);
  }
};

/// Tensors of the FP32 kernels.
struct SimpleForwardArguments {
  const float* qkv;
  float* output;
  float* log_sum_exp;
};
struct SimpleBackwardArguments {
  const float* qkv;
  const float* output;
  const float* log_sum_exp;
  const float* output_gradient;
  float* delta;
  float* qkv_gradient;
};

/// Computes the output and the log-sum-exp of one query. Every kernel here is a template, because a
/// non-template kernel in a header would be defined in each file that includes it.
template <class T>
OCTAVO_KERNEL void simple_attention_forward_kernel(SimpleForwardArguments arguments,
                                                   AttentionGeometry geometry) {
  const auto& [qkv, output, log_sum_exp] = arguments;
  const WarpTask task(geometry, geometry.heads);
  if (task.sequence >= geometry.sequences) return;
  const int dim = geometry.head_dim;
  const int kv_head = task.head / geometry.group();
  WarpRow query(qkv + geometry.query(task.sequence, task.token, task.head), dim);
  query.multiply(exact_scale(geometry));
  const int first = geometry.begin<true>(task.sequence, task.token);
  WarpRow sums;
  float largest = -INFINITY;
  float sum = 0.0f;
  for (int token = first; token <= task.token; ++token) {
    const float score = dot(query, WarpRow(qkv + geometry.key(task.sequence, token, kv_head), dim));
    const float before = largest;
    largest = fmaxf(largest, score);
    const float factor = expf(before - largest);
    const float probability = expf(score - largest);
    sum = sum * factor + probability;
    sums.multiply(factor);
    sums.add(probability, WarpRow(qkv + geometry.value(task.sequence, token, kv_head), dim));
  }
  sums.multiply(1.0f / sum);
  sums.store(output + geometry.output(task.sequence, task.token, task.head), dim);
  if (threadIdx.x % 32 == 0) {
    log_sum_exp[geometry.statistic<true>(task.sequence, task.token, task.head)] =
        largest + logf(sum);
  }
}

/// Computes the gradient of one query, and its delta for the next kernel.
template <class T>
OCTAVO_KERNEL void simple_query_gradient_kernel(SimpleBackwardArguments arguments,
                                                AttentionGeometry geometry) {
  const auto& [qkv, output, log_sum_exp, output_gradient, delta, qkv_gradient] = arguments;
  const WarpTask task(geometry, geometry.heads);
  if (task.sequence >= geometry.sequences) return;
  const int dim = geometry.head_dim;
  const int kv_head = task.head / geometry.group();
  const float scale = exact_scale(geometry);
  const WarpRow query(qkv + geometry.query(task.sequence, task.token, task.head), dim);
  const Index out = geometry.output(task.sequence, task.token, task.head);
  const WarpRow gradient(output_gradient + out, dim);
  const float row_delta = dot(gradient, WarpRow(output + out, dim));
  const Index statistic = geometry.statistic<true>(task.sequence, task.token, task.head);
  const int first = geometry.begin<true>(task.sequence, task.token);
  WarpRow sums;
  for (int token = first; token <= task.token; ++token) {
    const WarpRow key(qkv + geometry.key(task.sequence, token, kv_head), dim);
    const WarpRow value(qkv + geometry.value(task.sequence, token, kv_head), dim);
    const float probability = expf(dot(query, key) * scale - log_sum_exp[statistic]);
    sums.add(probability * (dot(gradient, value) - row_delta) * scale, key);
  }
  sums.store(qkv_gradient + geometry.query(task.sequence, task.token, task.head), dim);
  if (threadIdx.x % 32 == 0) delta[statistic] = row_delta;
}

/// Computes the gradients of one key and value.
template <class T>
OCTAVO_KERNEL void simple_key_gradient_kernel(SimpleBackwardArguments arguments,
                                              AttentionGeometry geometry) {
  const auto& [qkv, output, log_sum_exp, output_gradient, delta, qkv_gradient] = arguments;
  const WarpTask task(geometry, geometry.kv_heads);
  if (task.sequence >= geometry.sequences) return;
  const int dim = geometry.head_dim;
  const float scale = exact_scale(geometry);
  const WarpRow key(qkv + geometry.key(task.sequence, task.token, task.head), dim);
  const WarpRow value(qkv + geometry.value(task.sequence, task.token, task.head), dim);
  const int end = geometry.end<true>(task.sequence, task.token);
  WarpRow key_sums;
  WarpRow value_sums;
  for (int i = 0; i < geometry.group(); ++i) {
    const int head = task.head * geometry.group() + i;
    for (int token = task.token; token < end; ++token) {
      const WarpRow query(qkv + geometry.query(task.sequence, token, head), dim);
      const WarpRow gradient(output_gradient + geometry.output(task.sequence, token, head), dim);
      const Index statistic = geometry.statistic<true>(task.sequence, token, head);
      const float probability = expf(dot(query, key) * scale - log_sum_exp[statistic]);
      value_sums.add(probability, gradient);
      key_sums.add(probability * (dot(gradient, value) - delta[statistic]) * scale, query);
    }
  }
  key_sums.store(qkv_gradient + geometry.key(task.sequence, task.token, task.head), dim);
  value_sums.store(qkv_gradient + geometry.value(task.sequence, task.token, task.head), dim);
}

/// Launches one warp for each token and each of `heads` heads.
template <class Arguments>
void launch_simple_attention(void (*kernel)(Arguments, AttentionGeometry),
                             const AttentionShape& shape, const Documents<Cuda>& documents,
                             Index heads, const Arguments& arguments,
                             const Context<Cuda>& context) {
  require_own_attention(shape, false);
  launch("attention in FP32", kernel,
         ceil_divide(shape.rows() * heads * 32, simple_attention_threads), simple_attention_threads,
         0, context, arguments, AttentionGeometry(shape, documents));
}

/// See attention_forward.
inline void simple_attention_forward(const AttentionShape& shape,
                                     TensorView<const float, 2, Cuda> qkv,
                                     const Documents<Cuda>& documents,
                                     TensorView<float, 2, Cuda> output,
                                     TensorView<float, 1, Cuda> log_sum_exp,
                                     const Context<Cuda>& context) {
  const SimpleForwardArguments arguments{qkv.data(), output.data(), log_sum_exp.data()};
  launch_simple_attention(simple_attention_forward_kernel<float>, shape, documents,
                          shape.heads.heads, arguments, context);
}

/// See attention_backward.
inline void simple_attention_backward(
    const AttentionShape& shape, TensorView<const float, 2, Cuda> qkv,
    const Documents<Cuda>& documents, TensorView<const float, 2, Cuda> output,
    TensorView<const float, 2, Cuda> output_gradient, TensorView<const float, 1, Cuda> log_sum_exp,
    TensorView<float, 2, Cuda> qkv_gradient, const Context<Cuda>& context) {
  const SimpleBackwardArguments arguments{qkv.data(),
                                          output.data(),
                                          log_sum_exp.data(),
                                          output_gradient.data(),
                                          attention_deltas(shape, context),
                                          qkv_gradient.data()};
  launch_simple_attention(simple_query_gradient_kernel<float>, shape, documents, shape.heads.heads,
                          arguments, context);
  launch_simple_attention(simple_key_gradient_kernel<float>, shape, documents, shape.heads.kv_heads,
                          arguments, context);
}

}  // namespace detail
}  // namespace octavo
