/// @file
/// A linear layer: y = x · Wᵀ and its gradients, in the precision given by its type.
#pragma once

#include <octavo/gemm/expert_gemms.hpp>
#include <octavo/gemm/manifest.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/fp8_weights.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/layers/layer_registry.hpp>
#include <octavo/layers/linear_use.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/parameter.hpp>
#include <octavo/precision/gpu_precisions.hpp>
#include <octavo/precision/lora.hpp>

namespace octavo OCTAVO_ABI {

/// A linear layer with `In` input and `Out` output features. Movable, even between calls, but not
/// copyable: a copy would count GEMMs and record amaxes as the same layer.
///
/// In precision `Lora<…>` the weight is frozen: it has no gradient, and its quantised copies are
/// computed after it is set. Operands contain plain values, which the layer casts right before its
/// GEMMs.
/// @tparam Precision  `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, or `AllowFallback` or `Lora` of one
/// @tparam G          format of the weight's gradient
template <class Precision, int In, int Out, class G, Device D>
class Linear {
 public:
  /// The layer's actual precision; differs from `Precision` only for `AllowFallback`.
  using P = PrecisionForLayer<Precision, In, Out, D>;
  /// The precision of its GEMMs.
  using Base = BasePrecision<P>;
  using WeightPrecision =
      std::conditional_t<is_lora<P>, typename detail::FrozenWeight<Base>::type, Base>;
  using T = typename PrecisionTraits<P>::Storage;
  using Weight = Parameter<T, G, D>;
  using Input = Operand<P, OperandKind::input, D>;
  using OutputGradient = Operand<P, OperandKind::output_gradient, D>;
  using InputMemory = OperandMemory<P, OperandKind::input, D>;
  using WeightMemory = OperandMemory<WeightPrecision, OperandKind::weight, D>;
  using OutputGradientMemory = OperandMemory<P, OperandKind::output_gradient, D>;
  /// Whether callers write quantised copies of its operands.
  static constexpr bool quantized = QuantizedPrecision<P>;
  /// Whether only the cast weight is kept: see inference_linear.hpp.
  static constexpr bool keeps_fp8 = false;
  /// Whether its weight is frozen.
  static constexpr bool frozen = is_lora<P>;
  /// Whether the forward can write E4M3.
  static constexpr bool writes_e4m3 = detail::writes_e4m3<P>;

  static_assert(sizeof(detail::LayerCheck<Base, In, Out, D>) > 0);  // reports the rule that is
                                                                    // broken

  Linear() = default;
  Linear(Linear&&) noexcept = default;
  Linear& operator=(Linear&&) noexcept = default;

  /// Registers the layer in the manifest and the scaling table.
  /// @throws ConfigError  if the GPU does not run the layer's GEMMs
  void declare(const std::string& name, LayerRegistry<D> registry, LinearUse use = {}) {
    require_gemms<Base>(registry.limits);
    registry_ = registry;
    if constexpr (multiplies_quantized) {
      slots_ = {registry.scaling->template add<Base, OperandKind::input>(name),
                registry.scaling->template add<WeightPrecision, OperandKind::weight>(name),
                registry.scaling->template add<Base, OperandKind::output_gradient>(name)};
      if (use.writes_e4m3) output_ = registry.scaling->template add_output<E4M3>(name);
    }
    if constexpr (frozen && multiplies_quantized) {
      const Index rows = use.rows(registry.batch.rows());
      const Index out = use.experts == 0 ? Out : Out / use.experts;
      registry.scratch->reserve(cast_bytes<OperandKind::input>(rows, In));
      registry.scratch->reserve(cast_bytes<OperandKind::output_gradient>(rows, out));
    }
    entries_ = detail::add_gemms(
        *registry.manifest, name,
        {Out,
         In,
         forward_format(),
         backward_format(),
         FormatTraits<T>::name,
         frozen ? nullptr : FormatTraits<G>::name,
         use.experts == 0 ? gemm_implementation<Base>(D{}) : expert_implementation<Base>(D{}),
         PrecisionTraits<Base>::name(),
         {scales<OperandKind::input>(), scales<OperandKind::weight>(),
          scales<OperandKind::output_gradient>()},
         detail::input_gradient_accumulation<Base>,
         detail::weight_gradient_accumulation<Base>,
         emulated && std::is_same_v<D, Cuda>},
        use);
  }

  /// Returns the weight's number in the scaling table if the layer casts it from BF16 with one
  /// scale, and a negative number otherwise. Call it after `declare`.
  [[nodiscard]] Index weight_by_one_scale() const {
    return by_one_scale ? static_cast<Index>(slots_[weight_place]) : -1;
  }

  /// Allocates the weight's quantised copies, or reserves memory for them in the `WeightStage`. If
  /// ranks cast the weight, they send the row-major copy.
  /// @param weight  whose memory the layer reads from now on
  void allocate_weight_copies(Arena<D>& arena, const Weight& weight) {
    copies_.values = weight.weight.data();
    if constexpr (by_one_scale) {
      has_fp8_values_ = weight.has_fp8_values();
      if (has_fp8_values_) {
        registry_.scaling->set_cast_by_ranks(slots_[weight_place]);
        copies_.row_major = weight.fp8_values.data();
        if (registry_.stage == nullptr) {
          copies_.allocate_transposed(arena, MemoryKind::quantized_weights, Out, In);
        } else {
          registry_.stage->reserve(WeightMemory::element_bytes(Out, In), 0);
        }
        return;
      }
    }
    if (registry_.stage == nullptr) {
      copies_.allocate_row_major(arena, MemoryKind::quantized_weights, Out, In);
      copies_.allocate_transposed(arena, MemoryKind::quantized_weights, Out, In);
    } else if constexpr (multiplies_quantized) {
      registry_.stage->reserve(
          WeightMemory::element_bytes(Out, In),
          std::max(WeightMemory::scale_bytes(Out, In), WeightMemory::scale_bytes(In, Out)));
    }
  }

  /// Quantises the weight: called once per optimizer step and before an evaluation or, for a frozen
  /// weight, after it is set. If copies are computed for each GEMM, the next forward casts and
  /// records instead; for a frozen weight, this call then computes only the scale. If ranks cast
  /// the weight, their values are transposed.
  template <class M>
  void quantize_weight(const Context<D>& context) {
    if (has_fp8_values_) {
      if (registry_.stage == nullptr) transpose(weight_operand(false, {true, true}), context);
    } else if (registry_.stage == nullptr) {
      quantize(weight_operand(M::records, {true, true}), context);
    } else if constexpr (frozen) {
      scale_is_found_ = false;
      (void)prepare_weight({.row_major = true, .transposed = false}, context);
    } else {
      records_next_ = M::records;
      scale_is_found_ = false;
    }
  }

  /// Returns the operand that receives the layer's input.
  /// @param memory  of at least `tokens` rows
  template <class M>
  [[nodiscard]] Input input(const InputMemory& memory, Index tokens, OperandCopies copies) const {
    Input result = memory.operand(tokens, In, slot(OperandKind::input), M::records, copies);
    if constexpr (quantized || frozen) {
      result.record = M::records;
      result.scale_is_found = !M::finds_scales;
    }
    return result;
  }

  /// Returns the operand that receives the gradient of the layer's output.
  [[nodiscard]] OutputGradient output_gradient(const OutputGradientMemory& memory,
                                               Index tokens) const {
    OutputGradient result =
        memory.operand(tokens, Out, slot(OperandKind::output_gradient), true, {true, true});
    if constexpr (frozen) result.record = true;
    if constexpr (quantized) result.number = rounding_number(OperandKind::output_gradient);
    return result;
  }

  /// Computes y = x · Wᵀ + addend.
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param y       [tokens, Out]
  void forward(const Input& x, TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
               const Context<D>& context) {
    forward(x, addend, {}, y, context);
  }

  /// Computes y = x · Wᵀ + addend + bias.
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param bias    [Out]; empty: no bias
  /// @param y       [tokens, Out]
  void forward(const Input& x, TensorView<const T, 2, D> addend, TensorView<const T, 1, D> bias,
               TensorView<T, 2, D> y, const Context<D>& context) {
    const GemmOutput<T, D> output{y, addend, bias};
    const auto weight = prepare_weight({.row_major = true, .transposed = false}, context);
    if constexpr (multiplies_quantized) {
      const auto& cast = ready(x, context);
      if constexpr (emulated) {
        count(GemmPass::forward,
              matmul_emulated(cast.row_major, weight.row_major, output, context));
      } else {
        count(GemmPass::forward, matmul_forward(cast.row_major, weight.row_major, output, context));
      }
    } else {
      count(GemmPass::forward, matmul_forward(x.values, weight.values, output, context));
    }
  }

  /// Computes y = x · Wᵀ, rounded to E4M3 without a scale: see `ActivationInput::e4m3`.
  /// @param y  [tokens, Out]
  void forward(const Input& x, TensorView<E4M3, 2, D> y, const Context<D>& context)
    requires writes_e4m3
  {
    const auto weight = prepare_weight({.row_major = true, .transposed = false}, context);
    count(GemmPass::forward,
          matmul_forward(x.row_major, weight.row_major, GemmOutput<E4M3, D>{y, {}}, context));
  }

  /// Returns the statistics of the forward's result in E4M3, to which its reader adds.
  [[nodiscard]] OperandStatistics* output_statistics() const
    requires writes_e4m3
  {
    return registry_.scaling->slot(output_).statistics;
  }

  /// Computes x_gradient = dy · W.
  /// @param x_gradient  [tokens, In]
  void backward_input(const OutputGradient& dy, TensorView<T, 2, D> x_gradient,
                      const Context<D>& context) {
    const GemmOutput<T, D> output{x_gradient, {}};
    const auto weight = prepare_weight({.row_major = false, .transposed = true}, context);
    if constexpr (multiplies_quantized) {
      const auto& cast = ready(dy, context);
      if constexpr (emulated) {
        count(GemmPass::input_gradient,
              matmul_emulated(cast.row_major, weight.transposed, output, context));
      } else {
        count(GemmPass::input_gradient,
              matmul_input_gradient(cast.row_major, weight.transposed, output,
                                    detail::input_gradient_accumulation<Base>, context));
      }
    } else {
      count(GemmPass::input_gradient,
            matmul_input_gradient(dy.values, weight.values, output, context));
    }
  }

  /// Computes w_gradient = dyᵀ · x, which is added to if `accumulate` and overwritten otherwise;
  /// overwriting saves clearing a matrix.
  /// @param w_gradient  [Out, In], such as the weight's `gradient`
  void backward_weight(const OutputGradient& dy, const Input& x, TensorView<G, 2, D> w_gradient,
                       bool accumulate, const Context<D>& context)
    requires(!frozen)
  {
    GemmOutput<G, D> output{w_gradient, {}};
    if (accumulate) output.addend = w_gradient;
    if constexpr (emulated) {
      count(GemmPass::weight_gradient,
            matmul_emulated(dy.transposed, x.transposed, output, context));
    } else if constexpr (quantized) {
      count(GemmPass::weight_gradient,
            matmul_weight_gradient(dy.transposed, x.transposed, output,
                                   detail::weight_gradient_accumulation<Base>, context));
    } else {
      count(GemmPass::weight_gradient,
            matmul_weight_gradient(dy.values, x.values, output, context));
    }
  }

 protected:
  static constexpr bool multiplies_quantized = QuantizedPrecision<Base>;
  /// Whether the values of quantised operands are multiplied.
  static constexpr bool emulated = detail::is_emulated<Base>;
  using WeightOperand = Operand<WeightPrecision, OperandKind::weight, D>;
  /// Returns the operand's place in the scaling table.
  [[nodiscard]] ScalingSlot slot(OperandKind kind) const {
    if (!multiplies_quantized) return ScalingSlot();
    return registry_.scaling->slot(slots_[static_cast<std::size_t>(kind)]);
  }
  /// Returns the weight with the copies that a GEMM reads, either kept or computed now. Only the
  /// first cast of a weight records, and computes its scale.
  [[nodiscard]] WeightOperand prepare_weight(OperandCopies copies, const Context<D>& context) {
    if constexpr (multiplies_quantized) {
      if (registry_.stage != nullptr) {
        WeightMemory staged = copies_;
        staged.place(registry_.stage->elements(), registry_.stage->scales());
        if (has_fp8_values_) {
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
  /// Returns an operand as a GEMM reads it: unchanged or, in a frozen layer, cast to the scratch
  /// memory.
  template <LinearPrecision Given, OperandKind Kind>
  [[nodiscard]] decltype(auto) ready(const Operand<Given, Kind, D>& operand,
                                     const Context<D>& context) const {
    if constexpr (frozen) {
      const Index rows = operand.values.extent(0);
      const Index columns = operand.values.extent(1);
      using Memory = OperandMemory<Base, Kind, D>;
      Memory memory;
      memory.values = operand.values.data();
      std::byte* elements = registry_.scratch->data();
      memory.place(elements, elements + round_up(Memory::element_bytes(rows, columns),
                                                 Index{allocation_alignment}));
      auto cast = memory.operand(rows, columns, slot(Kind), operand.record,
                                 {.row_major = true, .transposed = false});
      cast.scale_is_found = operand.scale_is_found;
      cast.number = rounding_number(Kind);
      quantize(cast, context);
      return cast;
    } else {
      return (operand);
    }
  }
  /// Returns `Operand::number` of an operand. Without the rank, rounding errors of ranks would add
  /// up instead of averaging out.
  [[nodiscard]] std::uint64_t rounding_number(OperandKind kind) const {
    return static_cast<std::uint64_t>(registry_.data_rank) << 32 |
           slots_[static_cast<std::size_t>(kind)];
  }
  /// Counts an executed GEMM in the manifest.
  void count(GemmPass pass, const GemmRun& run) {
    registry_.manifest->entry(entries_[static_cast<std::size_t>(pass)]).count(run);
  }

 private:
  static constexpr auto weight_place = static_cast<std::size_t>(OperandKind::weight);
  /// Whether the weight is cast from BF16 with one scale.
  static constexpr bool by_one_scale = [] {
    if constexpr (quantized && std::is_same_v<T, Bf16>) {  // ranks do not cast frozen weights
      return std::is_same_v<OperandGranularity<P, OperandKind::weight>, PerTensor>;
    } else {
      return false;
    }
  }();

  static constexpr const char* forward_format() {
    if constexpr (multiplies_quantized) {
      return FormatTraits<OperandFormat<Base, OperandKind::input>>::name;
    } else {
      return FormatTraits<T>::name;
    }
  }
  static constexpr const char* backward_format() {
    if constexpr (multiplies_quantized) {
      return FormatTraits<OperandFormat<Base, OperandKind::output_gradient>>::name;
    } else {
      return FormatTraits<T>::name;
    }
  }
  template <OperandKind Kind>
  static constexpr GemmScales scales() {
    if constexpr (multiplies_quantized) {
      return gemm_scales<typename OperandMemory<Base, Kind, D>::Granularity>;
    } else {
      return GemmScales::none;
    }
  }
  [[nodiscard]] WeightOperand weight_operand(bool record, OperandCopies copies) const {
    return copies_.operand(Out, In, slot(OperandKind::weight), record, copies);
  }
  /// Returns the scratch bytes that the cast of an operand needs.
  template <OperandKind Kind>
  static constexpr Index cast_bytes(Index tokens, Index columns) {
    using Memory = OperandMemory<Base, Kind, D>;
    return round_up(Memory::element_bytes(tokens, columns), Index{allocation_alignment}) +
           Memory::scale_bytes(tokens, columns);
  }
  /// Computes the transposed copy of values that ranks cast.
  static void transpose(const WeightOperand& weight, const Context<D>& context) {
    if constexpr (by_one_scale) transpose_fp8_values(weight.row_major, weight.transposed, context);
  }

  WeightMemory copies_;
  bool has_fp8_values_ = false;  ///< ranks cast the weight
  bool records_next_ = false;    ///< whether the next cast records, if each GEMM casts
  bool scale_is_found_ = false;  ///< the scale is that of the current weight
  LayerRegistry<D> registry_;
  std::array<std::size_t, 3> slots_{};    ///< in the scaling table, by `OperandKind`
  std::size_t output_ = 0;                ///< there, if the forward writes E4M3
  std::array<std::size_t, 3> entries_{};  ///< in the manifest, by `GemmPass`
};

}  // namespace octavo

#include <octavo/layers/inference_linear.hpp>
