/// @file
/// An inference-only linear layer, y = x · Wᵀ, that reads the weight as it is stored.
#pragma once

#include <octavo/gemm/few_rows.hpp>
#include <octavo/kernels/dequantize.hpp>
#include <octavo/layers/before_norm.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/precision/inference.hpp>

namespace octavo OCTAVO_ABI {

/// A linear layer without gradients. It keeps one copy of its weight: that of the parameter, or its
/// own FP8 copy; the parameter then has no memory. Movable, like other layers.
template <class Wanted, int In, int Out, class G, Device D>
class Linear<Inference<Wanted>, In, Out, G, D> {
 public:
  using P = Inference<Wanted>;
  using T = typename PrecisionTraits<P>::Storage;
  using Weight = Parameter<T, G, D>;
  using Input = Operand<P, OperandKind::input, D>;
  using OutputGradient = Operand<P, OperandKind::output_gradient, D>;
  using InputMemory = OperandMemory<P, OperandKind::input, D>;
  using OutputGradientMemory = OperandMemory<P, OperandKind::output_gradient, D>;
  /// Whether the input is quantised.
  static constexpr bool quantized = false;
  /// Whether the weight is kept in FP8.
  static constexpr bool keeps_fp8 = QuantizedPrecision<PrecisionForLayer<Wanted, In, Out, D>>;
  static constexpr bool frozen = false;  ///< no weight is trained
  static constexpr bool writes_e4m3 = false;

  static_assert(sizeof(detail::LayerCheck<PrecisionForLayer<Wanted, In, Out, D>, In, Out, D>) > 0);

  Linear() = default;
  Linear(Linear&&) noexcept = default;
  Linear& operator=(Linear&&) noexcept = default;

  void declare(const std::string&, LayerRegistry<D> registry, LinearUse = {}) {
    stage_ = registry.stage;
    scratch_ = registry.scratch;
  }

  [[nodiscard]] static constexpr Index weight_by_one_scale() { return -1; }

  /// Allocates the FP8 weight, and reserves staging memory for the values that it is cast from.
  void allocate_weight_copies(Arena<D>& arena, const Weight& weight) {
    if constexpr (keeps_fp8) {
      kept_.allocate_row_major(arena, MemoryKind::quantized_weights, Out, In);
      scaling_ = arena.template allocate<OperandScaling>(MemoryKind::scaling, 1);
      is_staged_ = weight.is_cast_only;
      offset_ = weight.offset;
      if (is_staged_) {
        const Index end = offset_ + weight.weight.size();
        stage_->reserve(end * static_cast<Index>(sizeof(T)), 0);
        if ((widens || weight.matrices.choices != 0) && scratch_ != nullptr) {
          scratch_->reserve(weight.weight.size() * static_cast<Index>(sizeof(T)));
        }
        return;
      }
    }
    values_ = weight.weight.data();
  }

  /// Casts the FP8 weight, once, when all of its values are staged.
  template <class M>
  void quantize_weight(const Context<D>& context) {
    if constexpr (keeps_fp8) {
      auto weight = kept();
      fill_zero(scaling_, sizeof(OperandScaling), context);
      const T* from =
          is_staged_ ? reinterpret_cast<const T*>(stage_->elements()) + offset_ : values_;
      weight.values = {const_cast<T*>(from), {Out, In}};
      quantize(weight, context);
    } else {
      (void)context;
    }
  }

  /// Returns the operand that receives the layer's input.
  template <class M>
  [[nodiscard]] Input input(const InputMemory& memory, Index tokens, OperandCopies copies) const {
    return memory.operand(tokens, In, {}, false, copies);
  }

  /// Computes y = x · Wᵀ + addend + bias. For few tokens, reading the weight takes most of the
  /// time. For many tokens, on `Cuda`, an FP8 weight is first widened to T, with its scale, and
  /// rounded.
  /// @param x       an `Input`, or a `BeforeNorm` of one
  /// @param addend  [tokens, Out]; empty: nothing is added
  /// @param bias    [Out]; empty: no bias
  /// @param y       [tokens, Out]
  template <class X>
  void forward(const X& x, TensorView<const T, 2, D> addend, TensorView<const T, 1, D> bias,
               TensorView<T, 2, D> y, const Context<D>& context) {
    const GemmOutput<T, D> output{y, addend, bias};
    if (y.extent(0) <= max_few_rows) {
      multiply_few(x, output, context, {.reads = WeightReads::ahead});
    } else {
      multiply_many(values_of(x, context), output, context);
    }
  }
  /// Does the same without a bias.
  template <class X>
  void forward(const X& x, TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
               const Context<D>& context) {
    forward(x, addend, {}, y, context);
  }

  /// Computes qkv = x · Wᵀ + bias, and appends its keys and values to a cache.
  /// @param x     an `Input`, or a `BeforeNorm` of one
  /// @param bias  [Out]; empty: no bias
  /// @param qkv   [tokens, Out]: the queries are rotated; the keys and values are undefined
  template <class X>
  void forward_cached(const X& x, TensorView<const T, 1, D> bias, TensorView<T, 2, D> qkv,
                      const CacheRows<T, D>& rows, const Context<D>& context) {
    check_shape("forward_cached", "positions", rows.positions, {qkv.extent(0)});
    if (qkv.extent(0) <= max_few_rows) {
      multiply_few(x, {qkv, {}, bias}, context, {.reads = WeightReads::ahead, .cached = rows});
    } else {
      forward(x, {}, bias, qkv, context);
      append_to_cache(qkv, rows, context);
    }
  }

  /// Computes activated = silu(gate) · up of x · Wᵀ.
  /// @tparam Activation  computes it for many rows; has `is_silu_gate`
  /// @param x          an `Input`, or a `BeforeNorm` of one
  /// @param wide       [tokens, Out], overwritten if there are many rows
  /// @param activated  [tokens, Out / 2], an operand
  template <class Activation, class X, class Activated>
  void forward_gated(const X& x, TensorView<T, 2, D> wide, const Activated& activated,
                     const Context<D>& context) {
    if (wide.extent(0) <= max_few_rows) {
      multiply_few(x, {activated.values, {}}, context,
                   {.reads = WeightReads::ahead, .is_gated = true});
    } else {
      forward(x, {}, wide, context);
      Activation::forward(TensorView<const T, 2, D>(wide), activated, context);
    }
  }

 protected:
  /// Returns the weights of experts as the GEMMs of experts read them: FP8 weights of experts with
  /// rows are widened to T in the scratch memory, scaled and rounded.
  [[nodiscard]] TensorView<const T, 2, D> experts_weight(const ExpertRows<D>& rows,
                                                         const Context<D>& context) const {
    if constexpr (keeps_fp8) {
      const TensorView<T, 2, D> wide{reinterpret_cast<T*>(scratch_->data()), {Out, In}};
      dequantize_experts(weight(), rows, wide, context);
      return wide;
    } else {
      return weight();
    }
  }

 private:
  /// On `Cpu`, GEMMs of few rows widen weights on the fly, as fast as GEMMs of many rows.
  static constexpr bool widens = keeps_fp8 && std::is_same_v<D, Cuda>;
  /// The maximum number of rows for which widening the weight is not worthwhile.
  static constexpr Index max_narrow_rows = 2 * max_few_rows;
  using Cast = typename detail::KeptWeight<PrecisionForLayer<Wanted, In, Out, D>>::Cast;
  struct Nothing {};
  using KeptMemory = std::conditional_t<
      keeps_fp8, OperandMemory<std::conditional_t<keeps_fp8, Cast, Bf16>, OperandKind::weight, D>,
      Nothing>;

  /// Returns the normalised rows of an input.
  template <class X>
  static TensorView<const T, 2, D> values_of(const X& x, const Context<D>& context) {
    if constexpr (std::is_same_v<X, Input>) {
      return x.values;
    } else {
      return x.written(context).values;
    }
  }

  /// Multiplies up to `max_few_rows` rows. The GEMM normalises a single row that is not normalised
  /// yet.
  template <class X>
  void multiply_few(const X& x, const GemmOutput<T, D>& output, const Context<D>& context,
                    FewRowsOptions<T, D> options) const {
    if constexpr (!std::is_same_v<X, Input>) {
      if (x.x.extent(0) == 1 && In <= max_normalised_columns) {
        options.norm = x.norm.row_norm();
        (void)few_rows_forward(x.x, weight(), output, context, options);
        return;
      }
    }
    (void)few_rows_forward(values_of(x, context), weight(), output, context, options);
  }

  void multiply_many(TensorView<const T, 2, D> rows, const GemmOutput<T, D>& output,
                     const Context<D>& context) const {
    if constexpr (keeps_fp8) {
      if constexpr (widens) {
        if (scratch_ != nullptr && is_staged_ && rows.extent(0) > max_narrow_rows) {
          const TensorView<T, 2, D> wide{reinterpret_cast<T*>(scratch_->data()), {Out, In}};
          dequantize(weight(), wide, context);
          (void)matmul_forward(rows, TensorView<const T, 2, D>(wide), output, context);
          return;
        }
      }
      const auto& [result, addend, bias] = output;
      for (Index begin = 0; begin < rows.extent(0); begin += max_few_rows) {
        const Index count = std::min(max_few_rows, rows.extent(0) - begin);
        const auto added = addend.empty() ? addend : addend.rows(begin, count);
        (void)few_rows_forward(rows.rows(begin, count), weight(),
                               GemmOutput<T, D>{result.rows(begin, count), added, bias}, context,
                               {.reads = WeightReads::ahead});
      }
    } else {
      (void)matmul_forward(rows, weight(), output, context);
    }
  }

  /// Returns the weight as it is stored.
  [[nodiscard]] auto weight() const {
    if constexpr (keeps_fp8) {
      return kept().row_major;
    } else {
      return TensorView<const T, 2, D>{values_, {Out, In}};
    }
  }
  [[nodiscard]] auto kept() const {
    return kept_.operand(Out, In, ScalingSlot(scaling_), false,
                         {.row_major = true, .transposed = false});
  }

  const T* values_ = nullptr;
  WeightStage<D>* stage_ = nullptr;
  LayerScratch<D>* scratch_ = nullptr;  ///< for a widened weight; null: always few rows
  KeptMemory kept_;
  OperandScaling* scaling_ = nullptr;  ///< of the FP8 weight
  bool is_staged_ = false;             ///< the weight is cast from staged values
  Index offset_ = 0;                   ///< of the staged values
};

}  // namespace octavo
