/// @file
/// Causal attention on the `Cpu` device: blocks of queries against all earlier keys of their
/// windows, separately for each document.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cpu/eight_bit_attention.hpp>
#include <octavo/core/math.hpp>
#include <octavo/gemm/cpu/sgemm.hpp>
#include <octavo/kernels/cpu/sums.hpp>

#include <algorithm>
#include <cmath>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Number of queries processed together.
inline constexpr Index attention_block = 64;

/// FP32 scratch of one thread's forward: K, V, and one block of queries.
struct ForwardScratch {
  float* keys;     ///< [tokens, head_dim]
  float* values;   ///< [tokens, head_dim]
  float* queries;  ///< [block, head_dim]
  float* outputs;  ///< [block, head_dim]
  float* scores;   ///< [block, tokens]

  /// @param rows  number of queries; at most `attention_block` of them are processed together
  static Index floats(Index tokens, Index dim, Index rows) {
    const Index block = std::min(rows, attention_block);
    return 2 * tokens * dim + 2 * block * dim + block * tokens;
  }

  ForwardScratch(float* memory, Index tokens, Index dim, Index rows) {
    const Index block = std::min(rows, attention_block);
    keys = memory;
    values = keys + tokens * dim;
    queries = values + tokens * dim;
    outputs = queries + block * dim;
    scores = outputs + block * dim;
  }
};

/// FP32 scratch of one thread: that of the forward, and gradients.
struct AttentionScratch : ForwardScratch {
  float* key_gradient;     ///< [tokens, head_dim]
  float* value_gradient;   ///< [tokens, head_dim]
  float* score_gradients;  ///< [attention_block, tokens]

  static Index floats(const AttentionShape& shape) {
    const Index dim = shape.heads.head_dim;
    return ForwardScratch::floats(shape.tokens, dim, attention_block) + 2 * shape.tokens * dim +
           attention_block * shape.tokens;
  }

  AttentionScratch(float* memory, const AttentionShape& shape)
      : ForwardScratch(memory, shape.tokens, shape.heads.head_dim, attention_block) {
    const Index whole = shape.tokens * shape.heads.head_dim;
    key_gradient = scores + attention_block * shape.tokens;
    value_gradient = key_gradient + whole;
    score_gradients = value_gradient + whole;
  }
};

/// Copies `rows` rows of one head to FP32.
template <class T>
void load_head(const T* source, Index stride, Index rows, Index dim, float* target) {
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < dim; ++c)
      target[r * dim + c] = static_cast<float>(source[r * stride + c]);
  }
}

/// Rounds `rows` rows of FP32 to one head.
template <class T>
void store_head(const float* source, Index stride, Index rows, Index dim, T* target) {
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < dim; ++c) target[r * stride + c] = T(source[r * dim + c]);
  }
}

/// The keys that a block of adjacent queries of one document attends to.
struct BlockKeys {
  Index begin;  ///< a multiple of `sgemm_depth`, so that a query's sums do not depend on the block
  Index count;  ///< up to the last query

  /// @param first    position of the first query
  /// @param queries  number of queries
  BlockKeys(const AttentionOptions& attention_options, Index first, Index queries)
      : begin(attention_options.first_visible(first) / sgemm_depth * sgemm_depth),
        count(first + queries - begin),
        first_(first),
        options_(attention_options) {}

  /// Returns the range of keys, counted from `begin`, that a query attends to.
  [[nodiscard]] Index visible_begin(Index query) const {
    return options_.first_visible(first_ + query) - begin;
  }
  [[nodiscard]] Index visible_end(Index query) const { return first_ + query + 1 - begin; }

 private:
  Index first_;
  AttentionOptions options_;
};

/// Sets scores[r, c] = exp(score − log_sum_exp) for the keys that a query attends to, and 0 for the
/// others.
/// @param scores  [rows, keys.count]
inline void scores_to_probabilities(float* scores, const BlockKeys& keys, Index rows,
                                    const float* log_sum_exp) {
  for (Index r = 0; r < rows; ++r) {
    float* row = scores + r * keys.count;
    const Index begin = keys.visible_begin(r);
    const Index end = keys.visible_end(r);
    std::fill(row, row + begin, 0.0f);
    for (Index c = begin; c < end; ++c) row[c] = fast_exp(row[c] - log_sum_exp[r]);
    std::fill(row + end, row + keys.count, 0.0f);
  }
}

/// Computes log Σ exp(score) over the keys that each query attends to.
/// @param scores  [rows, keys.count]
inline void row_log_sum_exp(const float* scores, const BlockKeys& keys, Index rows,
                            float* log_sum_exp) {
  for (Index r = 0; r < rows; ++r) {
    const float* row = scores + r * keys.count + keys.visible_begin(r);
    const Index visible = keys.visible_end(r) - keys.visible_begin(r);
    const float largest = lane_max(visible, [&](Index c) { return row[c]; });
    const float sum = lane_sum(visible, [&](Index c) { return fast_exp(row[c] - largest); });
    log_sum_exp[r] = largest + std::log(sum);
  }
}

/// Computes the outputs of up to `attention_block` adjacent queries of one head. An output does not
/// depend on the other queries.
/// @param first        position of the first query
/// @param queries      of the first query; the next is `stride` elements later
/// @param log_sum_exp  [count], written
/// @param output       of the first query; the next is `output_stride` elements later
template <class T>
void attend(const T* queries, Index stride, const AttentionOptions& options, Index first,
            Index count, Index dim, const ForwardScratch& w, float* log_sum_exp, T* output,
            Index output_stride) {
  const BlockKeys keys(options, first, count);
  load_head(queries, stride, count, dim, w.queries);
  sgemm({w.queries, dim, Transpose::no}, {w.keys + keys.begin * dim, dim, Transpose::yes}, count,
        keys.count, dim, options.scale_for(dim), false, w.scores, keys.count);
  row_log_sum_exp(w.scores, keys, count, log_sum_exp);
  if (options.forward == AttentionForward::eight_bit) {
    scores_to_fp8_probabilities(w.scores, keys, count);
  } else {
    scores_to_probabilities(w.scores, keys, count, log_sum_exp);
  }
  sgemm({w.scores, keys.count, Transpose::no}, {w.values + keys.begin * dim, dim, Transpose::no},
        count, dim, keys.count, 1.0f, false, w.outputs, dim);
  store_head(w.outputs, output_stride, count, dim, output);
}

/// See attention_limits.
inline void add_attention_limits(const AttentionShape&, bool, DeviceLimits<Cpu>&,
                                 const Context<Cpu>&) {}

}  // namespace detail

/// Returns the implementation of an attention pass on the `Cpu` device.
template <class T>
constexpr const char* attention_implementation(AttentionPass pass, const AttentionShape& shape,
                                               const DeviceLimits<Cpu>&) {
  const bool is_eight_bit =
      pass == AttentionPass::forward && shape.options.forward == AttentionForward::eight_bit;
  return is_eight_bit ? "octavo loops 8-bit" : "octavo loops";
}

/// Returns an empty reason: the `Cpu` device has no fallback.
template <class T>
std::string attention_fallback(AttentionPass, const AttentionShape&, const DeviceLimits<Cpu>&) {
  return {};
}

namespace detail {

/// Returns the bytes of the scratch of all threads.
inline std::size_t attention_scratch(const AttentionShape& shape, const DeviceLimits<Cpu>& limits) {
  return static_cast<std::size_t>(limits.threads * AttentionScratch::floats(shape)) * sizeof(float);
}

}  // namespace detail

/// Returns the bytes of workspace that attention of this shape and format needs.
template <class T = Bf16>
std::size_t attention_workspace(const AttentionShape& shape, const DeviceLimits<Cpu>& limits) {
  return detail::attention_scratch(shape, limits);
}

namespace detail {

/// The rows of one document.
struct DocumentRows {
  Index first = 0;   ///< row of the batch
  Index tokens = 0;  ///< rows

  /// Document `number` of a batch; sequence `number` if there are no documents.
  DocumentRows(const AttentionShape& shape, const Documents<Cpu>& documents, Index number)
      : first(number * shape.tokens), tokens(shape.tokens) {
    if (documents.empty()) return;
    const std::int32_t* begin = documents.begins.data() + number;
    first = begin[0];
    tokens = begin[1] - begin[0];
  }
};

inline Index count_documents(const AttentionShape& shape, const Documents<Cpu>& documents) {
  if (documents.empty()) return shape.sequences;
  const std::int32_t* begins = documents.begins.data();
  return std::lower_bound(begins, begins + shape.most_documents, shape.rows()) - begins;
}

/// Calls `body(document, kv_head, scratch)` for every KV head of every document, in parallel. Each
/// document is processed separately, so its results do not depend on other documents.
template <class Body>
void for_each_kv_head(const AttentionShape& shape, const Documents<Cpu>& documents,
                      const Context<Cpu>& context, const Body& body) {
  auto* memory = workspace_of<float>(context, attention_scratch(shape, context), "attention");
  const Index kv_heads = shape.heads.kv_heads;
  parallel_for(count_documents(shape, documents) * kv_heads, many_elements, context, [&](Index i) {
    AttentionScratch scratch(memory + thread_index() * AttentionScratch::floats(shape), shape);
    body(DocumentRows(shape, documents, i / kv_heads), i % kv_heads, scratch);
  });
}

/// Calls `body(kind, rows, tile)` with a copy of each tile, the 128 tokens of a fused head that
/// share a scale, and replaces the tile by the copy. Tiles of different tokens run in parallel.
/// @param qkv  fused rows of queries, keys and values, or of their gradients
template <class T, class Body>
void replace_head_tiles(const AttentionShape& shape, TensorView<T, 2, Cpu> qkv,
                        const Context<Cpu>& context, const Body& body) {
  auto* memory = workspace_of<float>(context, attention_scratch(shape, context), "attention");
  const Index dim = shape.heads.head_dim;
  const Index columns = shape.heads.columns();
  const Index tiles = ceil_divide(shape.tokens, eight_bit_attention_rows);
  parallel_for(shape.sequences * tiles, eight_bit_attention_rows * columns, context, [&](Index i) {
    const AttentionScratch scratch(memory + thread_index() * AttentionScratch::floats(shape),
                                   shape);
    const Index token = i % tiles * eight_bit_attention_rows;
    const Index rows = std::min(eight_bit_attention_rows, shape.tokens - token);
    T* const first = qkv.row(i / tiles * shape.tokens + token);
    for (Index head = 0; head < columns / dim; ++head) {
      load_head(first + head * dim, columns, rows, dim, scratch.keys);
      body(kind_of_head(shape.heads, head), rows, scratch.keys);
      store_head(scratch.keys, columns, rows, dim, first + head * dim);
    }
  });
}

/// Returns the index of the log-sum-exp of a row's first head; that of the next head is
/// `shape.tokens` later.
inline Index statistic_of(const AttentionShape& shape, Index row) {
  return row / shape.tokens * shape.heads.heads * shape.tokens + row % shape.tokens;
}

/// See attention_forward.
template <class T>
const char* attention_forward_body(const AttentionShape& shape, TensorView<T, 2, Cpu> qkv,
                                   const Documents<Cpu>& documents, TensorView<T, 2, Cpu> output,
                                   TensorView<float, 1, Cpu> log_sum_exp,
                                   const Context<Cpu>& context) {
  const Index heads = shape.heads.heads;
  const Index kv_heads = shape.heads.kv_heads;
  const Index dim = shape.heads.head_dim;
  const Index stride = shape.heads.columns();
  const Index group = heads / kv_heads;
  if (shape.options.forward == AttentionForward::eight_bit) {
    replace_head_tiles(shape, qkv, context, [&](HeadKind kind, Index rows, float* tile) {
      round_to_8_bits(kind, rows, dim, tile);
    });
  }
  const auto one = [&](DocumentRows document, Index kv, AttentionScratch& w) {
    const Index tokens = document.tokens;
    const T* rows = qkv.row(document.first);
    load_head(rows + (heads + kv) * dim, stride, tokens, dim, w.keys);
    load_head(rows + (heads + kv_heads + kv) * dim, stride, tokens, dim, w.values);
    for (Index head = kv * group; head < (kv + 1) * group; ++head) {
      float* sums = log_sum_exp.data() + statistic_of(shape, document.first) + head * shape.tokens;
      for (Index first = 0; first < tokens; first += attention_block) {
        attend(rows + first * stride + head * dim, stride, shape.options, first,
               std::min(attention_block, tokens - first), dim, w, sums + first,
               output.row(document.first + first) + head * dim, heads * dim);
      }
    }
  };
  for_each_kv_head(shape, documents, context, one);
  return attention_implementation<T>(AttentionPass::forward, shape, context);
}

/// See attention_backward. With P the probabilities and δ = Σ dO · O of a row: dV = Pᵀ · dO,
/// dS = P · (dO · Vᵀ − δ) · scale, dQ = dS · K, dK = dSᵀ · Q.
template <class T>
const char* attention_backward_body(const AttentionShape& shape, TensorView<const T, 2, Cpu> qkv,
                                    const Documents<Cpu>& documents,
                                    TensorView<const T, 2, Cpu> output,
                                    TensorView<const T, 2, Cpu> output_gradient,
                                    TensorView<const float, 1, Cpu> log_sum_exp,
                                    TensorView<T, 2, Cpu> qkv_gradient,
                                    const Context<Cpu>& context) {
  const Index heads = shape.heads.heads;
  const Index kv_heads = shape.heads.kv_heads;
  const Index dim = shape.heads.head_dim;
  const Index stride = shape.heads.columns();
  const Index group = heads / kv_heads;
  const float scale = shape.options.scale_for(dim);
  const auto one = [&](DocumentRows document, Index kv, AttentionScratch& w) {
    const Index tokens = document.tokens;
    const T* rows = qkv.row(document.first);
    T* gradients = qkv_gradient.row(document.first);
    load_head(rows + (heads + kv) * dim, stride, tokens, dim, w.keys);
    load_head(rows + (heads + kv_heads + kv) * dim, stride, tokens, dim, w.values);
    std::fill(w.key_gradient, w.key_gradient + tokens * dim, 0.0f);
    std::fill(w.value_gradient, w.value_gradient + tokens * dim, 0.0f);
    for (Index head = kv * group; head < (kv + 1) * group; ++head) {
      const float* sums =
          log_sum_exp.data() + statistic_of(shape, document.first) + head * shape.tokens;
      for (Index first = 0; first < tokens; first += attention_block) {
        const Index count = std::min(attention_block, tokens - first);
        const BlockKeys block(shape.options, first, count);
        const Index keys = block.count;
        const Index before = block.begin * dim;  // elements of keys that no query attends to
        const Index out_row = document.first + first;
        load_head(rows + first * stride + head * dim, stride, count, dim, w.queries);
        load_head(output_gradient.row(out_row) + head * dim, heads * dim, count, dim, w.outputs);
        sgemm({w.queries, dim, Transpose::no}, {w.keys + before, dim, Transpose::yes}, count, keys,
              dim, scale, false, w.scores, keys);
        scores_to_probabilities(w.scores, block, count, sums + first);
        sgemm({w.scores, keys, Transpose::yes}, {w.outputs, dim, Transpose::no}, keys, dim, count,
              1.0f, true, w.value_gradient + before, dim);
        sgemm({w.outputs, dim, Transpose::no}, {w.values + before, dim, Transpose::yes}, count,
              keys, dim, 1.0f, false, w.score_gradients, keys);
        for (Index r = 0; r < count; ++r) {
          const T* o = output.row(out_row + r) + head * dim;
          const float* d_out = w.outputs + r * dim;
          const float delta =
              lane_sum(dim, [&](Index c) { return static_cast<float>(o[c]) * d_out[c]; });
          const float* p = w.scores + r * keys;
          float* ds = w.score_gradients + r * keys;
          for (Index c = 0; c < keys; ++c) ds[c] = p[c] * (ds[c] - delta) * scale;
        }
        sgemm({w.score_gradients, keys, Transpose::yes}, {w.queries, dim, Transpose::no}, keys, dim,
              count, 1.0f, true, w.key_gradient + before, dim);
        sgemm({w.score_gradients, keys, Transpose::no}, {w.keys + before, dim, Transpose::no},
              count, dim, keys, 1.0f, false, w.outputs, dim);
        store_head(w.outputs, stride, count, dim, gradients + first * stride + head * dim);
      }
    }
    store_head(w.key_gradient, stride, tokens, dim, gradients + (heads + kv) * dim);
    store_head(w.value_gradient, stride, tokens, dim, gradients + (heads + kv_heads + kv) * dim);
  };
  for_each_kv_head(shape, documents, context, one);
  if (shape.options.forward == AttentionForward::eight_bit) {
    replace_head_tiles(shape, qkv_gradient, context, [&](HeadKind kind, Index rows, float* tile) {
      rotate_gradients(kind, rows, dim, tile);
    });
  }
  return attention_implementation<T>(AttentionPass::backward, shape, context);
}

}  // namespace detail

}  // namespace octavo
