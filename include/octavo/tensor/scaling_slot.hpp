/// @file
/// The state of quantised operands that lives on the device: amaxes, scales, statistics.
#pragma once

#include <octavo/formats/format_traits.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// What the values of an operand are cast with. Scales of many operands stand side by side, 16
/// bytes apart, because cuBLASLt wants pointers to scales at multiples of 16 bytes.
struct alignas(16) OperandScale {
  float scale_inverse;     ///< 1 / `scale`, what GEMMs multiply with
  float scale;             ///< values are multiplied by it before they are cast
  std::uint32_t position;  ///< where the history's next entry goes
  /// Where `Cuda` gathers the amax of the values that current scaling is about to cast.
  std::uint32_t found_amax_bits;
};
static_assert(sizeof(OperandScale) == 16);

/// What the casts of an operand met: 32 bytes, which a GPU's memory moves at once.
struct alignas(32) OperandStatistics {
  std::uint64_t elements;  ///< values cast since the statistics were cleared
  /// Of these, cut to the format's largest value, or NaN. A value that rounds to the largest is not
  /// cut: E4M3 cuts what is above 464 once it is scaled, E5M2 what is 61440 or more.
  std::uint64_t saturated;
  std::uint64_t flushed;         ///< of these, not zero before and zero after
  std::uint32_t last_amax_bits;  ///< the amax as the last update found it, for people
  std::uint32_t nonfinite;       ///< updates that found an Inf or NaN
};

/// The scaling state of an operand that stands alone, and belongs to no table.
struct OperandScaling : OperandScale, OperandStatistics {
  std::uint32_t amax_bits;  ///< see ScalingSlot
};

/// Where the scaling state of one operand lies.
struct ScalingSlot {
  /// Bits of max |x| since the last update: as integers, the bits of positive floats sort as the
  /// floats do, with Inf and NaN above every finite number.
  std::uint32_t* amax_bits = nullptr;
  OperandScale* scaling = nullptr;
  OperandStatistics* statistics = nullptr;

  ScalingSlot() = default;
  ScalingSlot(std::uint32_t* amax, OperandScale* scale, OperandStatistics* met)
      : amax_bits(amax), scaling(scale), statistics(met) {}
  /// Of an operand that stands alone; null: there is no memory yet.
  ScalingSlot(OperandScaling* alone)
      : amax_bits(alone == nullptr ? nullptr : &alone->amax_bits),
        scaling(alone),
        statistics(alone) {}
};

/// The scaling state of many operands, an array for each part. The amaxes lie packed, so that ranks
/// take the largest of theirs in one operation. Operands are cast one after the other, so
/// neighbours do not wait for each other's atomics. The amax histories, where there are some, stand
/// in a table beside it.
template <Device D>
struct ScalingArrays {
  TensorView<std::uint32_t, 1, D> amax_bits;       ///< [operands]
  TensorView<OperandScale, 1, D> scales;           ///< [operands]
  TensorView<OperandStatistics, 1, D> statistics;  ///< [operands]

  [[nodiscard]] Index size() const { return amax_bits.extent(0); }
  [[nodiscard]] bool empty() const { return amax_bits.empty(); }
  [[nodiscard]] ScalingSlot slot(Index i) const {
    return {amax_bits.data() + i, scales.data() + i, statistics.data() + i};
  }
};

/// How `update_delayed_scales` treats one operand.
struct ScalingRule {
  float target;                 ///< the format's largest value times 2^-margin
  std::int32_t history_length;  ///< 0: the operand is not scaled by history
  std::int32_t most_recent;     ///< 1: the newest amax counts, 0: the largest
  std::int32_t power_of_two;    ///< 1: scales are rounded down to a power of two
};

}  // namespace octavo
