/// @file
/// A linear layer with its weight and, if it has one, its bias.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/layers/activation.hpp>
#include <octavo/layers/adapter.hpp>
#include <octavo/layers/linear.hpp>

namespace octavo OCTAVO_ABI {

/// y = x · Wᵀ + bias, with parameters of its own; in precision `Lora<…>` they are frozen, and there
/// are adapters beside them.
/// @tparam Precision  as `Linear` has it
/// @tparam Bias       whether there is a bias
/// @tparam G          format of the parameters' gradients
template <class Precision, int In, int Out, bool Bias, class G, Device D>
class Projection {
 public:
  using Layer = Linear<Precision, In, Out, G, D>;
  using T = typename Layer::T;
  using Input = typename Layer::Input;
  using InputMemory = typename Layer::InputMemory;
  using OutputGradient = typename Layer::OutputGradient;
  using OutputGradientMemory = typename Layer::OutputGradientMemory;
  static constexpr bool quantized = Layer::quantized;
  static constexpr bool frozen = Layer::frozen;
  static constexpr int in = In;
  static constexpr int out = Out;

  /// Declares its parameters, and enters the layer in the manifest and the scaling table.
  void declare(const std::string& name, LayerRegistry<D> registry, Initial initial,
               LinearUse use = {}) {
    weight_.declare(name + ".weight", Out, In, initial);
    weight_.is_overwritten = true;
    weight_.is_cast_only = Layer::keeps_fp8;
    if constexpr (Bias) bias_.declare(name + ".bias", 1, Out, Initial::zeros());
    use.bias = Bias;
    layer_.declare(name, registry, use);
    weight_.operand = layer_.weight_by_one_scale();
    if constexpr (frozen) adapter_.declare(name, registry, use, In, Out);
  }

  /// Says which part of the whole weight this rank has.
  void set_part(const ParameterPart& part) { weight_.part = part; }

  void take_weight_copies(Arena<D>& arena) { layer_.take_weight_copies(arena, weight_); }

  template <class M>
  void quantize_weight(const Context<D>& context) {
    layer_.template quantize_weight<M>(context);
  }

  /// See Linear::input.
  template <class M>
  [[nodiscard]] Input input(const InputMemory& memory, Index tokens, Copies copies) const {
    return layer_.template input<M>(memory, tokens, copies);
  }
  /// See Linear::output_gradient.
  [[nodiscard]] OutputGradient output_gradient(const OutputGradientMemory& memory,
                                               Index tokens) const {
    return layer_.output_gradient(memory, tokens);
  }

  /// y = x · Wᵀ + bias + addend.
  /// @param x       an `Input`; of a layer that only infers a `BeforeNorm` of one, too
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param y       [tokens, Out]
  template <class X>
  void forward(const X& x, TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
               const Context<D>& context) {
    if constexpr (Bias) {
      layer_.forward(x, addend, bias_.vector(), y, context);
    } else {
      layer_.forward(x, addend, y, context);
    }
    if constexpr (frozen) adapter_.forward(x.values, y, context);
  }

  /// activated = Activation(x · Wᵀ + bias). A layer that can makes what says `is_silu_gate` with
  /// the product.
  /// @param wide       [tokens, Out], overwritten unless the product makes the activation
  /// @param activated  an operand, as `Activation` has it
  template <class Activation, class X, class Activated>
  void forward_activated(const X& x, TensorView<T, 2, D> wide, const Activated& activated,
                         const Context<D>& context) {
    constexpr bool in_product = requires {
      requires Activation::is_silu_gate && !Bias;
      layer_.template forward_gated<Activation>(x, wide, activated, context);
    };
    if constexpr (in_product) {
      layer_.template forward_gated<Activation>(x, wide, activated, context);
    } else {
      forward(x, {}, wide, context);
      Activation::forward(TensorView<const T, 2, D>(wide), activated, context);
    }
  }

  /// qkv = x · Wᵀ + bias, whose rows join a cache. Of a layer that only infers.
  /// @param x    an `Input`, or a `BeforeNorm` of one
  /// @param qkv  [tokens, Out]: its queries, rotated; its keys and values are undefined
  template <class X>
  void forward_cached(const X& x, TensorView<T, 2, D> qkv, const CacheRows<T, D>& rows,
                      const Context<D>& context) {
    TensorView<const T, 1, D> bias;
    if constexpr (Bias) bias = bias_.vector();
    layer_.forward_cached(x, bias, qkv, rows, context);
  }

  /// Casts a gradient of the output that has its values only, and makes the bias' gradient.
  void cast_gradient(const OutputGradient& dy, const Context<D>& context) const {
    if constexpr (Bias && !frozen) {
      bias_backward(dy, bias_.gradient_vector(), context);
    } else {
      quantize(dy, context);
    }
  }

  /// Where what makes a cast gradient of the output is to add the bias' gradient; empty without a
  /// bias that is trained.
  [[nodiscard]] TensorView<G, 1, D> bias_gradient() const {
    if constexpr (Bias && !frozen) {
      return bias_.gradient_vector();
    } else {
      return {};
    }
  }

  /// The gradient of the weight, or of adapters, added to what is there if `accumulate`, else
  /// written over it, and x_gradient = dy · W.
  /// @param x_gradient  [tokens, In]
  void backward(const OutputGradient& dy, const Input& x, TensorView<T, 2, D> x_gradient,
                bool accumulate, const Context<D>& context) {
    if constexpr (!frozen) {
      layer_.backward_weight(dy, x, weight_.gradient, accumulate, context);
    }
    layer_.backward_input(dy, x_gradient, context);
    if constexpr (frozen) {
      adapter_.backward(dy.values, x.values, x_gradient, accumulate, context);
    }
  }

  template <class Visitor>
  void visit_weight(Visitor&& visitor) {
    visitor(weight_);
  }
  template <class Visitor>
  void visit_bias(Visitor&& visitor) {
    if constexpr (Bias) visitor(bias_);
  }
  template <class Visitor>
  void visit_adapter(Visitor&& visitor) {
    if constexpr (frozen) adapter_.visit(visitor);
  }

 private:
  struct NoBias {};
  struct NoAdapter {};

  Layer layer_;
  Parameter<T, G, D> weight_;
  std::conditional_t<Bias, Parameter<T, G, D>, NoBias> bias_;
  std::conditional_t<frozen, Adapter<T, G, D>, NoAdapter> adapter_;
};

}  // namespace octavo
