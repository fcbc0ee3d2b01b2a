// The memory of a block of any shape. Allocates the same as octavo::PreNormBlock, in the same
// order.
#pragma once

#include <octavo/octavo.hpp>
#include <plan_memory/experts_layout.hpp>
#include <plan_memory/shape.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace planner {

/// A linear layer with its parameters, like octavo::Projection.
template <class P, octavo::Device D>
class ProjectionLayout {
 public:
  /// The memory types do not depend on the layer's size.
  using Layer = octavo::Linear<P, 128, 128, octavo::StorageOf<P>, D>;
  using T = typename Layer::T;
  using Parameter = octavo::Parameter<T, T, D>;
  using Base = typename Layer::Base;
  static constexpr bool multiplies_quantized = octavo::QuantizedPrecision<Base>;

  /// Adds the layer to the manifest and the scaling table.
  /// @param out  output features of the layer, or of one expert
  /// @throws ConfigError  if the precision does not support the sizes
  void declare_layer(const std::string& name, octavo::LayerRegistry<D> registry, Index in,
                     Index out, const octavo::LinearUse& use) {
    constexpr int multiple = octavo::feature_multiple<Base>();
    octavo::require<octavo::ConfigError>(
        in % multiple == 0 && out % multiple == 0, name, " has ", in, " input and ", out,
        " output features, but ", octavo::precision_name<Base>(), " needs multiples of ", multiple,
        "; choose --precision ", multiple > 16 ? "fp8-tensorwise" : "bf16");
    registry_ = registry;
    in_ = in;
    out_ = use.experts == 0 ? out : use.experts * out;
    octavo::LayerScratch<D> of_placeholder;
    registry.scratch = &of_placeholder;
    const std::size_t first = registry.manifest->entries().size();
    layer_.declare(name, registry, use);
    for (std::size_t i = first; i < registry.manifest->entries().size(); ++i) {
      registry.manifest->entry(i).in = in;
      registry.manifest->entry(i).out = out;
    }
    if constexpr (Layer::frozen && multiplies_quantized) {
      const Index tokens = use.rows(registry_.batch.rows());
      reserve_cast<octavo::OperandKind::input>(tokens, in);
      reserve_cast<octavo::OperandKind::output_gradient>(tokens, out);
    }
  }

  void declare(const std::string& name, const octavo::LayerRegistry<D>& registry, Index in,
               Index out, bool has_bias, octavo::LinearUse use = {}) {
    weight_.declare(name + ".weight", std::max(use.experts, 1) * out, in, {});
    weight_.is_overwritten = true;
    weight_.matrices = use.matrices(out);
    if (has_bias) bias_.emplace().declare(name + ".bias", 1, out, {});
    use.bias = has_bias;
    declare_layer(name, registry, in, out, use);
    weight_.operand = layer_.weight_by_one_scale();
    if constexpr (Layer::frozen) {
      if (use.experts == 0) adapter_.declare(name, registry, use, in, out);
    }
  }

  void set_part(const octavo::ParameterPart& part) { weight_.part = part; }

  void allocate_weight_copies(octavo::Arena<D>& arena) { allocate_weight_copies(arena, weight_); }
  void allocate_weight_copies(octavo::Arena<D>& arena, const Parameter& weight) {
    if constexpr (multiplies_quantized) {
      using Memory = typename Layer::WeightMemory;
      constexpr auto kind = octavo::MemoryKind::quantized_weights;
      Memory copies;
      const bool is_cast_by_ranks = layer_.weight_by_one_scale() >= 0 && weight.has_fp8_values();
      if (is_cast_by_ranks) {
        registry_.scaling->set_cast_by_ranks(
            static_cast<std::size_t>(layer_.weight_by_one_scale()));
      }
      if (registry_.stage != nullptr) {
        const Index scales =
            std::max(Memory::scale_bytes(out_, in_), Memory::scale_bytes(in_, out_));
        registry_.stage->reserve(Memory::element_bytes(out_, in_), is_cast_by_ranks ? 0 : scales);
        return;
      }
      if (!is_cast_by_ranks) copies.allocate_row_major(arena, kind, out_, in_);
      copies.allocate_transposed(arena, kind, out_, in_);
    }
  }

  template <class Visitor>
  void visit_weight(const Visitor& visitor) {
    visitor(weight_);
  }
  template <class Visitor>
  void visit_bias(const Visitor& visitor) {
    if (bias_.has_value()) visitor(*bias_);
  }
  template <class Visitor>
  void visit_adapter(const Visitor& visitor) {
    if constexpr (Layer::frozen) adapter_.visit(visitor);
  }

 private:
  template <octavo::OperandKind Kind>
  void reserve_cast(Index tokens, Index columns) {
    using Memory = octavo::OperandMemory<Base, Kind, D>;
    registry_.scratch->reserve(octavo::round_up(Memory::element_bytes(tokens, columns),
                                                Index{octavo::allocation_alignment}) +
                               Memory::scale_bytes(tokens, columns));
  }
  struct NoAdapter {};

  octavo::LayerRegistry<D> registry_;
  Index in_ = 0;
  Index out_ = 0;
  Layer layer_;
  Parameter weight_;
  std::optional<Parameter> bias_;
  std::conditional_t<Layer::frozen, octavo::Adapter<T, T, D>, NoAdapter> adapter_;
};

/// The parameters of an RMSNorm or a LayerNorm.
template <class T, octavo::Device D>
class NormLayout {
 public:
  void declare(const std::string& name, const BlockSizes& sizes) {
    weight_.declare(name + ".weight", 1, sizes.hidden, {});
    if (sizes.layer_norm) bias_.emplace().declare(name + ".bias", 1, sizes.hidden, {});
  }
  template <class Visitor>
  void visit(const Visitor& visitor) {
    visitor(weight_);
    if (bias_.has_value()) visitor(*bias_);
  }

 private:
  octavo::Parameter<T, T, D> weight_;
  std::optional<octavo::Parameter<T, T, D>> bias_;
};

/// A block: attention, then the MLP.
/// @tparam P  an octavo::BlockPrecision
template <class P, class T, octavo::Device D>
class BlockLayout {
 public:
  using Qkv = ProjectionLayout<typename P::template Of<octavo::LinearRole::qkv>, D>;
  using Output = ProjectionLayout<typename P::template Of<octavo::LinearRole::output>, D>;
  using Up = ProjectionLayout<typename P::template Of<octavo::LinearRole::gate_up>, D>;
  using Down = ProjectionLayout<typename P::template Of<octavo::LinearRole::down>, D>;
  using Experts = ExpertsLayout<Up, Down, T, D>;
  static constexpr bool reads_e4m3 = P::activation_input == octavo::ActivationInput::e4m3;
  using Wide = std::conditional_t<reads_e4m3 && Up::Layer::writes_e4m3, octavo::E4M3, T>;
  using Parameters = octavo::FlatParameters<T, T, D>;

  /// Allocates weights and their quantised copies.
  void allocate(octavo::Arena<D>& arena, const BlockSizes& sizes, const std::string& name,
                const octavo::LayerRegistry<D>& registry, octavo::Recompute recompute,
                const Parameters* lender) {
    declare_attention(sizes, name, registry, {recompute, false});
    declare_mlp(sizes, name, registry, {recompute, true});
    flat_parameters_.allocate_weights(arena, each_parameter(), registry.layout, lender);
    qkv_.allocate_weight_copies(arena);
    output_.allocate_weight_copies(arena);
    up_.allocate_weight_copies(arena);
    down_.allocate_weight_copies(arena);
  }

  void allocate_gradients(octavo::Arena<D>& arena, const Parameters* lender = nullptr) {
    flat_parameters_.allocate_gradients(arena, each_parameter(), lender);
  }

  /// Allocates memory that blocks share.
  static void allocate_shared_buffers(octavo::Arena<D>& arena, const BlockSizes& sizes,
                                      Index tokens, octavo::Recompute recompute) {
    typename Qkv::Layer::InputMemory().allocate_transient(arena, tokens, sizes.hidden);
    typename Output::Layer::InputMemory().allocate_row_major(arena, kind, tokens,
                                                             sizes.attention_columns());
    if (sizes.experts != 0) {
      Experts::allocate_shared_buffers(arena, sizes, tokens);
    } else {
      typename Up::Layer::InputMemory().allocate_transient(arena, tokens, sizes.hidden);
      typename Down::Layer::InputMemory().allocate_transient(arena, tokens, sizes.ffn);
    }
    allocate_saved_if(arena, sizes, tokens,
                      [&](octavo::Recompute from) { return recompute >= from; });
    (void)arena.template allocate<T>(kind, tokens / sizes.degree * sizes.hidden);
    arena.overlay(
        [&] {
          allocate_scratch<Qkv, Output>(arena, tokens, sizes.qkv_columns(),
                                        sizes.attention_columns(), sizes);
        },
        [&] {
          if (sizes.experts != 0) return Experts::allocate_scratch(arena, sizes, tokens);
          allocate_scratch<Up, Down>(arena, tokens, sizes.wide_columns(), sizes.ffn, sizes);
        });
  }

  /// Allocates the activations that the block saves for the backward.
  /// @param offloads  whether it offloads activations: see `allocate_offloaded`
  static void allocate_saved(octavo::Arena<D>& arena, const BlockSizes& sizes, Index tokens,
                             octavo::Recompute recompute, bool offloads) {
    allocate_saved_if(arena, sizes, tokens, [&](octavo::Recompute from) {
      return recompute < from && !(offloads && from == octavo::Recompute::block);
    });
  }

  /// Allocates a device buffer for the activations that a block offloads, and returns it.
  static octavo::ArenaRange allocate_offloaded(octavo::Arena<D>& arena, const BlockSizes& sizes,
                                               Index tokens) {
    return arena.range_of([&] {
      allocate_saved_if(arena, sizes, tokens,
                        [](octavo::Recompute from) { return from == octavo::Recompute::block; });
    });
  }

  [[nodiscard]] const Parameters& flat_parameters() const { return flat_parameters_; }

  template <class Visitor>
  void visit(const Visitor& visitor) {
    attention_norm_.visit(visitor);
    qkv_.visit_weight(visitor);
    for (auto& norm : head_norms_) {
      if (norm.has_value()) visitor(*norm);
    }
    output_.visit_weight(visitor);
    qkv_.visit_bias(visitor);
    output_.visit_bias(visitor);
    if (post_norms_[0].has_value()) post_norms_[0]->visit(visitor);
    mlp_norm_.visit(visitor);
    if (router_.has_value()) visitor(*router_);
    up_.visit_weight(visitor);
    down_.visit_weight(visitor);
    up_.visit_bias(visitor);
    down_.visit_bias(visitor);
    if (post_norms_[1].has_value()) post_norms_[1]->visit(visitor);
  }
  template <class Visitor>
  void visit_adapters(const Visitor& visitor) {
    qkv_.visit_adapter(visitor);
    output_.visit_adapter(visitor);
    up_.visit_adapter(visitor);
    down_.visit_adapter(visitor);
  }

 private:
  static constexpr auto kind = octavo::MemoryKind::activations;

  void declare_attention(const BlockSizes& sizes, const std::string& name,
                         const octavo::LayerRegistry<D>& registry,
                         octavo::Recomputation recomputation) {
    using enum octavo::LoraTarget;
    const Index keys = sizes.kv_heads * sizes.head_dim;
    const Index queries = sizes.attention_columns();
    attention_norm_.declare(name + ".attention_norm", sizes);
    if (sizes.post_norms) post_norms_[0].emplace().declare(name + ".attention_post_norm", sizes);
    qkv_.declare(name + ".qkv", registry, sizes.hidden, sizes.qkv_columns(), sizes.qkv_bias,
                 {.recomputed = recomputation.drops(octavo::Recompute::block),
                  .parts = {{{q_proj, queries}, {k_proj, keys}, {v_proj, keys}}}});
    if (sizes.qk_norm) {
      head_norms_[0].emplace().declare(name + ".query_norm.weight", 1, sizes.head_dim, {});
      head_norms_[1].emplace().declare(name + ".key_norm.weight", 1, sizes.head_dim, {});
    }
    output_.declare(name + ".output", registry, queries, sizes.hidden, sizes.linear_bias,
                    {.recomputed = recomputation.runs_forward_again(),
                     .adds = sizes.degree == 1 && !sizes.post_norms,
                     .parts = {{{o_proj, sizes.hidden}}}});
    if (sizes.degree == 1) return;
    const auto degree = static_cast<int>(sizes.degree);
    qkv_.set_part(octavo::ParameterPart::rows(degree, registry.tensor_rank, {queries, keys, keys}));
    output_.set_part(octavo::ParameterPart::columns(degree, registry.tensor_rank, sizes.hidden));
  }

  void declare_mlp(const BlockSizes& sizes, const std::string& name,
                   const octavo::LayerRegistry<D>& registry, octavo::Recomputation recomputation) {
    using enum octavo::LoraTarget;
    const Index gate = sizes.gated_mlp ? sizes.ffn : 0;
    mlp_norm_.declare(name + ".mlp_norm", sizes);
    octavo::require<octavo::ConfigError>(
        !reads_e4m3 || (sizes.experts == 0 && !sizes.linear_bias && !Up::Layer::frozen),
        "ForActivation<E4M3> does not support experts, MLPs with biases and LoRA; remove it from "
        "the precision, or choose --precision fp8-delayed-fast instead of fp8-delayed-fastest");
    if (sizes.experts != 0) return declare_experts(sizes, name, registry, recomputation);
    if (sizes.post_norms) post_norms_[1].emplace().declare(name + ".mlp_post_norm", sizes);
    up_.declare(name + ".gate_up", registry, sizes.hidden, sizes.wide_columns(), sizes.linear_bias,
                {.recomputed = recomputation.drops(octavo::Recompute::ffn),
                 .writes_e4m3 = std::is_same_v<Wide, octavo::E4M3>,
                 .parts = {{{gate_proj, gate}, {up_proj, sizes.ffn}}}});
    down_.declare(name + ".down", registry, sizes.ffn, sizes.hidden, sizes.linear_bias,
                  {.recomputed = recomputation.runs_forward_again(),
                   .adds = sizes.degree == 1 && !sizes.post_norms,
                   .parts = {{{down_proj, sizes.hidden}}}});
    if (sizes.degree == 1) return;
    const auto degree = static_cast<int>(sizes.degree);
    up_.set_part(octavo::ParameterPart::rows(degree, registry.tensor_rank, {sizes.ffn, gate, 0}));
    down_.set_part(octavo::ParameterPart::columns(degree, registry.tensor_rank, sizes.hidden));
  }

  void declare_experts(const BlockSizes& sizes, const std::string& name,
                       const octavo::LayerRegistry<D>& registry,
                       octavo::Recomputation recomputation) {
    using enum octavo::LoraTarget;
    if constexpr (Up::Layer::frozen) octavo::detail::check_lora_of_experts(name, registry.lora);
    octavo::require<octavo::ConfigError>(
        std::is_same_v<D, octavo::Cpu> || (!octavo::detail::needs_values<typename Up::Base> &&
                                           !octavo::detail::needs_values<typename Down::Base>),
        octavo::detail::experts_without_gemms);
    registry.expert_loss->add_router(sizes.experts, sizes.balance_coefficient);
    router_.emplace().declare(name + ".router.weight", sizes.experts, sizes.hidden, {});
    router_->is_overwritten = true;
    const auto experts = static_cast<int>(sizes.experts);
    const auto choices = static_cast<int>(sizes.choices);
    up_.declare(name + ".experts.gate_up", registry, sizes.hidden, sizes.wide_columns(), false,
                {.recomputed = recomputation.drops(octavo::Recompute::ffn),
                 .experts = experts,
                 .choices = choices,
                 .parts = {{{gate_proj, sizes.ffn}, {up_proj, sizes.ffn}}}});
    down_.declare(
        name + ".experts.down", registry, sizes.ffn, sizes.hidden, false,
        {.recomputed = recomputation.runs_forward_again(), .experts = experts, .choices = choices});
  }

  /// Allocates the activations in `wanted`, according to the first policy that drops each.
  template <class Wanted>
  static void allocate_saved_if(octavo::Arena<D>& arena, const BlockSizes& sizes, Index tokens,
                                const Wanted& wanted) {
    using octavo::Recompute;
    const auto allocate_statistics = [&] {
      (void)arena.template allocate<float>(kind, sizes.statistics() * tokens / sizes.degree);
    };
    const auto allocate_post_norm = [&] {
      if (!sizes.post_norms || !wanted(octavo::kept_by_all_policies)) return;
      (void)arena.template allocate<T>(kind, tokens * sizes.hidden);
      allocate_statistics();
    };
    if (wanted(Recompute::norms)) {
      typename Qkv::Layer::InputMemory().allocate_kept(arena, tokens, sizes.hidden);
    }
    if (wanted(Recompute::block)) {
      // With normalised queries and keys, the projection is kept next to its rotation.
      for (int i = 0; i < (sizes.qk_norm ? 2 : 1); ++i) {
        (void)arena.template allocate<T>(kind, tokens * sizes.qkv_columns());
      }
      typename Output::Layer::InputMemory attended;
      attended.allocate_values(arena, kind, tokens, sizes.attention_columns());
      if constexpr (Output::Layer::quantized) {
        attended.allocate_transposed(arena, kind, tokens, sizes.attention_columns());
      }
      (void)arena.template allocate<float>(kind, tokens * sizes.heads);
    }
    allocate_post_norm();
    if (wanted(Recompute::block)) allocate_statistics();
    if (sizes.experts != 0) {
      Experts::allocate_saved(arena, sizes, tokens, wanted);
    } else {
      allocate_saved_mlp(arena, sizes, tokens, wanted);
    }
    allocate_post_norm();
    if (!wanted(Recompute::block)) return;
    allocate_statistics();
    (void)arena.template allocate<T>(kind, tokens / sizes.degree * sizes.hidden);
  }

  template <class Wanted>
  static void allocate_saved_mlp(octavo::Arena<D>& arena, const BlockSizes& sizes, Index tokens,
                                 const Wanted& wanted) {
    using octavo::Recompute;
    if (wanted(Recompute::norms)) {
      typename Up::Layer::InputMemory().allocate_kept(arena, tokens, sizes.hidden);
    }
    if (wanted(Recompute::swiglu)) {
      typename Down::Layer::InputMemory().allocate_kept(arena, tokens, sizes.ffn);
    }
    if (wanted(Recompute::ffn))
      (void)arena.template allocate<Wide>(kind, tokens * sizes.wide_columns());
  }

  /// Allocates the memory for the backward of one half of the block.
  /// @tparam First, Last  its two linear layers
  template <class First, class Last>
  static void allocate_scratch(octavo::Arena<D>& arena, Index tokens, Index first_out,
                               Index last_in, const BlockSizes& sizes) {
    const Index hidden = sizes.hidden;
    typename First::Layer::OutputGradientMemory first_gradient;
    typename Last::Layer::OutputGradientMemory last_gradient;
    first_gradient.allocate_values(arena, kind, tokens, first_out);
    (void)arena.template allocate<T>(kind, tokens * last_in);
    arena.overlay(
        [&] {
          last_gradient.allocate_row_major(arena, kind, tokens, hidden);
          last_gradient.allocate_transposed(arena, kind, tokens, hidden);
        },
        [&] {
          first_gradient.allocate_row_major(arena, kind, tokens, first_out);
          first_gradient.allocate_transposed(arena, kind, tokens, first_out);
        });
    if (sizes.post_norms) (void)arena.template allocate<T>(kind, tokens * hidden);
  }

  [[nodiscard]] auto each_parameter() {
    return [this](const auto& body) { this->visit(body); };
  }

  Parameters flat_parameters_;
  NormLayout<T, D> attention_norm_;
  Qkv qkv_;
  std::array<std::optional<octavo::Parameter<T, T, D>>, 2> head_norms_;
  Output output_;
  NormLayout<T, D> mlp_norm_;
  std::array<std::optional<NormLayout<T, D>>, 2> post_norms_;
  std::optional<octavo::Parameter<T, T, D>> router_;
  Up up_;
  Down down_;
};

}  // namespace planner
