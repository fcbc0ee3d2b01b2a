/// @file
/// Scaling strategies and granularities, as types.
#pragma once

#include <octavo/core/capability.hpp>
#include <octavo/formats/formats.hpp>

#include <concepts>
#include <limits>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// Selects the amax of the history from which a delayed scale is computed.
enum class AmaxReduction { max, most_recent };

/// Whether a scale is used as computed or rounded down to a power of two.
enum class ScaleRounding { exact, power_of_two };

/// Divides the largest value that a delayed scale targets by 2^value.
struct Margin {
  int value = 0;
};

/// A feature of some GPUs, such as `&GpuFeatures::row_scales`; null: a feature that no GPU has.
using GpuFeature = bool GpuFeatures::*;

/// One scale for the whole tensor.
struct PerTensor {
  /// The feature of GPUs on which cuBLASLt multiplies FP8 with such scales.
  static constexpr GpuFeature required_feature = &GpuFeatures::fp8_gemms;
  using Scale = float;
  static constexpr int block_rows = 0;
  static constexpr int block_columns = 0;
};

/// One scale for each row that a GEMM reduces: rows run along the reduced dimension. A tensor and
/// its transposed copy therefore have different rows and scales. Stored as cuBLASLt's outer
/// vectors, s[row].
struct PerRow {
  /// The feature of GPUs on which cuBLASLt multiplies FP8 with such scales.
  static constexpr GpuFeature required_feature = &GpuFeatures::row_scales;
  using Scale = float;
  static constexpr int block_rows = 1;
  static constexpr int block_columns = std::numeric_limits<int>::max();  ///< all columns
};

/// One scale for each block of `Rows` × `Columns`, with columns along the reduced dimension. FP32
/// scales of 1×n blocks are stored as cuBLASLt's VEC128, s[k_block · rows + row]; of n×n blocks as
/// BLK128, s[row_block · round_up(k_blocks, 4) + k_block]; E8M0 and E4M3 scales of 1×n blocks in
/// row-major order. E4M3 scales are multiples of an FP32 scale of the whole tensor, which precedes
/// them: see has_tensor_scale.
/// @tparam Rows       1, or `Columns`
/// @tparam Columns    16, 32, 64 or 128
/// @tparam ScaleType  `float`, `E8M0` for blocks of 1 row, or `E4M3` for 16 columns
template <int Rows, int Columns, class ScaleType = float>
struct PerBlock {
 private:
  static constexpr bool has_width =
      Columns == 16 || Columns == 32 || Columns == 64 || Columns == 128;

 public:
  static_assert(has_width, "PerBlock: a block must have 16, 32, 64 or 128 columns");
  static_assert(Rows == 1 || Rows == Columns, "PerBlock: a block must have 1 row or be square");
  static_assert(std::is_same_v<ScaleType, float> ||
                    (std::is_same_v<ScaleType, E8M0> && Rows == 1) ||
                    (std::is_same_v<ScaleType, E4M3> && Columns == 16),
                "PerBlock: scales must be float, or E8M0 for blocks of 1 row, or E4M3 for blocks "
                "of 16 columns");
  /// The feature of GPUs on which cuBLASLt multiplies such operands: some GPUs support 1×32 E8M0
  /// scales and E4M3 scales, others FP32 scales of 128 columns, and none other blocks.
  static constexpr GpuFeature required_feature =
      std::is_same_v<ScaleType, E8M0> && Columns == 32     ? &GpuFeatures::mx_gemms
      : std::is_same_v<ScaleType, E4M3> && Columns == 16   ? &GpuFeatures::mx_gemms
      : std::is_same_v<ScaleType, float> && Columns == 128 ? &GpuFeatures::block_scales
                                                           : nullptr;
  using Scale = ScaleType;
  // Replaces a rejected value with a valid one, so that no further errors follow.
  static constexpr int block_columns = has_width ? Columns : 16;  // NOLINT: Columns may be 16
  static constexpr int block_rows = Rows == 1 ? 1 : block_columns;
};

/// One scale per tensor, computed from the amax of earlier steps, so that it is known before the
/// tensor is. Source: numerics of Transformer Engine's delayed scaling; Micikevicius et al. 2022.
template <int HistoryLength = 1024, AmaxReduction Reduction = AmaxReduction::max,
          Margin HeadRoom = Margin{0}, ScaleRounding Rounding = ScaleRounding::exact>
struct DelayedScaling {
  static_assert(HistoryLength > 0,
                "DelayedScaling: the amax history must have at least 1 entry; use a length such as "
                "DelayedScaling<16>, or choose Tensorwise, which keeps no history");
  static_assert(HeadRoom.value >= 0 && HeadRoom.value <= 16,
                "DelayedScaling: the margin must be between 0 and 16; Margin{0} is the default");
  static constexpr const char* name = "delayed";
  using InputGranularity = PerTensor;
  using WeightGranularity = PerTensor;
  static constexpr int shape_multiple = 16;
  static constexpr int history_length = HistoryLength;
  static constexpr AmaxReduction reduction = Reduction;
  static constexpr int margin = HeadRoom.value;
  static constexpr ScaleRounding rounding = Rounding;
};

/// One scale per tensor, computed from the tensor's own amax (current scaling).
template <ScaleRounding Rounding = ScaleRounding::exact>
struct TensorwiseScaling {
  static constexpr const char* name = "tensorwise";
  using InputGranularity = PerTensor;
  using WeightGranularity = PerTensor;
  static constexpr int shape_multiple = 16;
  static constexpr ScaleRounding rounding = Rounding;
};

/// One scale for each row of each operand of a GEMM, computed from the row's own amax. By default
/// unrounded, so that the largest value of each row is exact. With powers of two, the two copies of
/// a tensor, whose scales differ, round a value in the same way unless it is subnormal in one of
/// them. All GEMMs then use the same quantised tensor, but the largest values, which matter most,
/// are also rounded. Source: torchao's recipe "rowwise", which uses powers of two.
template <ScaleRounding Rounding = ScaleRounding::exact>
struct RowwiseScaling {
  static constexpr const char* name = "rowwise";
  using InputGranularity = PerRow;
  using WeightGranularity = PerRow;
  static constexpr int shape_multiple = 16;
  static constexpr ScaleRounding rounding = Rounding;
};

/// Scales for 1×128 blocks of activations and gradients and 128×128 blocks of weights.
/// Source: DeepSeek-V3 technical report, arXiv 2412.19437.
template <ScaleRounding Rounding = ScaleRounding::power_of_two>
struct BlockwiseScaling {
  static constexpr const char* name = "blockwise";
  using InputGranularity = PerBlock<1, 128, float>;
  using WeightGranularity = PerBlock<128, 128, float>;
  static constexpr int shape_multiple = 128;
  static constexpr ScaleRounding rounding = Rounding;
};

/// E8M0 scales for 1×32 blocks; a block's inverse scale is rounded up to a power of two. Source:
/// OCP Microscaling Formats (MX) 1.0; the rounding is that of cuBLASLt and Transformer Engine,
/// which prevents a block's largest value from overflowing.
struct MxScaling {
  static constexpr const char* name = "mx";
  using InputGranularity = PerBlock<1, 32, E8M0>;
  using WeightGranularity = PerBlock<1, 32, E8M0>;
  static constexpr int shape_multiple = 32;
};

/// Two levels of scales: E4M3 for 1×16 blocks of activations and gradients and 16×16 blocks of
/// weights, multiplied by one FP32 scale per tensor. Gradients are rounded stochastically, and both
/// operands of the weight-gradient GEMM are first rotated by a random Hadamard transform.
/// Source: NVIDIA 2025, "Pretraining large language models with NVFP4", arXiv 2509.25149.
struct NvScaling {
  static constexpr const char* name = "nv";
  using InputGranularity = PerBlock<1, 16, E4M3>;
  using WeightGranularity = PerBlock<16, 16, E4M3>;
  static constexpr int shape_multiple = 16;
};

/// Delayed scaling with the usual defaults: 1024 steps of history, their maximum, margin 0.
using Delayed = DelayedScaling<>;
/// Current scaling without rounding.
using Tensorwise = TensorwiseScaling<>;
/// Current scaling per row, without rounding.
using Rowwise = RowwiseScaling<>;
/// Block scaling with power-of-two scales.
using Blockwise = BlockwiseScaling<>;

namespace detail {

template <class G>
inline constexpr bool is_granularity = std::is_same_v<G, PerTensor> || std::is_same_v<G, PerRow>;
template <int Rows, int Columns, class Scale>
inline constexpr bool is_granularity<PerBlock<Rows, Columns, Scale>> = true;

template <class S>
concept HasGranularities = requires {
  requires is_granularity<typename S::InputGranularity>;
  requires is_granularity<typename S::WeightGranularity>;
};
/// Whether operands with these scales can be multiplied: both have one scale per tensor, both one
/// per row, or both have blocks of the same width and scale type, square for at most one of them.
template <class Ga, class Gb>
inline constexpr bool scales_match =
    std::is_same_v<typename Ga::Scale, typename Gb::Scale> &&
    Ga::block_columns == Gb::block_columns && (Ga::block_rows <= 1 || Gb::block_rows <= 1);

/// Whether inputs can be multiplied with weights, and activations with gradients.
template <class S>
inline constexpr bool granularities_match =
    scales_match<typename S::InputGranularity, typename S::WeightGranularity> &&
    scales_match<typename S::InputGranularity, typename S::InputGranularity>;

template <class S>
concept HasHistory = requires {
  typename std::integral_constant<int, S::history_length>;
  typename std::integral_constant<AmaxReduction, S::reduction>;
  typename std::integral_constant<int, S::margin>;
  requires(S::history_length > 0 && S::margin >= 0 && S::margin <= 16);
};
/// Whether a scaling has `history_length`, `reduction` or `margin`; it must then have all three.
template <class S>
concept MentionsHistory =
    requires { S::history_length; } || requires { S::reduction; } || requires { S::margin; };
template <class S>
concept HasRounding = requires { typename std::integral_constant<ScaleRounding, S::rounding>; };
template <class S>
concept MentionsRounding = requires { S::rounding; };

/// Whether inputs and weights have one scale per tensor.
template <class S>
inline constexpr bool is_per_tensor = std::is_same_v<typename S::InputGranularity, PerTensor> &&
                                      std::is_same_v<typename S::WeightGranularity, PerTensor>;

/// Whether inputs and weights have one scale per row.
template <class S>
inline constexpr bool is_per_row = std::is_same_v<typename S::InputGranularity, PerRow> &&
                                   std::is_same_v<typename S::WeightGranularity, PerRow>;

/// Whether scales come from the amax of earlier steps.
template <class S>
inline constexpr bool is_delayed = HasHistory<S>;
/// Whether a tensor's scale is computed from its own amax, which must be known before the cast.
template <class S>
inline constexpr bool is_tensorwise = is_per_tensor<S> && !is_delayed<S>;

/// Whether a granularity has two levels of scales: scales of blocks, and one of the whole tensor.
template <class G>
inline constexpr bool has_tensor_scale =
    G::block_columns != 0 && std::is_same_v<typename G::Scale, E4M3>;
/// The same for a scaling. Its values are E2M1, rotated for weight gradients and rounded
/// stochastically for gradients of outputs.
template <class S>
inline constexpr bool has_two_levels = has_tensor_scale<typename S::InputGranularity>;

/// Returns how the scales of `S` are rounded; exact by default.
template <class S>
inline constexpr ScaleRounding rounding_of = ScaleRounding::exact;
template <HasRounding S>
inline constexpr ScaleRounding rounding_of<S> = S::rounding;

template <class S>
concept HasScalingMembers = HasGranularities<S> && requires {
  { S::name } -> std::convertible_to<const char*>;
  typename std::integral_constant<int, S::shape_multiple>;
  requires(S::shape_multiple > 0);
};
template <class S>
concept HasWholeHistory = !MentionsHistory<S> || (HasHistory<S> && is_per_tensor<S>);
template <class S>
concept HasOneRounding = !MentionsRounding<S> || HasRounding<S>;
}  // namespace detail

/// A scaling strategy: one of those above, or a custom type with
/// - `static constexpr const char* name`, such as "delayed";
/// - `InputGranularity`, of inputs and gradients, and `WeightGranularity`: what one scale covers,
///   both `PerTensor`, both `PerRow`, or `PerBlock<1, n>` with the same or `PerBlock<n, n>`, and
///   one type of scale;
/// - `static constexpr int shape_multiple`: features must be multiples of it;
/// - `static constexpr ScaleRounding rounding`, if FP32 scales are not used as computed;
/// - all three of `history_length`, `reduction` and `margin`, as in `DelayedScaling`, if scales of
///   whole tensors come from the amax of earlier steps. Otherwise, they come from the current
///   tensor's amax.
template <class S>
concept Scaling = detail::HasScalingMembers<S> && detail::granularities_match<S> &&
                  detail::HasWholeHistory<S> && detail::HasOneRounding<S>;

namespace detail {

/// Whether a type is a DelayedScaling, whose own assertions check its history.
template <class S>
inline constexpr bool is_delayed_scaling = false;
template <int Length, AmaxReduction Reduction, Margin HeadRoom, ScaleRounding Rounding>
inline constexpr bool is_delayed_scaling<DelayedScaling<Length, Reduction, HeadRoom, Rounding>> =
    true;

/// Reports which rule a custom scaling violates.
template <class S>
struct ScalingCheck {};
template <HasScalingMembers S>
struct ScalingCheck<S> {
  static_assert(granularities_match<S>,
                "Fp8Recipe: the scaling's InputGranularity and WeightGranularity are incompatible: "
                "make both PerTensor, both PerRow, or the inputs' PerBlock<1, n> and the weights' "
                "the same or PerBlock<n, n>");
  static_assert(HasWholeHistory<S> || is_delayed_scaling<S>,
                "Fp8Recipe: a scaling with history_length, reduction or margin must have all "
                "three, as in DelayedScaling, with a length above 0 and a margin from 0 to 16, and "
                "be PerTensor; without them, scales come from the current tensor");
  static_assert(HasOneRounding<S>, "Fp8Recipe: the scaling's rounding must be a ScaleRounding");
};

}  // namespace detail

/// The length of the amax history that `S` keeps for each operand; 0 except for delayed scaling.
template <Scaling S>
constexpr int history_length() {
  if constexpr (detail::is_delayed<S>) {
    return S::history_length;
  } else {
    return 0;
  }
}

}  // namespace octavo
