/// @file
/// The linear layers of a mixture of experts, with one weight for all of them.
#pragma once

#include <octavo/gemm/expert_gemms.hpp>
#include <octavo/kernels/experts.hpp>
#include <octavo/kernels/router.hpp>
#include <octavo/layers/linear.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// Returns the bytes of workspace that a GEMM of a mixture of experts and the kernels before and
/// after it need.
/// @param tokens  of a batch
template <Device D>
std::size_t experts_workspace(const GemmEntry& gemm, Index tokens, const DeviceLimits<D>& limits) {
  const Index pairs = tokens * gemm.choices;
  const Index rows = expert_row_count(pairs, gemm.experts);
  const Index weight_rows = gemm.experts * gemm.out;
  return std::max({expert_gemm_workspace(rows, gemm.experts, gemm.out, gemm.in, limits),
                   expert_order_workspace(pairs), router_workspace(gemm.experts, gemm.in),
                   row_amaxes_workspace(std::max(rows, weight_rows), std::max(gemm.in, gemm.out))});
}

namespace detail {

/// Whether experts in precision `P` would need GEMMs of Nvfp4, or of the operands' values, which
/// `Cuda` does not have.
template <class P>
inline constexpr bool needs_values = is_emulated<P> || is_four_bit<P>;

/// Why such experts do not run on the `Cuda` device, as their static_assert says.
inline constexpr const char* experts_without_gemms =
    "experts: the Cuda device has no GEMMs of experts for Nvfp4 or Emulated; choose another "
    "precision for LinearRole::gate_up and LinearRole::down, or run it on Cpu";

/// The linear layer that owns the experts' weight and operands. Its weight contains the weights of
/// all experts, one after another.
template <class Precision, int In, int Out, int Experts, class G, Device D>
using StackedLinear = Linear<PrecisionForLayer<Precision, In, Out, D>, In, Experts * Out, G, D>;

}  // namespace detail

/// `Experts` linear layers y = x · Wᵀ with `In` input and `Out` output features, each for its rows
/// of `ExpertRows`. The weight is one parameter and one operand: a scale per tensor is shared by
/// all experts, and the weight is cast in one pass.
/// @tparam Precision  as in `Linear`
/// @tparam G          format of the weight's gradient
template <class Precision, int In, int Out, int Experts, class G, Device D>
class ExpertsLinear : private detail::StackedLinear<Precision, In, Out, Experts, G, D> {
  using Base = detail::StackedLinear<Precision, In, Out, Experts, G, D>;

 public:
  using P = typename Base::P;
  using T = typename Base::T;
  using Input = typename Base::Input;
  using InputMemory = typename Base::InputMemory;
  using OutputGradient = typename Base::OutputGradient;
  using OutputGradientMemory = typename Base::OutputGradientMemory;
  static constexpr bool quantized = Base::quantized;
  /// Whether the weight is frozen.
  static constexpr bool frozen = Base::frozen;
  /// Whether it is a layer of an InferenceModel.
  static constexpr bool is_inference = is_inference_precision<P>;

  static_assert(sizeof(detail::LayerCheck<P, In, Out, D>) > 0);  // reports the rule that is broken
  static_assert(std::is_same_v<D, Cpu> || is_inference || !detail::needs_values<BasePrecision<P>>,
                "experts: the Cuda device has no GEMMs of experts for Nvfp4 or Emulated; choose "
                "another precision for LinearRole::gate_up and LinearRole::down, or run it on Cpu");

  /// Declares its weight, and registers the layer in the manifest and the scaling table.
  void declare(const std::string& name, LayerRegistry<D> registry, Initial initial, LinearUse use) {
    weight_.declare(name + ".weight", Index{Experts} * Out, In, initial);
    weight_.is_overwritten = true;
    weight_.is_cast_only = Base::keeps_fp8;
    use.experts = Experts;
    weight_.matrices = use.matrices(Out);
    Base::declare(name, registry, use);
    weight_.operand = Base::weight_by_one_scale();
  }

  void allocate_weight_copies(Arena<D>& arena) { Base::allocate_weight_copies(arena, weight_); }
  using Base::input;
  using Base::quantize_weight;

  /// Returns the operand that receives the gradient of the layers' output.
  [[nodiscard]] OutputGradient output_gradient(const OutputGradientMemory& memory,
                                               Index rows) const {
    OutputGradient result =
        memory.operand(rows, Out, Base::slot(OperandKind::output_gradient), true, {true, true});
    if constexpr (frozen) result.record = true;
    return result;
  }

  /// Computes y = x · Wᵀ.
  /// @param y  [rows, Out]
  void forward(const Input& x, const ExpertRows<D>& rows, TensorView<T, 2, D> y,
               const Context<D>& context) {
    if constexpr (is_inference) {
      (void)experts_forward(x.values, Base::experts_weight(rows, context), rows, y, context);
    } else {
      const auto weight = Base::prepare_weight({.row_major = true, .transposed = false}, context);
      if constexpr (Base::multiplies_quantized) {
        const auto& cast = Base::ready(x, context);
        Base::count(GemmPass::forward,
                    experts_forward(cast.row_major, weight.row_major, rows, y, context));
      } else {
        Base::count(GemmPass::forward, experts_forward(x.values, weight.values, rows, y, context));
      }
    }
  }

  /// Computes the gradient of the weight, which is added to if `accumulate` and overwritten
  /// otherwise.
  void backward_weight(const OutputGradient& dy, const Input& x, const ExpertRows<D>& rows,
                       bool accumulate, const Context<D>& context)
    requires(!frozen)
  {
    const auto gradient = weight_.gradient;
    if constexpr (quantized) {
      Base::count(GemmPass::weight_gradient,
                  experts_weight_gradient(dy.transposed, x.transposed, rows, gradient, accumulate,
                                          context));
    } else {
      Base::count(
          GemmPass::weight_gradient,
          experts_weight_gradient(dy.values, x.values, rows, gradient, accumulate, context));
    }
  }

  /// Computes x_gradient = dy · W.
  /// @param x_gradient  [rows, In]
  void backward_input(const OutputGradient& dy, const ExpertRows<D>& rows,
                      TensorView<T, 2, D> x_gradient, const Context<D>& context) {
    const auto weight = Base::prepare_weight({.row_major = false, .transposed = true}, context);
    if constexpr (Base::multiplies_quantized) {
      const auto& cast = Base::ready(dy, context);
      Base::count(
          GemmPass::input_gradient,
          experts_input_gradient(cast.row_major, weight.transposed, rows, x_gradient, context));
    } else {
      Base::count(GemmPass::input_gradient,
                  experts_input_gradient(dy.values, weight.values, rows, x_gradient, context));
    }
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    visitor(weight_);
  }

 private:
  Parameter<T, G, D> weight_;
};

}  // namespace octavo
