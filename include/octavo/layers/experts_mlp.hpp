/// @file
/// A mixture of experts: each token is processed by the MLPs that a router chooses for it.
#pragma once

#include <octavo/kernels/experts.hpp>
#include <octavo/kernels/router.hpp>
#include <octavo/layers/expert_loss.hpp>
#include <octavo/layers/experts_linear.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/shapes.hpp>
#include <octavo/tensor/partial_view.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y = residual + Σ weight · down(silu(gate(x)) · up(x)) over the experts that the router
/// chooses for each token, as in Mixtral and Qwen3-MoE. No token is dropped. A part of a
/// `ResidualBranch`.
///
/// The router runs in FP32. Tokens are copied to the rows of their experts (`ExpertRows`) in the
/// same pass as the cast. The backward copies them again, which needs less memory than keeping the
/// copies. The weight of a choice is a factor of the down projection's input, so that the gradient
/// of the weight depends only on data that is available in the backward.
/// @tparam T     format of weights and activations
/// @tparam Up    precision of the gate and up projections
/// @tparam Down  precision of the down projections
/// @tparam G     format of the weights' gradients
template <BlockShape Shape, ExpertShape Experts, class T, class Up, class Down, class G, Device D>
class ExpertsMLP {
 public:
  static constexpr int wide_columns = 2 * Shape.ffn;
  using Result = TensorView<T, 2, D>;
  using UpProjection = ExpertsLinear<Up, Shape.hidden, wide_columns, Experts.experts, G, D>;
  using DownProjection = ExpertsLinear<Down, Shape.ffn, Shape.hidden, Experts.experts, G, D>;
  /// The router reads the values, and the experts' copies are cast.
  using Input = Operand<T, OperandKind::input, D>;

  /// Whether the router and the experts are frozen, because only adapters of attention are trained.
  static constexpr bool frozen = UpProjection::frozen;

  static_assert(UpProjection::frozen == DownProjection::frozen);
  static_assert(Experts.choices >= 1 && Experts.choices <= Experts.experts,
                "ExpertsMLP: a token must choose at least 1 and at most all experts; change "
                "ExpertShape::choices");
  static_assert(Shape.activation_input == ActivationInput::storage,
                "ExpertsMLP: the activation of experts reads the storage format; remove "
                "ForActivation from the precision, or choose fp8-delayed-fast instead of "
                "fp8-delayed-fastest");
  static_assert(!Shape.bias, "ExpertsMLP: experts have no bias; choose a BlockShape without bias");
  static_assert(Shape.tensor_parallel == 1,
                "ExpertsMLP: ranks cannot share experts; choose TensorParallel<1>");

  /// Data that the backward needs, for all tokens of a batch.
  struct Saved {
    OperandMemory<T, OperandKind::input, D> input;
    float* logits = nullptr;         ///< [tokens, experts]; only for the forward
    float* probabilities = nullptr;  ///< [tokens, experts]
    float* weights = nullptr;        ///< [tokens, choices]
    std::int32_t* chosen = nullptr;  ///< [tokens, choices]
    std::int32_t* pairs = nullptr;   ///< this and the following: see ExpertRows
    std::int32_t* places = nullptr;
    std::int32_t* offsets = nullptr;
    std::int32_t* tiles = nullptr;
    typename UpProjection::InputMemory copies;  ///< tokens, copied for experts; temporary
    T* wide = nullptr;                          ///< [rows, wide_columns]
    typename DownProjection::InputMemory activated;
    T* outputs = nullptr;  ///< [rows, hidden]; only for the forward
  };

  /// Temporary memory of one block's backward.
  struct Scratch {
    typename DownProjection::OutputGradientMemory y_gradient;
    typename UpProjection::OutputGradientMemory wide_gradient;
    T* activated_gradient = nullptr;   ///< [rows, ffn]
    T* x_gradient = nullptr;           ///< [rows, hidden]
    float* weight_gradient = nullptr;  ///< [tokens, choices]
    float* logits_gradient = nullptr;  ///< [tokens, experts]
  };

  /// Returns the number of the experts' rows for a batch of this many tokens.
  static constexpr Index row_count(Index tokens) {
    return expert_row_count(tokens * Experts.choices, Experts.experts);
  }

  void declare(const std::string& name, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    recomputation_ = recomputation;
    if constexpr (frozen) detail::check_lora_of_experts(name, registry.lora);
    loss_ = registry.expert_loss;
    if (loss_ != nullptr) loss_->add_router(Experts.experts, Experts.balance_coefficient);
    router_.declare(name + ".router.weight", Experts.experts, Shape.hidden, initial.inner);
    router_.is_overwritten = true;
    up_.declare(
        name + ".experts.gate_up", registry, initial.inner,
        {.recomputed = recomputation.drops(Recompute::ffn),
         .choices = Experts.choices,
         .parts = {{{LoraTarget::gate_proj, Shape.ffn}, {LoraTarget::up_proj, Shape.ffn}}}});
    down_.declare(name + ".experts.down", registry, initial.outer,
                  {.recomputed = recomputation.runs_forward_again(), .choices = Experts.choices});
  }

  void allocate_weight_copies(Arena<D>& arena) {
    up_.allocate_weight_copies(arena);
    down_.allocate_weight_copies(arena);
  }

  /// Allocates the tensors of `saved` for which `wanted(from)` is true, where `from` and all later
  /// policies drop the tensor.
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = row_count(tokens);
    if (wanted(Recompute::norms)) saved.input.allocate_kept(arena, tokens, Shape.hidden);
    if (wanted(Recompute::swiglu)) saved.activated.allocate_kept(arena, rows, Shape.ffn);
    if (wanted(Recompute::ffn)) saved.wide = arena.template allocate<T>(kind, rows * wide_columns);
    if (!wanted(Recompute::block)) return;
    const Index pairs = tokens * Experts.choices;
    saved.probabilities = arena.template allocate<float>(kind, tokens * Experts.experts);
    saved.weights = arena.template allocate<float>(kind, pairs);
    saved.chosen = arena.template allocate<std::int32_t>(kind, pairs);
    saved.pairs = arena.template allocate<std::int32_t>(kind, rows);
    saved.places = arena.template allocate<std::int32_t>(kind, pairs);
    saved.offsets = arena.template allocate<std::int32_t>(kind, Experts.experts + 1);
    saved.tiles = arena.template allocate<std::int32_t>(kind, rows / expert_tile);
  }
  /// Allocates the memory that blocks share in the forward.
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = row_count(tokens);
    saved.logits = arena.template allocate<float>(kind, tokens * Experts.experts);
    saved.input.allocate_transient(arena, tokens, Shape.hidden);
    saved.copies.allocate_kept(arena, rows, Shape.hidden);
    saved.copies.allocate_transient(arena, rows, Shape.hidden);
    saved.activated.allocate_transient(arena, rows, Shape.ffn);
    saved.outputs = arena.template allocate<T>(kind, rows * Shape.hidden);
  }
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = row_count(tokens);
    const auto allocate = [&](auto& memory, Index columns) {
      memory.allocate_values(arena, kind, rows, columns);
      memory.allocate_row_major(arena, kind, rows, columns);
      memory.allocate_transposed(arena, kind, rows, columns);
    };
    scratch.weight_gradient = arena.template allocate<float>(kind, tokens * Experts.choices);
    scratch.logits_gradient = arena.template allocate<float>(kind, tokens * Experts.experts);
    scratch.activated_gradient = arena.template allocate<T>(kind, rows * Shape.ffn);
    arena.overlay([&] { allocate(scratch.y_gradient, Shape.hidden); },
                  [&] {
                    allocate(scratch.wide_gradient, wide_columns);
                    scratch.x_gradient = arena.template allocate<T>(kind, rows * Shape.hidden);
                  });
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    up_.template quantize_weight<M>(context);
    down_.template quantize_weight<M>(context);
  }

  /// Returns the operand that the block's norm writes.
  template <class M>
  [[nodiscard]] Input input(const Saved& saved, Index tokens, OperandCopies copies) const {
    return saved.input.operand(tokens, Shape.hidden, {}, false, copies);
  }
  /// Returns which copies of its input the backward reads.
  [[nodiscard]] OperandCopies backward_input() const { return {}; }

  /// y = residual + Σ weight · expert(x).
  /// @param x         [tokens, hidden]
  /// @param residual  [tokens, hidden]; empty: nothing is added
  /// @param y         [tokens, hidden]
  template <class M, class Positions>
  void forward(const Input& x, TensorView<const T, 2, D> residual, Result y, BatchShape batch,
               const Positions&, const Saved& saved, const Context<D>& context) {
    constexpr bool again = std::is_same_v<M, Mode::recompute>;
    const bool keeps = M::saves && (again || !recomputation_.drops(Recompute::swiglu));
    const Index tokens = batch.rows();
    const Index count = row_count(tokens);
    const auto choices = choices_of(saved, tokens);
    const auto rows = rows_of(saved, tokens);
    route(x, saved, context);
    if constexpr (M::records) {
      if (loss_ != nullptr && loss_->is_computed()) {
        loss_->for_each_part(tokens, [&](Index begin, Index length, bool is_counted) {
          if (is_counted) add_expert_balance(choices.rows(begin, length), loss_->sums, context);
        });
      }
    }
    const auto copies =
        up_.template input<M>(saved.copies, count, {.row_major = true, .transposed = false});
    copy_to_experts(values_of(x), rows, copies, context);
    up_.forward(copies, rows, wide(saved, count), context);
    const auto activated =
        down_.template input<M>(saved.activated, count, {.row_major = true, .transposed = keeps});
    activate(saved, tokens, activated, context);
    const TensorView<T, 2, D> outputs{saved.outputs, {count, Shape.hidden}};
    down_.forward(activated, rows, outputs, context);
    sum_of_experts(TensorView<const T, 2, D>(outputs), rows, residual, y, context);
  }

  /// Computes the gradient of x from that of y, and the gradients of the parameters, as in
  /// PreNormBlock::backward.
  /// @param y_gradient  [tokens, hidden]; not modified
  /// @param x           the forward's input
  /// @param x_gradient  [tokens, hidden]
  template <class Positions>
  void backward(TensorView<T, 2, D> y_gradient, const Input& x, Result x_gradient, BatchShape batch,
                const Positions&, const Saved& saved, const Scratch& scratch, bool accumulate,
                const Context<D>& context) {
    const Index tokens = batch.rows();
    const Index count = row_count(tokens);
    const auto rows = rows_of(saved, tokens);
    if (recomputation_.in_backward(Recompute::block)) route(x, saved, context);
    const bool projects = recomputation_.in_backward(Recompute::ffn);
    const auto copies = up_.template input<Mode::recompute>(
        saved.copies, count, {.row_major = projects, .transposed = true});
    if (projects || !frozen) copy_to_experts(values_of(x), rows, copies, context);
    if (projects) up_.forward(copies, rows, wide(saved, count), context);

    const auto dy = down_.output_gradient(scratch.y_gradient, count);
    copy_to_experts(TensorView<const T, 2, D>(y_gradient), rows, dy, context);
    const TensorView<T, 2, D> activated_gradient{scratch.activated_gradient, {count, Shape.ffn}};
    if constexpr (!frozen) {
      const auto activated = down_.template input<Mode::recompute>(
          saved.activated, count, {.row_major = false, .transposed = true});
      if (recomputation_.in_backward(Recompute::swiglu)) {
        activate(saved, tokens, activated, context);
      }
      down_.backward_weight(dy, activated, rows, accumulate, context);
    }
    down_.backward_input(dy, rows, activated_gradient, context);

    const auto wide_gradient = up_.output_gradient(scratch.wide_gradient, count);
    const TensorView<float, 2, D> weight_gradient{scratch.weight_gradient,
                                                  {tokens, Experts.choices}};
    experts_swiglu_backward(TensorView<const T, 2, D>(activated_gradient),
                            TensorView<const T, 2, D>(wide(saved, count)), weights(saved, tokens),
                            rows, wide_gradient, weight_gradient, context);
    const TensorView<T, 2, D> row_gradients{scratch.x_gradient, {count, Shape.hidden}};
    if constexpr (!frozen) up_.backward_weight(wide_gradient, copies, rows, accumulate, context);
    up_.backward_input(wide_gradient, rows, row_gradients, context);
    sum_of_experts(TensorView<const T, 2, D>(row_gradients), rows, {}, x_gradient, context);
    backward_of_router(x, weight_gradient, x_gradient, saved, scratch, accumulate, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(router_);
    up_.visit(visitor);
    down_.visit(visitor);
  }
  template <class Visitor>
  void visit_adapters(Visitor&&) {}

 private:
  /// Computes the logits, the choices and the order of the rows.
  void route(const Input& x, const Saved& saved, const Context<D>& context) const {
    const Index tokens = x.values.extent(0);
    const TensorView<float, 2, D> logits{saved.logits, {tokens, Experts.experts}};
    const auto choices = choices_of(saved, tokens);
    router_logits(values_of(x), TensorView<const T, 2, D>(router_.weight), logits, context);
    choose_experts(TensorView<const float, 2, D>(logits), choices, context);
    order_by_expert(TensorView<const std::int32_t, 2, D>(choices.experts), rows_of(saved, tokens),
                    context);
  }

  template <class Activated>
  void activate(const Saved& saved, Index tokens, const Activated& activated,
                const Context<D>& context) const {
    experts_swiglu_forward(TensorView<const T, 2, D>(wide(saved, row_count(tokens))),
                           weights(saved, tokens), rows_of(saved, tokens), activated, context);
  }

  /// Computes the gradient of the router's weight unless it is frozen, and adds to that of its
  /// input.
  void backward_of_router(const Input& x, TensorView<const float, 2, D> weight_gradient,
                          TensorView<T, 2, D> x_gradient, const Saved& saved,
                          const Scratch& scratch, bool accumulate, const Context<D>& context) {
    const Index tokens = x.values.extent(0);
    const TensorView<float, 2, D> gradient{scratch.logits_gradient, {tokens, Experts.experts}};
    const auto choices = choices_of(saved, tokens);
    if (loss_ != nullptr && loss_->is_computed()) {
      loss_->for_each_part(tokens, [&](Index begin, Index count, bool is_counted) {
        choose_experts_backward(choices.rows(begin, count), weight_gradient.rows(begin, count),
                                is_counted ? loss_->term : BalanceTerm<D>{},
                                gradient.rows(begin, count), context);
      });
    } else {
      choose_experts_backward(choices, weight_gradient, BalanceTerm<D>{}, gradient, context);
    }
    const TensorView<const float, 2, D> router_gradient = gradient;
    if constexpr (!frozen) {
      router_weight_gradient(router_gradient, values_of(x), router_.gradient, accumulate, context);
    }
    add_router_input_gradient(router_gradient, TensorView<const T, 2, D>(router_.weight),
                              x_gradient, context);
  }

  static TensorView<const T, 2, D> values_of(const Input& x) { return x.values; }
  static TensorView<T, 2, D> wide(const Saved& saved, Index rows) {
    return {saved.wide, {rows, wide_columns}};
  }
  static TensorView<const float, 2, D> weights(const Saved& saved, Index tokens) {
    return {saved.weights, {tokens, Experts.choices}};
  }
  static ExpertChoices<D> choices_of(const Saved& saved, Index tokens) {
    return {{saved.probabilities, {tokens, Experts.experts}},
            {saved.chosen, {tokens, Experts.choices}},
            {saved.weights, {tokens, Experts.choices}},
            Experts.renormalised};
  }
  static ExpertRows<D> rows_of(const Saved& saved, Index tokens) {
    const Index rows = row_count(tokens);
    return {{saved.pairs, {rows}},
            {saved.places, {tokens, Experts.choices}},
            {saved.offsets, {Experts.experts + 1}},
            {saved.tiles, {rows / expert_tile}}};
  }

  Recomputation recomputation_;
  ExpertLoss<D>* loss_ = nullptr;
  Parameter<T, G, D> router_;
  UpProjection up_;
  DownProjection down_;
};

}  // namespace octavo
