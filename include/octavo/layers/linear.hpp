/// @file
/// A linear layer: y = x · Wᵀ and its gradients, in the precision that its type names.
#pragma once

#include <octavo/gemm/gemm.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/kernels/weight_codes.hpp>
#include <octavo/layers/layer_registry.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/parameter.hpp>

namespace octavo::inline OCTAVO_ABI {

/// How a model uses a linear layer.
struct LinearUse {
  bool recomputed = false;  ///< the forward GEMM runs once more in the backward
  bool is_head = false;     ///< it works through the tokens in chunks
  bool adds = false;        ///< the forward adds to its result, such as the residual stream
  bool bias = false;        ///< the forward adds a bias
};

/// A linear layer, `In` features to `Out`. Can be moved, also between its calls, but not copied: a
/// copy would count and record as the same layer.
/// @tparam Precision  `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, or `AllowFallback` of one
/// @tparam G          format of the weight's gradient
template <class Precision, int In, int Out, class G, Device D>
class Linear {
 public:
  /// The precision that it runs in; differs from `Precision` only for `AllowFallback`.
  using P = PrecisionForLayer<Precision, In, Out, D>;
  using T = typename PrecisionTraits<P>::Storage;
  using Weight = Parameter<T, G, D>;
  using Input = Operand<P, OperandKind::input, D>;
  using OutputGradient = Operand<P, OperandKind::output_gradient, D>;
  using InputMemory = OperandMemory<P, OperandKind::input, D>;
  using WeightMemory = OperandMemory<P, OperandKind::weight, D>;
  using OutputGradientMemory = OperandMemory<P, OperandKind::output_gradient, D>;
  static constexpr bool quantized = QuantizedPrecision<P>;
  /// Whether the weight itself is not kept, but its cast: see Linear<Inference<…>>.
  static constexpr bool keeps_fp8 = false;

  static_assert(sizeof(detail::LayerCheck<P, In, Out, D>) > 0);  // which says what does not fit

  Linear() = default;
  Linear(Linear&&) noexcept = default;
  Linear& operator=(Linear&&) noexcept = default;

  /// Enters the layer in the manifest and the scaling table.
  void declare(const std::string& name, LayerRegistry<D> registry, LinearUse use = {}) {
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
    const GemmScales x = scales<OperandKind::input>();
    const GemmScales w = scales<OperandKind::weight>();
    const GemmScales dy = scales<OperandKind::output_gradient>();
    const auto add = [&](GemmPass pass, const char* a, const char* b, const char* result,
                         bool again, GemmScales scales_a, GemmScales scales_b) {
      GemmEntry entry{name, pass, Out, In, {a, b, by}, precision, result, again, use.is_head, 0};
      entry.adds = use.adds && pass == GemmPass::forward;
      entry.bias = use.bias && pass == GemmPass::forward;
      entry.scales_a = scales_a;
      entry.scales_b = scales_b;
      return registry.manifest->add(std::move(entry));
    };
    const char* stored = FormatTraits<T>::name;
    entries_ = {
        add(GemmPass::forward, forward, forward, stored, use.recomputed, x, w),
        add(GemmPass::input_gradient, backward, forward, stored, false, dy, w),
        add(GemmPass::weight_gradient, backward, forward, FormatTraits<G>::name, false, dy, x)};
  }

  /// The weight's number in the scaling table, if the layer casts it from BF16 by one scale; else
  /// below 0. Once declared.
  [[nodiscard]] Index weight_by_one_scale() const {
    return by_one_scale ? static_cast<Index>(slots_[weight_place]) : -1;
  }

  /// Takes the memory of the weight's quantised copies, or reserves it on the stage. Where ranks
  /// cast the weight, the row-major copy is what they send.
  /// @param weight  whose memory the layer reads from now on
  void take_weight_copies(Arena<D>& arena, const Weight& weight) {
    copies_.values = weight.weight.data();
    if constexpr (by_one_scale) {
      has_codes_ = weight.has_codes();
      if (has_codes_) {
        registry_.scaling->let_ranks_cast(slots_[weight_place]);
        copies_.row_major = weight.codes.data();
        if (registry_.stage == nullptr) {
          copies_.take_transposed(arena, MemoryKind::quantized_weights, Out, In);
        } else {
          registry_.stage->reserve(WeightMemory::element_bytes(Out, In), 0);
        }
        return;
      }
    }
    if (registry_.stage == nullptr) {
      copies_.take_row_major(arena, MemoryKind::quantized_weights, Out, In);
      copies_.take_transposed(arena, MemoryKind::quantized_weights, Out, In);
    } else if constexpr (quantized) {
      registry_.stage->reserve(
          WeightMemory::element_bytes(Out, In),
          std::max(WeightMemory::scale_bytes(Out, In), WeightMemory::scale_bytes(In, Out)));
    }
  }

  /// Quantises the weight: once an optimizer step, and before an evaluation. Where copies are made
  /// for each GEMM, the next forward does and records. What ranks have cast is transposed.
  template <class M>
  void quantize_weight(const Context<D>& context) {
    if (has_codes_) {
      if (registry_.stage == nullptr) transpose(weight_operand(false, {true, true}), context);
    } else if (registry_.stage == nullptr) {
      quantize(weight_operand(M::records, {true, true}), context);
    } else {
      records_next_ = M::records;
      scale_is_found_ = false;
    }
  }

  /// The operand that the layer's input is to be written to.
  /// @param memory  of at least `tokens` rows
  template <class M>
  [[nodiscard]] Input input(const InputMemory& memory, Index tokens, Copies copies) const {
    Input result = memory.operand(tokens, In, slot(OperandKind::input), M::records, copies);
    if constexpr (quantized) result.scale_is_found = !M::finds_scales;
    return result;
  }

  /// The operand that the gradient of the layer's output is to be written to.
  [[nodiscard]] OutputGradient output_gradient(const OutputGradientMemory& memory,
                                               Index tokens) const {
    return memory.operand(tokens, Out, slot(OperandKind::output_gradient), true, {true, true});
  }

  /// y = x · Wᵀ + addend.
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param y       [tokens, Out]
  void forward(const Input& x, TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
               const Context<D>& context) {
    forward(x, addend, {}, y, context);
  }

  /// y = x · Wᵀ + addend + bias.
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param bias    [Out]; empty: there is none
  /// @param y       [tokens, Out]
  void forward(const Input& x, TensorView<const T, 2, D> addend, TensorView<const T, 1, D> bias,
               TensorView<T, 2, D> y, const Context<D>& context) {
    const GemmOutput<T, D> output{y, addend, bias};
    const auto weight = ready_weight({.row_major = true, .transposed = false}, context);
    if constexpr (quantized) {
      count(GemmPass::forward, matmul_forward(x.row_major, weight.row_major, output, context));
    } else {
      count(GemmPass::forward, matmul_forward(x.values, weight.values, output, context));
    }
  }

  /// x_gradient = dy · W.
  /// @param x_gradient  [tokens, In]
  void backward_input(const OutputGradient& dy, TensorView<T, 2, D> x_gradient,
                      const Context<D>& context) {
    const GemmOutput<T, D> output{x_gradient, {}};
    const auto weight = ready_weight({.row_major = false, .transposed = true}, context);
    if constexpr (quantized) {
      count(GemmPass::input_gradient,
            matmul_input_gradient(dy.row_major, weight.transposed, output, context));
    } else {
      count(GemmPass::input_gradient,
            matmul_input_gradient(dy.values, weight.values, output, context));
    }
  }

  /// w_gradient = dyᵀ · x, added to what is there if `accumulate`, else written over it: a product
  /// that starts from nothing saves clearing a matrix.
  /// @param w_gradient  [Out, In], such as the weight's `gradient`
  void backward_weight(const OutputGradient& dy, const Input& x, TensorView<G, 2, D> w_gradient,
                       bool accumulate, const Context<D>& context) {
    GemmOutput<G, D> output{w_gradient, {}};
    if (accumulate) output.addend = w_gradient;
    if constexpr (quantized) {
      count(GemmPass::weight_gradient,
            matmul_weight_gradient(dy.transposed, x.transposed, output, context));
    } else {
      count(GemmPass::weight_gradient,
            matmul_weight_gradient(dy.values, x.values, output, context));
    }
  }

 private:
  static constexpr auto weight_place = static_cast<std::size_t>(OperandKind::weight);
  /// Whether the weight is cast from BF16 by one scale.
  static constexpr bool by_one_scale = [] {
    if constexpr (quantized && std::is_same_v<T, Bf16>) {
      return std::is_same_v<OperandGranularity<P, OperandKind::weight>, PerTensor>;
    } else {
      return false;
    }
  }();

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
  template <OperandKind Kind>
  static constexpr GemmScales scales() {
    if constexpr (quantized) {
      return gemm_scales<typename OperandMemory<P, Kind, D>::Granularity>;
    } else {
      return GemmScales::none;
    }
  }
  [[nodiscard]] ScalingSlot slot(OperandKind kind) const {
    if (!quantized) return ScalingSlot();
    return registry_.scaling->slot(slots_[static_cast<std::size_t>(kind)]);
  }
  [[nodiscard]] Operand<P, OperandKind::weight, D> weight_operand(bool record,
                                                                  Copies copies) const {
    return copies_.operand(Out, In, slot(OperandKind::weight), record, copies);
  }
  /// The weight with the copies that a GEMM reads: those that are kept, or made now. Only the first
  /// cast of a weight records, and finds its scale.
  [[nodiscard]] Operand<P, OperandKind::weight, D> ready_weight(Copies copies,
                                                                const Context<D>& context) {
    if constexpr (quantized) {
      if (registry_.stage != nullptr) {
        WeightMemory staged = copies_;
        staged.place(registry_.stage->elements(), registry_.stage->scales());
        if (has_codes_) {
          staged.row_major = copies_.row_major;
          const auto operand = staged.operand(Out, In, slot(OperandKind::weight), false, {});
          if (copies.transposed) transpose(operand, context);
          return operand;
        }
        auto operand = staged.operand(Out, In, slot(OperandKind::weight),
                                      std::exchange(records_next_, false), copies);
        operand.scale_is_found = std::exchange(scale_is_found_, true);
        quantize(operand, context);
        return operand;
      }
    }
    return weight_operand(false, copies);
  }
  /// Makes the transposed copy of what ranks have cast.
  static void transpose(const Operand<P, OperandKind::weight, D>& weight,
                        const Context<D>& context) {
    if constexpr (by_one_scale) transpose_codes(weight.row_major, weight.transposed, context);
  }
  void count(GemmPass pass, const GemmRun& run) {
    registry_.manifest->entry(entries_[static_cast<std::size_t>(pass)]).count(run);
  }

  WeightMemory copies_;
  bool has_codes_ = false;       ///< ranks cast the weight
  bool records_next_ = false;    ///< of the weight's next cast, where copies are made for each GEMM
  bool scale_is_found_ = false;  ///< since the weight was changed
  LayerRegistry<D> registry_;
  std::array<std::size_t, 3> slots_{};    ///< in the scaling table, by `OperandKind`
  std::array<std::size_t, 3> entries_{};  ///< in the manifest, by `GemmPass`
};

}  // namespace octavo

#include <octavo/layers/inference_linear.hpp>
