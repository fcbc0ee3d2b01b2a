/// @file
/// How scales are found and what they cover: the scaling strategies and granularities as types.
#pragma once

#include <octavo/formats/formats.hpp>

#include <concepts>
#include <limits>
#include <type_traits>

namespace octavo {

/// Which amax of the history a delayed scale is made from.
enum class AmaxReduction { max, most_recent };

/// Whether a scale is used as computed or rounded down to a power of two.
enum class ScaleRounding { exact, power_of_two };

/// Divides the largest value that a delayed scale aims at by 2^value.
struct Margin {
  int value = 0;
};

/// Compute capabilities of GPUs, times ten: 90 is an H100's.
struct Capabilities {
  int least = 0;
  int most = std::numeric_limits<int>::max();

  [[nodiscard]] constexpr bool hold(int capability) const {
    return least <= capability && capability <= most;
  }
};

/// A scale for the whole tensor.
struct PerTensor {
  /// Of the GPUs on which cuBLASLt multiplies FP8 with such scales.
  static constexpr Capabilities served_by{.least = 89};
  using Scale = float;
  static constexpr int block_rows = 0;
  static constexpr int block_columns = 0;
};

/// A scale for each block of `Rows` × `Columns`, where columns run along the reduced dimension.
/// FP32 scales of 1×n blocks are stored as cuBLASLt's VEC128, s[k_block · rows + row]; of n×n
/// blocks as BLK128, s[row_block · round_up(k_blocks, 4) + k_block]; E8M0 scales row by row.
template <int Rows, int Columns, class ScaleType>
struct PerBlock {
  /// Of the GPUs on which cuBLASLt multiplies FP8 with such scales: E8M0 ones need tensor cores for
  /// MX blocks, FP32 ones are Hopper's alone.
  static constexpr Capabilities served_by = std::is_same_v<ScaleType, E8M0>
                                                ? Capabilities{.least = 100}
                                                : Capabilities{.least = 90, .most = 90};
  using Scale = ScaleType;
  static constexpr int block_rows = Rows;
  static constexpr int block_columns = Columns;
};

/// A scale a tensor, made from the amax of earlier steps, so that it is known before the tensor.
/// Source: numerics of Transformer Engine's delayed scaling; Micikevicius et al. 2022.
template <int HistoryLength = 1024, AmaxReduction Reduction = AmaxReduction::max,
          Margin HeadRoom = Margin{0}, ScaleRounding Rounding = ScaleRounding::exact>
struct DelayedScaling {
  static_assert(HistoryLength > 0,
                "DelayedScaling: the amax history must hold at least 1 entry; give a length such "
                "as DelayedScaling<16>, or choose Tensorwise, which keeps no history");
  static_assert(HeadRoom.value >= 0 && HeadRoom.value <= 16,
                "DelayedScaling: the margin must lie between 0 and 16; Margin{0} is the default");
  static constexpr const char* name = "delayed";
  using InputGranularity = PerTensor;
  using WeightGranularity = PerTensor;
  static constexpr int shape_multiple = 16;
  static constexpr int history_length = HistoryLength;
  static constexpr AmaxReduction reduction = Reduction;
  static constexpr int margin = HeadRoom.value;
  static constexpr ScaleRounding rounding = Rounding;
};

/// A scale a tensor, made from the tensor's own amax (current scaling).
template <ScaleRounding Rounding = ScaleRounding::exact>
struct TensorwiseScaling {
  static constexpr const char* name = "tensorwise";
  using InputGranularity = PerTensor;
  using WeightGranularity = PerTensor;
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

/// E8M0 scales for 1×32 blocks; a block's inverse scale is rounded up to a power of two.
/// Source: OCP Microscaling Formats (MX) 1.0; the rounding is that of cuBLASLt and Transformer
/// Engine, which keeps a block's largest value from overflowing.
struct MxScaling {
  static constexpr const char* name = "mx";
  using InputGranularity = PerBlock<1, 32, E8M0>;
  using WeightGranularity = PerBlock<1, 32, E8M0>;
  static constexpr int shape_multiple = 32;
};

/// Delayed scaling with the field's defaults: 1024 steps of history, their maximum, margin 0.
using Delayed = DelayedScaling<>;
/// Current scaling without rounding.
using Tensorwise = TensorwiseScaling<>;
/// Block scaling with power-of-two scales.
using Blockwise = BlockwiseScaling<>;

namespace detail {
template <class T>
inline constexpr bool is_delayed = false;
template <int L, AmaxReduction R, Margin M, ScaleRounding S>
inline constexpr bool is_delayed<DelayedScaling<L, R, M, S>> = true;
template <class T>
inline constexpr bool is_tensorwise = false;
template <ScaleRounding S>
inline constexpr bool is_tensorwise<TensorwiseScaling<S>> = true;
template <class T>
inline constexpr bool is_blockwise = false;
template <ScaleRounding S>
inline constexpr bool is_blockwise<BlockwiseScaling<S>> = true;
}  // namespace detail

/// One of the scaling strategies above.
template <class S>
concept Scaling = detail::is_delayed<S> || detail::is_tensorwise<S> || detail::is_blockwise<S> ||
    std::same_as<S, MxScaling>;

/// The length of the amax history that `S` keeps for each operand; 0 for all but delayed scaling.
template <Scaling S>
constexpr int history_length() {
  if constexpr (detail::is_delayed<S>) {
    return S::history_length;
  } else {
    return 0;
  }
}

}  // namespace octavo
