/// @file
/// Grouped-query attention with its projections.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/layers/rope.hpp>
#include <octavo/layers/shapes.hpp>

namespace octavo {

/// Fused projection to queries, keys and values, RoPE, causal attention, output projection with the
/// residual connection.
/// @tparam T       format of weights and activations
/// @tparam Qkv     precision of the fused projection
/// @tparam Output  precision of the output projection
/// @tparam G       format of gradients of weights
template <BlockShape Shape, class T, class Qkv, class Output, class G, Device D>
class GroupedQueryAttention {
 public:
  static_assert(Shape.heads % Shape.kv_heads == 0,
                "GroupedQueryAttention: heads must be a multiple of kv_heads, so that each KV head "
                "serves equally many query heads; change heads or kv_heads in the LlamaConfig");
  static_assert(Shape.head_dim % 2 == 0,
                "GroupedQueryAttention: head_dim must be even, because RoPE rotates pairs; change "
                "head_dim in the LlamaConfig");

  using QkvLinear = Linear<Qkv, Shape.hidden, Shape.qkv_columns(), G, D>;
  using OutputLinear = Linear<Output, Shape.attention_columns(), Shape.hidden, G, D>;
  static constexpr HeadLayout heads{Shape.heads, Shape.kv_heads, Shape.head_dim};

  /// What the backward needs, for all tokens of a batch.
  struct Saved {
    typename QkvLinear::InputMemory input;
    T* qkv = nullptr;      ///< [tokens, qkv_columns] before query and key normalisation, if any
    T* rotated = nullptr;  ///< [tokens, qkv_columns] after RoPE; `qkv` itself without that norm
    typename OutputLinear::InputMemory attended;
    float* log_sum_exp = nullptr;  ///< [sequences, heads, tokens]
  };

  /// What lives within one block's backward.
  struct Scratch {
    typename OutputLinear::OutputGradientMemory output_gradient;
    typename QkvLinear::OutputGradientMemory qkv_gradient;
    T* attended_gradient = nullptr;  ///< [tokens, attention_columns]
  };

  void declare(const std::string& name, LayerRegistry<D> registry, float initial_deviation,
               float residual_deviation, bool recomputed) {
    qkv_weight_.declare(name + ".qkv.weight", Shape.qkv_columns(), Shape.hidden,
                        Initial::normal(initial_deviation));
    output_weight_.declare(name + ".output.weight", Shape.hidden, Shape.attention_columns(),
                           Initial::normal(residual_deviation));
    if constexpr (Shape.qk_norm) {
      query_norm_.declare(name + ".query_norm.weight", 1, Shape.head_dim, Initial::ones());
      key_norm_.declare(name + ".key_norm.weight", 1, Shape.head_dim, Initial::ones());
    }
    announce(name + ".attention", registry, recomputed);
    qkv_.enter(name + ".qkv", registry, {.recomputed = recomputed});
    output_.enter(name + ".output", registry, {.recomputed = recomputed, .adds = true});
  }

  void take_weight_copies(Arena<D>& arena) {
    qkv_.take_weight_copies(arena, qkv_weight_);
    output_.take_weight_copies(arena, output_weight_);
  }

  /// Takes what backward needs of the input: the normalised rows.
  static void take_saved_input(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.take_kept(arena, tokens, Shape.hidden);
  }
  /// Takes everything else that backward needs.
  static void take_saved(Arena<D>& arena, Saved& saved, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    saved.qkv = arena.template take<T>(kind, tokens * Shape.qkv_columns());
    saved.rotated =
        Shape.qk_norm ? arena.template take<T>(kind, tokens * Shape.qkv_columns()) : saved.qkv;
    saved.attended.take_values(arena, kind, tokens, Shape.attention_columns());
    if constexpr (OutputLinear::quantized) {
      saved.attended.take_transposed(arena, kind, tokens, Shape.attention_columns());
    }
    saved.log_sum_exp = arena.template take<float>(kind, tokens * Shape.heads);
  }
  /// Takes what blocks share in the forward.
  static void take_shared(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.take_transient(arena, tokens, Shape.hidden);
    saved.attended.take_row_major(arena, MemoryKind::activations, tokens,
                                  Shape.attention_columns());
  }
  static void take_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    scratch.qkv_gradient.take_values(arena, kind, tokens, Shape.qkv_columns());
    scratch.attended_gradient = arena.template take<T>(kind, tokens * Shape.attention_columns());
    arena.overlay(
        [&] {
          scratch.output_gradient.take_row_major(arena, kind, tokens, Shape.hidden);
          scratch.output_gradient.take_transposed(arena, kind, tokens, Shape.hidden);
        },
        [&] {
          scratch.qkv_gradient.take_row_major(arena, kind, tokens, Shape.qkv_columns());
          scratch.qkv_gradient.take_transposed(arena, kind, tokens, Shape.qkv_columns());
        });
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    qkv_.template quantize_weight<M>(context);
    output_.template quantize_weight<M>(context);
  }

  /// The operand that the block's normalisation writes to.
  template <class M>
  [[nodiscard]] auto input(const Saved& saved, Index tokens, Copies copies) const {
    return qkv_.template input<M>(saved.input, tokens, copies);
  }

  /// y = residual + output(attention(x)).
  /// @param x         [tokens, hidden]
  /// @param residual  [tokens, hidden]
  /// @param y         [tokens, hidden]
  template <class M>
  void forward(const typename QkvLinear::Input& x, BatchShape batch, const RoPE<D>& rope,
               TensorView<const T, 2, D> residual, TensorView<T, 2, D> y, const Saved& saved,
               const Context<D>& context) {
    const Index tokens = batch.rows();
    const TensorView<T, 2, D> qkv{saved.qkv, {tokens, Shape.qkv_columns()}};
    const TensorView<T, 2, D> rotated{saved.rotated, {tokens, Shape.qkv_columns()}};
    qkv_.forward(x, {}, qkv, context);
    rope_forward(constant(qkv), heads, norm_weights(), rope.table(), batch.tokens, rotated,
                 context);
    const auto attended = output_.template input<M>(saved.attended, tokens,
                                                    {.row_major = true, .transposed = M::saves});
    count(AttentionPass::forward, batch,
          attention_forward(shape_of(batch), constant(rotated), attended.values,
                            log_sum_exp(saved, tokens), context));
    quantize(attended, context);
    output_.forward(attended, residual, y, context);
  }

  /// From the gradient of y to that of x; weights' gradients on the way.
  /// @param y_gradient  [tokens, hidden]; stays as it is
  /// @param x           the forward's input, with what the weight's gradient needs
  /// @param x_gradient  [tokens, hidden]
  void backward(TensorView<T, 2, D> y_gradient, const typename QkvLinear::Input& x,
                BatchShape batch, const RoPE<D>& rope, TensorView<T, 2, D> x_gradient,
                const Saved& saved, const Scratch& scratch, bool accumulate,
                const Context<D>& context) {
    const Index tokens = batch.rows();
    auto output_memory = scratch.output_gradient;
    output_memory.values = y_gradient.data();
    const auto dy = output_.output_gradient(output_memory, tokens);
    quantize(dy, context);
    const auto attended = output_.template input<Mode::recompute>(
        saved.attended, tokens, {.row_major = false, .transposed = true});
    output_.backward_weight(dy, attended, output_weight_.gradient, accumulate, context);
    const TensorView<T, 2, D> attended_gradient{scratch.attended_gradient,
                                                {tokens, Shape.attention_columns()}};
    output_.backward_input(dy, attended_gradient, context);

    const TensorView<const T, 2, D> rotated{saved.rotated, {tokens, Shape.qkv_columns()}};
    const TensorView<const T, 2, D> qkv{saved.qkv, {tokens, Shape.qkv_columns()}};
    const auto qkv_gradient = qkv_.output_gradient(scratch.qkv_gradient, tokens);
    const TensorView<const float, 1, D> sums = log_sum_exp(saved, tokens);
    count(AttentionPass::backward, batch,
          attention_backward(shape_of(batch), rotated, constant(attended.values),
                             constant(attended_gradient), sums, qkv_gradient.values, context));
    rope_backward(qkv_gradient.values, heads, qkv, norm_weights(), norm_gradients(), rope.table(),
                  batch.tokens, qkv_gradient, context);
    qkv_.backward_weight(qkv_gradient, x, qkv_weight_.gradient, accumulate, context);
    qkv_.backward_input(qkv_gradient, x_gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(qkv_weight_);
    if constexpr (Shape.qk_norm) {
      visitor(query_norm_);
      visitor(key_norm_);
    }
    visitor(output_weight_);
  }

 private:
  static AttentionShape shape_of(BatchShape batch) {
    return {batch.sequences, batch.tokens, heads};
  }

  /// Enters both passes for the registry's batch into the manifest.
  void announce(const std::string& name, const LayerRegistry<D>& registry, bool recomputed) {
    registry_ = registry;
    const BatchShape batch = registry.batch;
    const auto add = [&](AttentionPass pass, const char* pass_name, bool again,
                         std::string fallback) {
      entries_[static_cast<std::size_t>(pass)] = registry.manifest->add(
          AttentionEntry{name, pass_name,
                         message(batch.sequences, " x ", batch.tokens, ", ", Shape.heads, "/",
                                 Shape.kv_heads, " heads of ", Shape.head_dim),
                         FormatTraits<T>::name,
                         attention_implementation<T>(pass, shape_of(batch), registry.limits), again,
                         0, std::move(fallback)});
    };
    add(AttentionPass::forward, "forward", recomputed, {});
    add(AttentionPass::backward, "backward", false,
        attention_fallback<T>(shape_of(batch), registry.limits));
  }

  /// Counts what ran. Other shapes, such as those of a text that is being generated, are not
  /// announced.
  void count(AttentionPass pass, BatchShape batch, const char* by) {
    if (batch.sequences != registry_.batch.sequences || batch.tokens != registry_.batch.tokens) {
      return;
    }
    registry_.manifest->attention(entries_[static_cast<std::size_t>(pass)]).count(by);
  }

  template <class E, int Rank>
  static TensorView<const E, Rank, D> constant(TensorView<E, Rank, D> view) {
    return view;
  }
  static TensorView<float, 1, D> log_sum_exp(const Saved& saved, Index tokens) {
    return {saved.log_sum_exp, {tokens * Shape.heads}};
  }
  [[nodiscard]] QkNorm<const T, D> norm_weights() const {
    return {query_norm_.vector(), key_norm_.vector(), Shape.norm_epsilon};
  }
  [[nodiscard]] QkNorm<G, D> norm_gradients() const {
    return {query_norm_.gradient_vector(), key_norm_.gradient_vector(), Shape.norm_epsilon};
  }

  LayerRegistry<D> registry_;
  std::array<std::size_t, 2> entries_{};
  QkvLinear qkv_;
  OutputLinear output_;
  Parameter<T, G, D> qkv_weight_;
  Parameter<T, G, D> output_weight_;
  Parameter<T, G, D> query_norm_;
  Parameter<T, G, D> key_norm_;
};

}  // namespace octavo
