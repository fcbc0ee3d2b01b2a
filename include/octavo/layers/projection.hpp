/// @file
/// A linear layer with its weight and optional bias.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/layers/activation.hpp>
#include <octavo/layers/adapter.hpp>
#include <octavo/layers/linear.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y = x · Wᵀ + bias, and owns the parameters. In precision `Lora<…>` they are frozen, and
/// the layer has adapters.
/// @tparam Precision  as in `Linear`
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
  static constexpr bool writes_e4m3 = Layer::writes_e4m3;
  static constexpr int in = In;
  static constexpr int out = Out;

  /// Declares its parameters, and registers the layer in the manifest and the scaling table.
  void declare(const std::string& name, LayerRegistry<D> registry, Initial initial,
               LinearUse use = {}) {
    weight_.declare(name + ".weight", Out, In, initial);
    weight_.is_overwritten = true;
    weight_.is_cast_only = Layer::keeps_fp8;
    weight_.matrices = use.matrices(Out);
    if constexpr (Bias) bias_.declare(name + ".bias", 1, Out, Initial::zeros());
    use.bias = Bias;
    layer_.declare(name, registry, use);
    weight_.operand = layer_.weight_by_one_scale();
    if constexpr (frozen) adapter_.declare(name, registry, use, In, Out);
  }

  /// Sets the part of the whole weight that this rank has.
  void set_part(const ParameterPart& part) { weight_.part = part; }

  void allocate_weight_copies(Arena<D>& arena) { layer_.allocate_weight_copies(arena, weight_); }

  template <class M>
  void quantize_weight(const Context<D>& context) {
    layer_.template quantize_weight<M>(context);
  }

  /// See Linear::input.
  template <class M>
  [[nodiscard]] Input input(const InputMemory& memory, Index tokens, OperandCopies copies) const {
    return layer_.template input<M>(memory, tokens, copies);
  }
  /// See Linear::output_gradient.
  [[nodiscard]] OutputGradient output_gradient(const OutputGradientMemory& memory,
                                               Index tokens) const {
    return layer_.output_gradient(memory, tokens);
  }

  /// Computes y = x · Wᵀ + bias + addend.
  /// @param x       an `Input`; an inference-only layer also accepts a `BeforeNorm` of one
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param y       [tokens, Out]
  template <class X>
  void forward(const X& x, TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
               const Context<D>& context) {
    TensorView<const T, 1, D> bias;
    if constexpr (Bias) bias = bias_.vector();
    layer_.forward(x, addend, bias, y, context);
    if constexpr (frozen) adapter_.forward(x.values, y, context);
  }

  /// Computes the input of an activation, x · Wᵀ + bias.
  /// @param wide  [tokens, Out]: of T, or of E4M3 if the layer writes it and has no bias
  template <class X, class Wide>
  void forward_wide(const X& x, TensorView<Wide, 2, D> wide, const Context<D>& context) {
    if constexpr (std::is_same_v<Wide, T>) {
      forward(x, {}, wide, context);
    } else {
      static_assert(!Bias && !frozen);
      layer_.forward(x, wide, context);
    }
  }

  /// Computes activated = Activation(wide).
  /// @tparam M         whether it counts values in E4M3 that may have saturated: if it records
  /// @param wide       [tokens, Out], as in forward_wide
  /// @param activated  an operand, as in `Activation`
  template <class Activation, class M, class Wide, class Activated>
  void activate(TensorView<Wide, 2, D> wide, const Activated& activated,
                const Context<D>& context) const {
    const TensorView<const Wide, 2, D> input = wide;
    if constexpr (std::is_same_v<Wide, T>) {
      Activation::forward(input, activated, context);
    } else {
      OperandStatistics* statistics = M::records ? layer_.output_statistics() : nullptr;
      Activation::forward(input, activated, statistics, context);
    }
  }

  /// Computes activated = Activation(x · Wᵀ + bias). If the layer supports it, the GEMM also
  /// computes an activation that has `is_silu_gate`.
  /// @tparam M         see activate
  /// @param wide       [tokens, Out], as in forward_wide; overwritten unless the GEMM computes the
  ///                   activation
  /// @param activated  an operand, as in `Activation`
  template <class Activation, class M, class X, class Wide, class Activated>
  void forward_activated(const X& x, TensorView<Wide, 2, D> wide, const Activated& activated,
                         const Context<D>& context) {
    constexpr bool in_product = requires {
      requires Activation::is_silu_gate && !Bias;
      layer_.template forward_gated<Activation>(x, wide, activated, context);
    };
    if constexpr (in_product) {
      layer_.template forward_gated<Activation>(x, wide, activated, context);
    } else {
      forward_wide(x, wide, context);
      activate<Activation, M>(wide, activated, context);
    }
  }

  /// Computes qkv = x · Wᵀ + bias, and appends its keys and values to a cache. Only for
  /// inference-only layers.
  /// @param x    an `Input`, or a `BeforeNorm` of one
  /// @param qkv  [tokens, Out]: the queries are rotated; the keys and values are undefined
  template <class X>
  void forward_cached(const X& x, TensorView<T, 2, D> qkv, const CacheRows<T, D>& rows,
                      const Context<D>& context) {
    TensorView<const T, 1, D> bias;
    if constexpr (Bias) bias = bias_.vector();
    layer_.forward_cached(x, bias, qkv, rows, context);
  }

  /// Casts an output gradient that has only values, and computes the gradient of the bias.
  void cast_gradient(const OutputGradient& dy, const Context<D>& context) const {
    if constexpr (Bias && !frozen) {
      bias_backward(dy, bias_.gradient_vector(), context);
    } else {
      quantize(dy, context);
    }
  }

  /// Returns the bias gradient, to which the kernel that casts the output gradient adds; empty
  /// without a trained bias.
  [[nodiscard]] TensorView<G, 1, D> bias_gradient() const {
    if constexpr (Bias && !frozen) {
      return bias_.gradient_vector();
    } else {
      return {};
    }
  }

  /// Computes the gradient of the weight or of the adapters, which is added to if `accumulate` and
  /// overwritten otherwise, and x_gradient = dy · W.
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
