/// @file
/// Precision policies for a linear layer: `Fp32`, `Bf16`, `Fp8Recipe`, `Mxfp8`, `Nvfp4`,
/// `AllowFallback`.
#pragma once

#include <octavo/core/capability.hpp>
#include <octavo/core/device.hpp>
#include <octavo/precision/scaling.hpp>

#include <concepts>
#include <numeric>
#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// E4M3 in the forward, E5M2 for gradients with respect to outputs.
struct Hybrid {
  using Forward = E4M3;
  using Backward = E5M2;
};

/// E4M3 in the forward and the backward.
struct E4M3Only {
  using Forward = E4M3;
  using Backward = E4M3;
};

/// E5M2 in the forward and the backward. Not usable for training, and no hardware multiplies E5M2
/// by E5M2.
struct E5M2Only {
  using Forward = E5M2;
  using Backward = E5M2;
};

/// How FP8 tensor cores accumulate a GEMM: `full` adds the sums of 128 products in FP32, `fast`
/// keeps about 14 bits of the whole sum. The `Cpu` device accumulates both in FP32.
enum class GemmAccumulation : bool { full, fast };

namespace detail {
template <class S>
struct DefaultFormats {
  using type = Hybrid;
};
template <Scaling S>
struct DefaultFormats<S> {
  using type = std::conditional_t<is_per_tensor<S> || is_per_row<S>, Hybrid, E4M3Only>;
};
template <class Formats>
concept RecipeFormats = std::same_as<Formats, Hybrid> || std::same_as<Formats, E4M3Only>;
/// Whether GEMMs with the scales of `S` support fast accumulation.
template <class S>
inline constexpr bool may_accumulate_fast = false;
template <HasScalingMembers S>
inline constexpr bool may_accumulate_fast<S> = is_per_tensor<S> || is_per_row<S>;
}  // namespace detail

/// FP8 GEMMs in a linear layer: forward, input gradient and weight gradient. Weights and
/// activations are stored as BF16 between GEMMs.
/// @tparam S        `Delayed`, `Tensorwise`, `Rowwise`, `Blockwise`, one with other parameters, or
///                  a custom `Scaling`
/// @tparam Formats  `Hybrid` or `E4M3Only`; block scaling defaults to `E4M3Only`
/// @tparam InputGradient   accumulation of the input gradient. With scales of tensors and rows, the
///                  forward always uses fast accumulation. A head should use full accumulation: its
///                  input gradient has tens of thousands of tiny terms, which a fast sum loses
/// @tparam WeightGradient  accumulation of the weight gradient
template <class S, class Formats = typename detail::DefaultFormats<S>::type,
          GemmAccumulation InputGradient = GemmAccumulation::full,
          GemmAccumulation WeightGradient = GemmAccumulation::full>
struct Fp8Recipe : detail::ScalingCheck<S> {
  static_assert(detail::HasScalingMembers<S>,
                "Fp8Recipe: the first argument must be a scaling: Delayed, Tensorwise, Rowwise, "
                "Blockwise, one of them with parameters, such as DelayedScaling<16>, or a type "
                "with the members required by the concept Scaling");
  static_assert(
      !std::is_same_v<Formats, E5M2Only>,
      "Fp8Recipe: pure E5M2 has too little precision in the forward, and no GPU has a GEMM for it; "
      "choose Hybrid (E4M3 in the forward, E5M2 in the backward) or E4M3Only");
  static_assert(detail::RecipeFormats<Formats> || std::is_same_v<Formats, E5M2Only>,
                "Fp8Recipe: the second argument must be Hybrid (E4M3 in the forward, E5M2 in the "
                "backward) or E4M3Only");
  static_assert(
      (InputGradient == GemmAccumulation::full && WeightGradient == GemmAccumulation::full) ||
          detail::may_accumulate_fast<S> || !detail::HasScalingMembers<S>,
      "Fp8Recipe: GemmAccumulation::fast needs one scale per tensor or row; choose Delayed, "
      "Tensorwise or Rowwise, or GemmAccumulation::full");
};

/// MXFP8: E4M3 with an E8M0 scale for each 32 elements. Native on sm_100 and above.
using Mxfp8 = Fp8Recipe<MxScaling>;

/// NVFP4: E2M1 with an E4M3 scale for each 16 elements and an FP32 scale for the tensor, see
/// `NvScaling`. Native on sm_100 and above.
struct Nvfp4 {};

/// See octavo/precision/emulated.hpp.
template <class P>
struct Emulated;

/// Runs a layer in `P` if its shape and device support it, and in `P`'s storage format otherwise.
/// The manifest reports the choice; without this wrapper, a layer that cannot run in `P` does not
/// compile.
template <class P>
struct AllowFallback {};

namespace detail {
template <class P>
inline constexpr bool is_allow_fallback = false;
template <class P>
inline constexpr bool is_allow_fallback<AllowFallback<P>> = true;
template <class P>
inline constexpr bool is_emulated = false;
template <class P>
inline constexpr bool is_emulated<Emulated<P>> = true;
}  // namespace detail

/// Traits of a precision policy. Specialise it for a custom policy, with all members that
/// `LinearPrecision` names; `docs/recipes.md` has an example.
template <class P>
struct PrecisionTraits;

namespace detail {

template <class P>
concept HasTraits = requires { sizeof(PrecisionTraits<P>); };
template <class P>
concept HasStorage = requires {
  typename PrecisionTraits<P>::Storage;
  requires std::same_as<typename PrecisionTraits<P>::Storage, Bf16> ||
               std::same_as<typename PrecisionTraits<P>::Storage, Fp32>;
};
template <class P>
concept HasIsQuantized =
    requires { typename std::bool_constant<PrecisionTraits<P>::is_quantized>; };
template <class P>
concept HasShapeMultiple = requires {
  typename std::integral_constant<int, PrecisionTraits<P>::shape_multiple>;
  requires(PrecisionTraits<P>::shape_multiple > 0);
};
template <class P>
concept HasName = requires {
  { PrecisionTraits<P>::name() } -> std::convertible_to<std::string>;
};
template <class P>
concept HasScalingType = requires {
  typename PrecisionTraits<P>::ScalingType;
  requires Scaling<typename PrecisionTraits<P>::ScalingType>;
};
/// Whether the policy's values are E2M1, as two levels of scales require, rather than FP8.
template <class P>
inline constexpr bool is_four_bit = false;
template <HasScalingType P>
inline constexpr bool is_four_bit<P> = has_two_levels<typename PrecisionTraits<P>::ScalingType>;
template <class P, class Format>
inline constexpr bool is_forward_format =
    std::is_same_v<Format, std::conditional_t<is_four_bit<P>, E2M1, E4M3>>;
template <class P, class Format>
inline constexpr bool is_backward_format =
    is_forward_format<P, Format> || (!is_four_bit<P> && std::is_same_v<Format, E5M2>);
template <class P>
concept HasForwardFormat = requires {
  typename PrecisionTraits<P>::ForwardFormat;
  requires is_forward_format<P, typename PrecisionTraits<P>::ForwardFormat>;
};
template <class P>
concept HasBackwardFormat = requires {
  typename PrecisionTraits<P>::BackwardFormat;
  requires is_backward_format<P, typename PrecisionTraits<P>::BackwardFormat>;
};

/// Whether `P` declares that it quantises; its other members may be missing.
template <class P>
inline constexpr bool declares_quantized = false;
template <HasIsQuantized P>
inline constexpr bool declares_quantized<P> = PrecisionTraits<P>::is_quantized;

/// Additional members of a policy that quantises.
template <class P>
concept HasQuantization = HasScalingType<P> && HasForwardFormat<P> && HasBackwardFormat<P>;

}  // namespace detail

/// A precision in which a linear layer runs: `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, `Nvfp4`, or a
/// type whose `PrecisionTraits` have
/// - `Storage`: the format of weights and activations between GEMMs, `Bf16` or `Fp32`;
/// - `is_quantized`: whether GEMM operands are quantised first;
/// - `shape_multiple`: a layer's input and output features must be multiples of it; 1 for no
///   restriction;
/// - `name()`: the name that manifests print, such as "fp8-delayed";
///
/// and, if `is_quantized` is true,
/// - `ScalingType`: how scales are computed, a `Scaling`;
/// - `ForwardFormat`: of inputs and weights, `E4M3`;
/// - `BackwardFormat`: of the gradients of outputs, `E4M3` or `E5M2`; with two levels of scales, as
///   in `NvScaling`, both are `E2M1`;
/// - `input_gradient`: optional, the `GemmAccumulation` of the input gradient;
/// - `weight_gradient`: optional, the `GemmAccumulation` of the weight gradient.
template <class P>
concept LinearPrecision =
    detail::HasStorage<P> && detail::HasIsQuantized<P> && detail::HasShapeMultiple<P> &&
    detail::HasName<P> && (!detail::declares_quantized<P> || detail::HasQuantization<P>);

/// A precision whose GEMM operands are quantised.
template <class P>
concept QuantizedPrecision = LinearPrecision<P> && detail::declares_quantized<P>;

namespace detail {
template <class P>
concept PlainPrecision = LinearPrecision<P> && !is_allow_fallback<P>;
}  // namespace detail

template <>
struct PrecisionTraits<Fp32> {
  using Storage = float;
  static constexpr bool is_quantized = false;
  static constexpr int shape_multiple = 1;
  static std::string name() { return "fp32"; }
};

template <>
struct PrecisionTraits<Bf16> {
  using Storage = Bf16;
  static constexpr bool is_quantized = false;
  static constexpr int shape_multiple = 1;
  static std::string name() { return "bf16"; }
};

namespace detail {

/// Returns how a recipe differs from the defaults of its scaling's name, such as " (history 16,
/// max, margin 1)"; empty for the defaults.
template <Scaling S, RecipeFormats Formats, GemmAccumulation InputGradient,
          GemmAccumulation WeightGradient>
std::string recipe_details() {
  std::string details;
  const auto add = [&](const std::string& one_more) {
    details += (details.empty() ? " (" : ", ") + one_more;
  };
  if constexpr (is_delayed<S> && !std::is_same_v<S, Delayed>) {
    add(message("history ", S::history_length));
    add(S::reduction == AmaxReduction::max ? "max" : "most recent");
    add(message("margin ", S::margin));
  }
  if constexpr (HasRounding<S>) {
    constexpr bool power_of_two = S::rounding == ScaleRounding::power_of_two;
    constexpr bool is_exact_by_default = is_per_tensor<S> || is_per_row<S>;
    if (power_of_two == is_exact_by_default) add(power_of_two ? "powers of two" : "exact scales");
  }
  if (!std::is_same_v<Formats, typename DefaultFormats<S>::type>) {
    add(std::is_same_v<Formats, Hybrid> ? "e4m3 and e5m2" : "e4m3 only");
  }
  if (InputGradient == GemmAccumulation::fast) add("fast gradients");
  if (WeightGradient == GemmAccumulation::fast) add("fast weight gradients");
  return details.empty() ? details : details + ')';
}

}  // namespace detail

template <Scaling S, detail::RecipeFormats Formats, GemmAccumulation InputGradient,
          GemmAccumulation WeightGradient>
struct PrecisionTraits<Fp8Recipe<S, Formats, InputGradient, WeightGradient>> {
  using Storage = Bf16;
  static constexpr bool is_quantized = true;
  using ScalingType = S;
  using ForwardFormat = typename Formats::Forward;
  using BackwardFormat = typename Formats::Backward;
  static constexpr GemmAccumulation input_gradient = InputGradient;
  static constexpr GemmAccumulation weight_gradient = WeightGradient;
  static constexpr int shape_multiple = S::shape_multiple;
  static std::string name() {
    return (std::is_same_v<S, MxScaling> ? "mxfp8" : std::string("fp8-") + S::name) +
           detail::recipe_details<S, Formats, InputGradient, WeightGradient>();
  }
};

template <>
struct PrecisionTraits<Nvfp4> {
  using Storage = Bf16;
  static constexpr bool is_quantized = true;
  using ScalingType = NvScaling;
  using ForwardFormat = E2M1;
  using BackwardFormat = E2M1;
  static constexpr int shape_multiple = ScalingType::shape_multiple;
  static std::string name() { return "nvfp4"; }
};

/// Traits of `P`; a layer runs in `P` or in its storage format.
template <detail::PlainPrecision P>
struct PrecisionTraits<AllowFallback<P>> : PrecisionTraits<P> {
  static std::string name() {
    using Storage = typename PrecisionTraits<P>::Storage;
    return PrecisionTraits<P>::name() + " or " + PrecisionTraits<Storage>::name();
  }
};

namespace detail {
/// How the input gradient of a layer in precision `P` is accumulated.
template <class P>
inline constexpr GemmAccumulation input_gradient_accumulation = GemmAccumulation::full;
template <class P>
  requires requires { PrecisionTraits<P>::input_gradient; }
inline constexpr GemmAccumulation input_gradient_accumulation<P> =
    PrecisionTraits<P>::input_gradient;

/// How the weight gradient of a layer in precision `P` is accumulated.
template <class P>
inline constexpr GemmAccumulation weight_gradient_accumulation = GemmAccumulation::full;
template <class P>
  requires requires { PrecisionTraits<P>::weight_gradient; }
inline constexpr GemmAccumulation weight_gradient_accumulation<P> =
    PrecisionTraits<P>::weight_gradient;

/// The number of features must be a multiple of this, so that it consists of whole blocks of
/// scales.
template <class Granularity>
inline constexpr int block_multiple = 1;
template <int Rows, int Columns, class Scale>
inline constexpr int block_multiple<PerBlock<Rows, Columns, Scale>> =
    PerBlock<Rows, Columns, Scale>::block_columns;

/// The GPU features that all kinds of GEMMs need together; no GPU has all of them.
inline constexpr GpuFeatures every_feature{
    .fp8_gemms = true, .row_scales = true, .block_scales = true, .mx_gemms = true};
}  // namespace detail

/// Returns the number of which a linear layer's input and output features must be multiples in
/// precision `P`.
template <LinearPrecision P>
constexpr int feature_multiple() {
  constexpr int own = PrecisionTraits<P>::shape_multiple;
  if constexpr (QuantizedPrecision<P>) {
    using S = typename PrecisionTraits<P>::ScalingType;
    constexpr int blocks = std::lcm(detail::block_multiple<typename S::InputGranularity>,
                                    detail::block_multiple<typename S::WeightGranularity>);
    return std::lcm(std::lcm(own, S::shape_multiple), blocks);
  } else {
    return own;
  }
}

/// Returns whether a GPU runs the GEMMs of a linear layer in precision `P`.
template <LinearPrecision P>
constexpr bool gpu_runs(const GpuFeatures& gpu) {
  if constexpr (QuantizedPrecision<P> && !detail::is_emulated<P>) {
    constexpr GpuFeature feature =
        PrecisionTraits<P>::ScalingType::InputGranularity::required_feature;
    return feature != nullptr && gpu.*feature;
  } else {
    return true;
  }
}

/// Whether GEMMs of this precision run on this device: on `Cpu`, which emulates every format, or on
/// some GPU.
template <class P, Device D>
inline constexpr bool runs_on = true;
template <LinearPrecision P>
inline constexpr bool runs_on<P, Cuda> = gpu_runs<P>(detail::every_feature);
template <class P>
inline constexpr bool runs_on<AllowFallback<P>, Cuda> = true;

}  // namespace octavo
