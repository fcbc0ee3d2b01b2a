/// @file
/// Grouped-query attention with its projections.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cached_attention.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/projection.hpp>
#include <octavo/layers/rotation.hpp>
#include <octavo/layers/shapes.hpp>
#include <octavo/tensor/partial_view.hpp>

namespace octavo OCTAVO_ABI {

/// Computes a fused projection to queries, keys and values, a rotation, causal attention, and an
/// output projection with the residual connection. A part of a `ResidualBranch`.
/// @tparam Rotate  `Rotation`, `NormalisedRotation`, `NoRotation`, or a type with the same members
/// @tparam T       format of weights and activations
/// @tparam Qkv     precision of the fused projection
/// @tparam Output  precision of the output projection
/// @tparam G       format of the weights' gradients
template <BlockShape Shape, class Rotate, class T, class Qkv, class Output, class G, Device D>
class GroupedQueryAttention {
 public:
  static_assert(
      Shape.head_layout().shares_evenly(),
      "GroupedQueryAttention: heads must be a multiple of kv_heads, so that every KV head is "
      "shared by the same number of query heads; change heads or kv_heads in the LlamaConfig");
  static_assert(Shape.head_dim % 2 == 0,
                "GroupedQueryAttention: head_dim must be even, because rotations and kernels "
                "process a head's columns in pairs; change head_dim of a LlamaConfig, or hidden or "
                "heads of a Gpt2Config, whose quotient it is");
  static constexpr bool has_qkv_bias = Shape.bias || Shape.qkv_bias;
  static_assert(!has_qkv_bias || Rotate::sums_bias,
                "GroupedQueryAttention: this rotation's backward does not compute a bias gradient; "
                "choose another rotation, or a BlockShape without bias");
  static_assert(!has_qkv_bias || Shape.tensor_parallel == 1,
                "GroupedQueryAttention: ranks that share a layer cannot share its bias; choose "
                "TensorParallel<1>, or a BlockShape without bias");

  /// The result type of the last GEMMs of the forward and of the backward. If ranks share the
  /// layer, these are terms of a sum over the ranks.
  using Result = GemmResultView<Shape.tensor_parallel, T, 2, D>;
  using QkvProjection = Projection<Qkv, Shape.hidden, Shape.qkv_columns(), has_qkv_bias, G, D>;
  using OutputProjection =
      Projection<Output, Shape.attention_columns(), Shape.hidden, Shape.bias, G, D>;
  using Input = typename QkvProjection::Input;
  /// Whether the forward also accepts a `BeforeNorm`.
  static constexpr bool takes_input_before_norm = true;
  using Positions = typename Rotate::Positions;

  /// Data that the backward needs, for all tokens of a batch.
  struct Saved {
    typename QkvProjection::InputMemory input;
    T* qkv = nullptr;      ///< [tokens, qkv_columns] before the rotation
    T* rotated = nullptr;  ///< [tokens, qkv_columns]; `qkv` itself if the rotation works in place
    typename OutputProjection::InputMemory attended;
    float* log_sum_exp = nullptr;  ///< [sequences, heads, tokens]
  };

  /// Temporary memory of one block's backward.
  struct Scratch {
    typename OutputProjection::OutputGradientMemory y_gradient;
    typename QkvProjection::OutputGradientMemory qkv_gradient;
    T* attended_gradient = nullptr;  ///< [tokens, attention_columns]
  };

  void declare(const std::string& name, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    require<ConfigError>(registry.attention_forward == Shape.attention_forward ||
                             registry.attention_forward == AttentionForward::storage,
                         name,
                         ".attention: the precision has an 8-bit forward of attention, but the "
                         "block's shape does not; pass shape.with(P::attention_forward) to "
                         "GroupedQueryAttention in the model's family");
    recomputation_ = recomputation;
    const bool recomputed = recomputation.drops(Recompute::block);
    announce(name + ".attention", registry, recomputed);
    constexpr Index keys = Shape.kv_heads * Shape.head_dim;
    qkv_.declare(name + ".qkv", registry, initial.inner,
                 {.recomputed = recomputed,
                  .parts = {{{LoraTarget::q_proj, Shape.attention_columns()},
                             {LoraTarget::k_proj, keys},
                             {LoraTarget::v_proj, keys}}}});
    rotate_.declare(name);
    output_.declare(name + ".output", registry, initial.outer,
                    {.recomputed = recomputation.runs_forward_again(),
                     .adds = Shape.adds_residual(),
                     .parts = {{{LoraTarget::o_proj, Shape.hidden}}}});
    if constexpr (Shape.tensor_parallel > 1) {
      constexpr int degree = Shape.tensor_parallel;
      qkv_.set_part(ParameterPart::rows(degree, registry.tensor_rank,
                                        {Shape.attention_columns(), keys, keys}));
      output_.set_part(ParameterPart::columns(degree, registry.tensor_rank, Shape.hidden));
    }
  }

  void allocate_weight_copies(Arena<D>& arena) {
    qkv_.allocate_weight_copies(arena);
    output_.allocate_weight_copies(arena);
  }

  /// Allocates the tensors of `saved` for which `wanted(from)` is true, where `from` and all later
  /// policies drop the tensor.
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    constexpr auto kind = MemoryKind::activations;
    if (wanted(Recompute::norms)) saved.input.allocate_kept(arena, tokens, Shape.hidden);
    if (!wanted(Recompute::block)) return;
    saved.qkv = arena.template allocate<T>(kind, tokens * Shape.qkv_columns());
    saved.rotated = Rotate::in_place
                        ? saved.qkv
                        : arena.template allocate<T>(kind, tokens * Shape.qkv_columns());
    saved.attended.allocate_values(arena, kind, tokens, Shape.attention_columns());
    if constexpr (OutputProjection::quantized) {
      saved.attended.allocate_transposed(arena, kind, tokens, Shape.attention_columns());
    }
    saved.log_sum_exp = arena.template allocate<float>(kind, tokens * Shape.heads);
  }
  /// Allocates the memory that blocks share in the forward.
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.allocate_transient(arena, tokens, Shape.hidden);
    saved.attended.allocate_row_major(arena, MemoryKind::activations, tokens,
                                      Shape.attention_columns());
  }
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    scratch.qkv_gradient.allocate_values(arena, kind, tokens, Shape.qkv_columns());
    scratch.attended_gradient =
        arena.template allocate<T>(kind, tokens * Shape.attention_columns());
    arena.overlay(
        [&] {
          scratch.y_gradient.allocate_row_major(arena, kind, tokens, Shape.hidden);
          scratch.y_gradient.allocate_transposed(arena, kind, tokens, Shape.hidden);
        },
        [&] {
          scratch.qkv_gradient.allocate_row_major(arena, kind, tokens, Shape.qkv_columns());
          scratch.qkv_gradient.allocate_transposed(arena, kind, tokens, Shape.qkv_columns());
        });
  }

  /// Allocates the KV cache for text generation.
  /// @param longest  maximum length in tokens
  void allocate_cache(Arena<D>& arena, Index longest) {
    constexpr Index columns = Index{Shape.kv_heads} * Shape.head_dim;
    const auto allocate = [&]() -> TensorView<T, 2, D> {
      return {arena.template allocate<T>(MemoryKind::activations, longest * columns),
              {longest, columns}};
    };
    cache_ = {allocate(), allocate()};
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    qkv_.template quantize_weight<M>(context);
    output_.template quantize_weight<M>(context);
  }

  /// Returns the operand that the block's norm writes.
  template <class M>
  [[nodiscard]] Input input(const Saved& saved, Index tokens, OperandCopies copies) const {
    return qkv_.template input<M>(saved.input, tokens, copies);
  }
  /// Returns which copies of its input the backward reads.
  [[nodiscard]] OperandCopies backward_input() const {
    return {.row_major = recomputation_.in_backward(Recompute::block), .transposed = true};
  }

  /// y = residual + output(attention(rotation(qkv(x)))).
  /// @param x         [tokens, hidden]: an `Input`, or a `BeforeNorm` of one
  /// @param residual  [tokens, hidden]; empty for terms
  /// @param y         [tokens, hidden]
  template <class M, class X>
  void forward(const X& x, TensorView<const T, 2, D> residual, Result y, const BatchView<D>& batch,
               const Positions& positions, const Saved& saved, const Context<D>& context) {
    const auto attended = output_.template input<M>(saved.attended, batch.rows(),
                                                    {.row_major = true, .transposed = M::saves});
    if constexpr (std::is_same_v<M, Mode::generate>) {
      attend_to_cache(x, attended, batch, positions, saved, context);
    } else {
      qkv_.forward(x, {}, qkv(saved, batch.rows()), context);
      attend(attended, batch, positions, saved, context);
    }
    output_.forward(attended, residual, terms_of(y), context);
  }

  /// Computes the gradient of x from that of y, and the gradients of the parameters, as in
  /// PreNormBlock::backward.
  /// @param y_gradient  [tokens, hidden]; not modified
  /// @param x           the forward's input, with the copies of `backward_input`
  /// @param x_gradient  [tokens, hidden]
  void backward(TensorView<T, 2, D> y_gradient, const Input& x, Result x_gradient,
                const BatchView<D>& batch, const Positions& positions, const Saved& saved,
                const Scratch& scratch, bool accumulate, const Context<D>& context) {
    const Index tokens = batch.rows();
    auto y_memory = scratch.y_gradient;
    y_memory.values = y_gradient.data();
    const auto dy = output_.output_gradient(y_memory, tokens);
    output_.cast_gradient(dy, context);
    const auto attended = output_.template input<Mode::recompute>(
        saved.attended, tokens, {.row_major = false, .transposed = true});
    if (recomputation_.in_backward(Recompute::block)) {
      qkv_.forward(x, {}, qkv(saved, tokens), context);
      attend(attended, batch, positions, saved, context);
    }
    const TensorView<T, 2, D> attended_gradient{scratch.attended_gradient,
                                                {tokens, Shape.attention_columns()}};
    output_.backward(dy, attended, attended_gradient, accumulate, context);

    const TensorView<const T, 2, D> rotated{saved.rotated, {tokens, Shape.qkv_columns()}};
    const TensorView<const T, 2, D> unrotated = qkv(saved, tokens);
    const auto qkv_gradient = qkv_.output_gradient(scratch.qkv_gradient, tokens);
    count(AttentionPass::backward, batch,
          attention_backward(shape_of(batch), rotated, batch.documents, attended.values,
                             attended_gradient, log_sum_exp(saved, tokens), qkv_gradient.values,
                             context));
    rotate_.backward(unrotated, batch, positions, qkv_gradient, qkv_.bias_gradient(), context);
    qkv_.backward(qkv_gradient, x, terms_of(x_gradient), accumulate, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    qkv_.visit_weight(visitor);
    rotate_.visit(visitor);
    output_.visit_weight(visitor);
    qkv_.visit_bias(visitor);
    output_.visit_bias(visitor);
  }
  template <class Visitor>
  void visit_adapters(Visitor&& visitor) {
    qkv_.visit_adapter(visitor);
    output_.visit_adapter(visitor);
  }

 private:
  /// Returns the memory of the queries, keys and values before the rotation.
  static TensorView<T, 2, D> qkv(const Saved& saved, Index tokens) {
    return {saved.qkv, {tokens, Shape.qkv_columns()}};
  }

  /// Computes attended = attention(rotation(qkv)), and saves the data for the backward.
  /// @param attended  [tokens, attention_columns]
  void attend(const typename OutputProjection::Input& attended, const BatchView<D>& batch,
              const Positions& positions, const Saved& saved, const Context<D>& context) {
    const Index tokens = batch.rows();
    const TensorView<T, 2, D> rotated{saved.rotated, {tokens, Shape.qkv_columns()}};
    rotate_.forward(qkv(saved, tokens), batch, positions, rotated, context);
    count(AttentionPass::forward, batch,
          attention_forward(shape_of(batch), rotated, batch.documents, attended.values,
                            log_sum_exp(saved, tokens), context));
    quantize(attended, context);
  }

  /// Computes attended = attention(rotation(qkv(x))) for tokens that continue a text with a KV
  /// cache.
  template <class X>
  void attend_to_cache(const X& x, const typename OutputProjection::Input& attended,
                       const BatchView<D>& batch, const Positions& positions, const Saved& saved,
                       const Context<D>& context) {
    const TensorView<T, 2, D> unrotated = qkv(saved, batch.rows());
    constexpr bool has_cache_rows = requires { rotate_.cache_rows(batch, positions, cache_); };
    constexpr bool has_append =
        requires { rotate_.append(unrotated, batch, positions, cache_, context); };
    static_assert(has_cache_rows != has_append,
                  "GroupedQueryAttention: text generation requires that a rotation has exactly one "
                  "of cache_rows and append");
    if constexpr (has_cache_rows) {
      qkv_.forward_cached(x, unrotated, rotate_.cache_rows(batch, positions, cache_), context);
    } else if constexpr (has_append) {
      qkv_.forward(x, {}, unrotated, context);
      rotate_.append(unrotated, batch, positions, cache_, context);
    }
    const TensorView<const T, 2, D> rotated = unrotated;
    cached_attention(rotated, Shape.head_layout(), Shape.attention_options(),
                     batch.documents.positions, cache_, attended.values, context);
  }

  /// Shapes other than the manifest's are used once.
  AttentionShape shape_of(BatchShape batch) const {
    AttentionShape shape = attention_shape(Shape, batch);
    shape.once = !announced(batch);
    return shape;
  }
  [[nodiscard]] bool announced(BatchShape batch) const { return batch == registry_.batch; }

  /// Registers both passes for the registry's batch in the manifest.
  void announce(const std::string& name, const LayerRegistry<D>& registry, bool recomputed) {
    registry_ = registry;
    if (registry.manifest == nullptr) return;
    const BatchShape batch = registry.batch;
    const auto add = [&](AttentionPass pass, const char* pass_name, bool again) {
      entries_[static_cast<std::size_t>(pass)] = registry.manifest->add(AttentionEntry{
          name, pass_name,
          message(batch.sequences, " x ", batch.tokens, ", ", documents_text(batch), window_text(),
                  Shape.heads, "/", Shape.kv_heads, " heads of ", Shape.head_dim),
          FormatTraits<T>::name,
          attention_implementation<T>(pass, shape_of(batch), registry.limits), again, 0,
          attention_fallback<T>(pass, shape_of(batch), registry.limits)});
    };
    add(AttentionPass::forward, "forward", recomputed);
    add(AttentionPass::backward, "backward", false);
  }

  static std::string window_text() {
    return Shape.window == 0 ? "" : message("a window of ", Shape.window, ", ");
  }
  static std::string documents_text(BatchShape batch) {
    if (batch.most_documents == 0) return {};
    return message("up to ", batch.most_documents, " documents, ");
  }

  /// Counts an executed pass. The manifest does not list other shapes, such as those of text
  /// generation.
  void count(AttentionPass pass, BatchShape batch, const char* by) {
    if (!announced(batch)) return;
    registry_.manifest->attention(entries_[static_cast<std::size_t>(pass)]).count(by);
  }

  static TensorView<float, 1, D> log_sum_exp(const Saved& saved, Index tokens) {
    return {saved.log_sum_exp, {tokens * Shape.heads}};
  }

  Recomputation recomputation_;
  LayerRegistry<D> registry_;
  std::array<std::size_t, 2> entries_{};
  KeyValueCache<T, D> cache_;
  QkvProjection qkv_;
  Rotate rotate_;
  OutputProjection output_;
};

}  // namespace octavo
