/// @file
/// A transformer's MLP: down(activation(projection(x))).
#pragma once

#include <octavo/layers/activation.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/projection.hpp>
#include <octavo/layers/shapes.hpp>
#include <octavo/tensor/partial_view.hpp>

namespace octavo OCTAVO_ABI {

/// Computes a projection to more features, an activation, and the down projection with the residual
/// connection. A part of a `ResidualBranch`: a custom part has the same public members, which may
/// have other types and names in `Saved` and `Scratch`.
/// @tparam Activation  `SwiGlu`, `Gelu`, or a type with the same members
/// @tparam T           format of weights and activations
/// @tparam Up          precision of the first projection
/// @tparam Down        precision of the down projection
/// @tparam G           format of the weights' gradients
template <BlockShape Shape, class Activation, class T, class Up, class Down, class G, Device D>
class MLP {
 public:
  static constexpr int wide_columns = Activation::inputs * Shape.ffn;
  /// The result type of the GEMMs that end the forward and the backward. If ranks share the layer,
  /// these are terms of a sum over the ranks.
  using Result = GemmResultView<Shape.tensor_parallel, T, 2, D>;
  using UpProjection = Projection<Up, Shape.hidden, wide_columns, Shape.bias, G, D>;
  using DownProjection = Projection<Down, Shape.ffn, Shape.hidden, Shape.bias, G, D>;
  /// The operand that the branch's norm writes.
  using Input = typename UpProjection::Input;
  static constexpr bool reads_e4m3 = Shape.activation_input == ActivationInput::e4m3;
  /// The format of the activation's input.
  using Wide = std::conditional_t<reads_e4m3 && UpProjection::writes_e4m3, E4M3, T>;
  /// Whether the forward also accepts a `BeforeNorm`.
  static constexpr bool takes_input_before_norm = true;

  static_assert(!reads_e4m3 || !Shape.bias,
                "MLP: a GEMM that adds a bias does not write E4M3; remove ForActivation from the "
                "precision, or choose fp8-delayed-fast instead of fp8-delayed-fastest");
  static_assert(!reads_e4m3 || !UpProjection::frozen,
                "MLP: adapters of LoRA add to a result in the storage format; remove ForActivation "
                "from the precision, or choose fp8-delayed-fast instead of fp8-delayed-fastest");
  static_assert(!reads_e4m3 || counts_saturated<Activation, typename DownProjection::Input, D>,
                "MLP: this activation does not read E4M3, or does not count values that may have "
                "saturated; add the overload of forward for E4M3 as in octavo::SwiGlu, or remove "
                "ForActivation from the precision");
  static_assert(!Shape.bias || Activation::sums_bias,
                "MLP: this activation's backward does not compute a bias gradient; choose Gelu, or "
                "a BlockShape without bias");
  static_assert(!Shape.bias || Shape.tensor_parallel == 1,
                "MLP: ranks that share a layer cannot share its bias; choose TensorParallel<1>, or "
                "a BlockShape without bias");

  /// Data that the backward needs, for all tokens of a batch.
  struct Saved {
    typename UpProjection::InputMemory input;
    Wide* wide = nullptr;  ///< [tokens, wide_columns]
    typename DownProjection::InputMemory activated;
  };

  /// Temporary memory of one block's backward.
  struct Scratch {
    typename DownProjection::OutputGradientMemory y_gradient;
    typename UpProjection::OutputGradientMemory wide_gradient;
    T* activated_gradient = nullptr;  ///< [tokens, ffn]
  };

  /// Declares the parameters, and registers the GEMMs in the manifest. Called once, before its
  /// parameters are allocated.
  /// @param name     prefix of the layers' names, such as "blocks.3"
  /// @param initial  initial values: `inner` for layers that read the residual stream, `outer` for
  ///                 those that write to it
  void declare(const std::string& name, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    require<ConfigError>(registry.activation_input == Shape.activation_input ||
                             registry.activation_input == ActivationInput::storage,
                         name,
                         ": the precision has ForActivation, but the block's shape does not; pass "
                         "shape.with(P::activation_input) to MLP in the model's family");
    recomputation_ = recomputation;
    // The first half of the columns gates the last half.
    constexpr bool gated = Activation::inputs == 2;
    up_.declare(name + "." + Activation::projection, registry, initial.inner,
                {.recomputed = recomputation.drops(Recompute::ffn),
                 .writes_e4m3 = std::is_same_v<Wide, E4M3>,
                 .parts = {{{LoraTarget::gate_proj, gated ? Shape.ffn : 0},
                            {LoraTarget::up_proj, Shape.ffn}}}});
    down_.declare(name + ".down", registry, initial.outer,
                  {.recomputed = recomputation.runs_forward_again(),
                   .adds = Shape.adds_residual(),
                   .parts = {{{LoraTarget::down_proj, Shape.hidden}}}});
    if constexpr (Shape.tensor_parallel > 1) {
      constexpr int degree = Shape.tensor_parallel;
      constexpr Index second = Activation::inputs == 2 ? Shape.ffn : 0;
      static_assert(Activation::inputs <= 2,
                    "MLP: only an activation of one or two inputs can be divided among ranks");
      up_.set_part(ParameterPart::rows(degree, registry.tensor_rank, {Shape.ffn, second, 0}));
      down_.set_part(ParameterPart::columns(degree, registry.tensor_rank, Shape.hidden));
    }
  }

  /// Allocates the quantised copies of the weights. Called when the parameters have memory.
  void allocate_weight_copies(Arena<D>& arena) {
    up_.allocate_weight_copies(arena);
    down_.allocate_weight_copies(arena);
  }

  /// Allocates the tensors of `saved` for which `wanted(from)` is true, where `from` and all later
  /// policies drop the tensor.
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    constexpr auto kind = MemoryKind::activations;
    if (wanted(Recompute::norms)) saved.input.allocate_kept(arena, tokens, Shape.hidden);
    if (wanted(Recompute::swiglu)) saved.activated.allocate_kept(arena, tokens, Shape.ffn);
    if (wanted(Recompute::ffn))
      saved.wide = arena.template allocate<Wide>(kind, tokens * wide_columns);
  }
  /// Allocates the memory that blocks share in the forward.
  /// @param tokens  maximum number of rows of a micro-batch
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.allocate_transient(arena, tokens, Shape.hidden);
    saved.activated.allocate_transient(arena, tokens, Shape.ffn);
  }
  /// Allocates the temporary memory of the backward, which blocks share.
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    scratch.wide_gradient.allocate_values(arena, kind, tokens, wide_columns);
    scratch.activated_gradient = arena.template allocate<T>(kind, tokens * Shape.ffn);
    arena.overlay(
        [&] {
          scratch.y_gradient.allocate_row_major(arena, kind, tokens, Shape.hidden);
          scratch.y_gradient.allocate_transposed(arena, kind, tokens, Shape.hidden);
        },
        [&] {
          scratch.wide_gradient.allocate_row_major(arena, kind, tokens, wide_columns);
          scratch.wide_gradient.allocate_transposed(arena, kind, tokens, wide_columns);
        });
  }

  /// Casts the weights, once per optimizer step and before evaluations.
  template <class M>
  void quantize_weights(const Context<D>& context) {
    up_.template quantize_weight<M>(context);
    down_.template quantize_weight<M>(context);
  }

  /// Returns the operand that the block's norm writes.
  template <class M>
  [[nodiscard]] Input input(const Saved& saved, Index tokens, OperandCopies copies) const {
    return up_.template input<M>(saved.input, tokens, copies);
  }
  /// Returns which copies of its input the backward reads.
  [[nodiscard]] OperandCopies backward_input() const {
    return {.row_major = recomputation_.in_backward(Recompute::ffn), .transposed = true};
  }

  /// Computes y = residual + down(activation(projection(x))).
  /// @tparam M        see Mode; `Mode::recompute` in the backward, for branches before the last
  /// @param x         [tokens, hidden]: an `Input`, or a `BeforeNorm` of one
  /// @param residual  [tokens, hidden]; empty for terms
  /// @param y         [tokens, hidden]
  /// @param batch     a part that mixes tokens takes the `BatchView`, with positions and documents
  template <class M, class X, class Positions>
  void forward(const X& x, TensorView<const T, 2, D> residual, Result y, BatchShape batch,
               const Positions&, const Saved& saved, const Context<D>& context) {
    constexpr bool again = std::is_same_v<M, Mode::recompute>;
    const bool keeps = M::saves && (again || !recomputation_.drops(Recompute::swiglu));
    const auto activated = down_.template input<M>(saved.activated, batch.rows(),
                                                   {.row_major = true, .transposed = keeps});
    up_.template forward_activated<Activation, M>(x, wide(saved, batch.rows()), activated, context);
    down_.forward(activated, residual, terms_of(y), context);
  }

  /// Computes the gradient of x from that of y, and the gradients of the parameters, as in
  /// PreNormBlock::backward.
  /// @param y_gradient  [tokens, hidden]; not modified
  /// @param x           the forward's input, with the copies of `backward_input`
  /// @param x_gradient  [tokens, hidden]
  /// @param accumulate  whether weights' gradients are added to, or overwritten
  template <class Positions>
  void backward(TensorView<T, 2, D> y_gradient, const Input& x, Result x_gradient, BatchShape batch,
                const Positions&, const Saved& saved, const Scratch& scratch, bool accumulate,
                const Context<D>& context) {
    const Index tokens = batch.rows();
    if (recomputation_.in_backward(Recompute::ffn)) {
      up_.forward_wide(x, wide(saved, tokens), context);
    }
    const auto activated = activated_again(saved, tokens, context);
    auto y_memory = scratch.y_gradient;
    y_memory.values = y_gradient.data();
    const auto dy = down_.output_gradient(y_memory, tokens);
    down_.cast_gradient(dy, context);
    const TensorView<T, 2, D> activated_gradient{scratch.activated_gradient, {tokens, Shape.ffn}};
    down_.backward(dy, activated, activated_gradient, accumulate, context);

    const auto wide_gradient = up_.output_gradient(scratch.wide_gradient, tokens);
    Activation::backward(activated_gradient, wide(saved, tokens), wide_gradient,
                         up_.bias_gradient(), context);
    up_.backward(wide_gradient, x, terms_of(x_gradient), accumulate, context);
  }

  /// Calls `visitor(parameter)` for each parameter, always in the same order.
  template <class Visitor>
  void visit(Visitor&& visitor) {
    up_.visit_weight(visitor);
    down_.visit_weight(visitor);
    up_.visit_bias(visitor);
    down_.visit_bias(visitor);
  }
  /// Calls `visitor(parameter)` for the adapters of frozen layers: see Lora.
  template <class Visitor>
  void visit_adapters(Visitor&& visitor) {
    up_.visit_adapter(visitor);
    down_.visit_adapter(visitor);
  }

 private:
  /// Returns the activation for the down projection's weight gradient, kept or recomputed.
  auto activated_again(const Saved& saved, Index tokens, const Context<D>& context) const {
    const auto activated = down_.template input<Mode::recompute>(
        saved.activated, tokens, {.row_major = false, .transposed = true});
    if (recomputation_.in_backward(Recompute::swiglu)) {
      up_.template activate<Activation, Mode::recompute>(wide(saved, tokens), activated, context);
    }
    return activated;
  }

  static TensorView<Wide, 2, D> wide(const Saved& saved, Index tokens) {
    return {saved.wide, {tokens, wide_columns}};
  }

  Recomputation recomputation_;
  UpProjection up_;
  DownProjection down_;
};

}  // namespace octavo
