/// @file
/// A linear layer: y = x · Wᵀ and its gradients, in the precision that its type names.
#pragma once

#include <octavo/gemm/gemm.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/parameter.hpp>
#include <octavo/layers/scaling_table.hpp>

namespace octavo {

/// What linear layers share while a model is laid out.
template <Device D>
struct LayerRegistry {
  ScalingTable<D>* scaling = nullptr;
  GemmManifest* manifest = nullptr;
};

/// A linear layer without bias, `In` features to `Out`.
/// @tparam Precision  `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, or `AllowFallback` of one
/// @tparam G          format of the weight's gradient
template <class Precision, int In, int Out, class G, Device D>
class Linear {
 public:
  /// The precision that it runs in; differs from `Precision` only for `AllowFallback`.
  using P = PrecisionForShape<Precision, In, Out>;
  using T = typename PrecisionTraits<P>::Storage;
  using Weight = Parameter<T, G, D>;
  using Input = Operand<P, OperandKind::input, D>;
  using OutputGradient = Operand<P, OperandKind::output_gradient, D>;
  using InputMemory = OperandMemory<P, OperandKind::input, D>;
  using OutputGradientMemory = OperandMemory<P, OperandKind::output_gradient, D>;
  static constexpr bool quantized = QuantizedPrecision<P>;

  static constexpr int multiple = PrecisionTraits<P>::shape_multiple;
  static_assert(
      multiple != 128 || (In % 128 == 0 && Out % 128 == 0),
      "Fp8Recipe<Blockwise>: a linear layer's input and output features must be multiples "
      "of 128; change the model's hidden, ffn or head sizes, choose "
      "Fp8Recipe<Tensorwise>, or write AllowFallback<Fp8Recipe<Blockwise>>");
  static_assert(multiple != 32 || (In % 32 == 0 && Out % 32 == 0),
                "Mxfp8: a linear layer's input and output features must be multiples of 32; change "
                "the model's hidden, ffn or head sizes, or write AllowFallback<Mxfp8>");
  static_assert(multiple != 16 || (In % 16 == 0 && Out % 16 == 0),
                "Fp8Recipe: a linear layer's input and output features must be multiples of 16; "
                "change the model's hidden, ffn or head sizes, or write AllowFallback around the "
                "recipe");

  /// Enters the layer in the manifest and the scaling table.
  /// @param recomputed  the forward GEMM runs once more in the backward
  void enter(const std::string& name, LayerRegistry<D> registry, bool recomputed = false,
             bool is_head = false) {
    registry_ = registry;
    if constexpr (quantized) {
      slots_ = {registry.scaling->template add<P, OperandKind::input>(name),
                registry.scaling->template add<P, OperandKind::weight>(name),
                registry.scaling->template add<P, OperandKind::output_gradient>(name)};
    }
    const char* forward = forward_format();
    const char* backward = backward_format();
    const char* by = gemm_implementation<P>(D{});
    const std::string precision = PrecisionTraits<P>::name();
    const auto add = [&](GemmPass pass, const char* a, const char* b, const char* result,
                         bool again) {
      return registry.manifest->add(
          {name, pass, Out, In, {a, b, by}, precision, result, again, is_head, 0});
    };
    entries_ = {add(GemmPass::forward, forward, forward, FormatTraits<T>::name, recomputed),
                add(GemmPass::input_gradient, backward, forward, FormatTraits<T>::name, false),
                add(GemmPass::weight_gradient, backward, forward, FormatTraits<G>::name, false)};
  }

  /// Takes the memory of the weight's quantised copies.
  void take_weight_copies(Arena<D>& arena, const Weight& weight) {
    weight_ = weight;
    copies_.values = weight.weight.data();
    copies_.take_row_major(arena, MemoryKind::quantized_weights, Out, In);
    copies_.take_transposed(arena, MemoryKind::quantized_weights, Out, In);
  }

  /// Quantises the weight: once an optimizer step, and before an evaluation.
  template <class M>
  void quantize_weight(const Context<D>& context) const {
    quantize(weight_operand(M::records), context);
  }

  /// The operand that the layer's input is to be written to.
  /// @param memory  of at least `tokens` rows
  template <class M>
  [[nodiscard]] Input input(const InputMemory& memory, Index tokens, Copies copies) const {
    return memory.operand(tokens, In, slot(0), M::records, copies);
  }

  /// The operand that the gradient of the layer's output is to be written to.
  [[nodiscard]] OutputGradient output_gradient(const OutputGradientMemory& memory,
                                               Index tokens) const {
    return memory.operand(tokens, Out, slot(2), true, {true, true});
  }

  /// y = x · Wᵀ + addend.
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param y       [tokens, Out]
  void forward(const Input& x, TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
               const Context<D>& context) {
    const GemmOutput<T, D> output{y, addend};
    const auto weight = weight_operand(false);
    if constexpr (quantized) {
      count(GemmPass::forward, matmul_forward(x.row_major, weight.row_major, output, context));
    } else {
      count(GemmPass::forward,
            matmul_forward(constant(x.values), constant(weight.values), output, context));
    }
  }

  /// x_gradient = dy · W.
  /// @param x_gradient  [tokens, In]
  void backward_input(const OutputGradient& dy, TensorView<T, 2, D> x_gradient,
                      const Context<D>& context) {
    const GemmOutput<T, D> output{x_gradient, {}};
    const auto weight = weight_operand(false);
    if constexpr (quantized) {
      count(GemmPass::input_gradient,
            matmul_input_gradient(dy.row_major, weight.transposed, output, context));
    } else {
      count(GemmPass::input_gradient,
            matmul_input_gradient(constant(dy.values), constant(weight.values), output, context));
    }
  }

  /// The weight's gradient = dyᵀ · x, added to what is there if `accumulate`.
  void backward_weight(const OutputGradient& dy, const Input& x, bool accumulate,
                       const Context<D>& context) {
    GemmOutput<G, D> output{weight_.gradient, {}};
    if (accumulate) output.addend = weight_.gradient;
    if constexpr (quantized) {
      count(GemmPass::weight_gradient,
            matmul_weight_gradient(dy.transposed, x.transposed, output, context));
    } else {
      count(GemmPass::weight_gradient,
            matmul_weight_gradient(constant(dy.values), constant(x.values), output, context));
    }
  }

 private:
  template <class E, int Rank>
  static TensorView<const E, Rank, D> constant(TensorView<E, Rank, D> view) {
    return view;
  }
  static constexpr const char* forward_format() {
    if constexpr (quantized) {
      return FormatTraits<OperandFormat<P, OperandKind::input>>::name;
    } else {
      return FormatTraits<T>::name;
    }
  }
  static constexpr const char* backward_format() {
    if constexpr (quantized) {
      return FormatTraits<OperandFormat<P, OperandKind::output_gradient>>::name;
    } else {
      return FormatTraits<T>::name;
    }
  }
  [[nodiscard]] ScalingSlot* slot(std::size_t kind) const {
    return quantized ? registry_.scaling->slot(slots_[kind]) : nullptr;
  }
  [[nodiscard]] Operand<P, OperandKind::weight, D> weight_operand(bool record) const {
    return copies_.operand(Out, In, slot(1), record, {true, true});
  }
  void count(GemmPass pass, const GemmRun& run) {
    registry_.manifest->entry(entries_[static_cast<std::size_t>(pass)]).count(run);
  }

  Weight weight_;
  OperandMemory<P, OperandKind::weight, D> copies_;
  LayerRegistry<D> registry_;
  std::array<std::size_t, 3> slots_{};
  std::array<std::size_t, 3> entries_{};
};

}  // namespace octavo
