/// @file
/// Llama's MLP: down(silu(gate(x)) · up(x)).
#pragma once

#include <octavo/kernels/swiglu.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/layers/shapes.hpp>

namespace octavo {

/// Fused gate and up projection, SwiGLU, down projection with the residual connection.
/// @tparam T       format of weights and activations
/// @tparam GateUp  precision of the fused projection
/// @tparam Down    precision of the down projection
/// @tparam G       format of gradients of weights
template <BlockShape Shape, class T, class GateUp, class Down, class G, Device D>
class MLP {
 public:
  using GateUpLinear = Linear<GateUp, Shape.hidden, 2 * Shape.ffn, G, D>;
  using DownLinear = Linear<Down, Shape.ffn, Shape.hidden, G, D>;

  /// What the backward needs, for all tokens of a batch.
  struct Saved {
    typename GateUpLinear::InputMemory input;
    T* gate_up = nullptr;  ///< [tokens, 2 · ffn]
    typename DownLinear::InputMemory activated;
  };

  /// What lives within one block's backward.
  struct Scratch {
    typename DownLinear::OutputGradientMemory down_gradient;
    typename GateUpLinear::OutputGradientMemory gate_up_gradient;
    T* activated_gradient = nullptr;  ///< [tokens, ffn]
  };

  void declare(const std::string& name, LayerRegistry<D> registry, float initial_deviation,
               float residual_deviation, bool gate_up_recomputed) {
    gate_up_weight_.declare(name + ".gate_up.weight", 2 * Shape.ffn, Shape.hidden,
                            Initial::normal(initial_deviation));
    down_weight_.declare(name + ".down.weight", Shape.hidden, Shape.ffn,
                         Initial::normal(residual_deviation));
    gate_up_.enter(name + ".gate_up", registry, {.recomputed = gate_up_recomputed});
    down_.enter(name + ".down", registry, {.adds = true});
  }

  void take_weight_copies(Arena<D>& arena) {
    gate_up_.take_weight_copies(arena, gate_up_weight_);
    down_.take_weight_copies(arena, down_weight_);
  }

  static void take_saved_input(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.take_kept(arena, tokens, Shape.hidden);
  }
  static void take_saved_gate_up(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.gate_up = arena.template take<T>(MemoryKind::activations, tokens * 2 * Shape.ffn);
  }
  static void take_saved_activated(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.activated.take_kept(arena, tokens, Shape.ffn);
  }
  /// Takes what blocks share in the forward.
  static void take_shared(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.take_transient(arena, tokens, Shape.hidden);
    saved.activated.take_transient(arena, tokens, Shape.ffn);
  }
  static void take_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    constexpr auto kind = MemoryKind::activations;
    scratch.gate_up_gradient.take_values(arena, kind, tokens, 2 * Shape.ffn);
    scratch.activated_gradient = arena.template take<T>(kind, tokens * Shape.ffn);
    arena.overlay(
        [&] {
          scratch.down_gradient.take_row_major(arena, kind, tokens, Shape.hidden);
          scratch.down_gradient.take_transposed(arena, kind, tokens, Shape.hidden);
        },
        [&] {
          scratch.gate_up_gradient.take_row_major(arena, kind, tokens, 2 * Shape.ffn);
          scratch.gate_up_gradient.take_transposed(arena, kind, tokens, 2 * Shape.ffn);
        });
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    gate_up_.template quantize_weight<M>(context);
    down_.template quantize_weight<M>(context);
  }

  /// The operand that the block's normalisation writes to.
  template <class M>
  [[nodiscard]] auto input(const Saved& saved, Index tokens, Copies copies) const {
    return gate_up_.template input<M>(saved.input, tokens, copies);
  }

  /// Gate and up projection of the normalised rows.
  void project(const typename GateUpLinear::Input& x, const Saved& saved,
               const Context<D>& context) {
    gate_up_.forward(x, {}, gate_up(saved, x.values.extent(0)), context);
  }

  /// The activation's operand, as a forward left it.
  template <class M>
  [[nodiscard]] auto activated(const Saved& saved, Index tokens, Copies copies) const {
    return down_.template input<M>(saved.activated, tokens, copies);
  }

  /// The activation, from the projection.
  template <class M>
  auto activate(const Saved& saved, Index tokens, Copies copies, const Context<D>& context) const {
    const auto activated = this->template activated<M>(saved, tokens, copies);
    const TensorView<const T, 2, D> source = gate_up(saved, tokens);
    swiglu_forward(source, activated, context);
    return activated;
  }

  /// y = residual + down(activated).
  void finish(const typename DownLinear::Input& activated, TensorView<const T, 2, D> residual,
              TensorView<T, 2, D> y, const Context<D>& context) {
    down_.forward(activated, residual, y, context);
  }

  /// From the gradient of y to that of x; weights' gradients on the way.
  /// @param y_gradient  [tokens, hidden]; stays as it is
  /// @param activated   with what the weight's gradient needs
  /// @param x           the forward's input, with what the weight's gradient needs
  /// @param x_gradient  [tokens, hidden]
  void backward(TensorView<T, 2, D> y_gradient, const typename DownLinear::Input& activated,
                const typename GateUpLinear::Input& x, TensorView<T, 2, D> x_gradient,
                const Saved& saved, const Scratch& scratch, bool accumulate,
                const Context<D>& context) {
    const Index tokens = y_gradient.extent(0);
    auto down_memory = scratch.down_gradient;
    down_memory.values = y_gradient.data();
    const auto dy = down_.output_gradient(down_memory, tokens);
    quantize(dy, context);
    down_.backward_weight(dy, activated, down_weight_.gradient, accumulate, context);
    const TensorView<T, 2, D> activated_gradient{scratch.activated_gradient, {tokens, Shape.ffn}};
    down_.backward_input(dy, activated_gradient, context);
    const auto gate_up_gradient = gate_up_.output_gradient(scratch.gate_up_gradient, tokens);
    const TensorView<const T, 2, D> incoming = activated_gradient;
    const TensorView<const T, 2, D> source = gate_up(saved, tokens);
    swiglu_backward(incoming, source, gate_up_gradient, context);
    gate_up_.backward_weight(gate_up_gradient, x, gate_up_weight_.gradient, accumulate, context);
    gate_up_.backward_input(gate_up_gradient, x_gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(gate_up_weight_);
    visitor(down_weight_);
  }

 private:
  static TensorView<T, 2, D> gate_up(const Saved& saved, Index tokens) {
    return {saved.gate_up, {tokens, 2 * Shape.ffn}};
  }

  GateUpLinear gate_up_;
  DownLinear down_;
  Parameter<T, G, D> gate_up_weight_;
  Parameter<T, G, D> down_weight_;
};

}  // namespace octavo
