/// @file
/// The state of one quantised operand that lives on the device: scale, amax, counters.
#pragma once

#include <octavo/formats/format_traits.hpp>

#include <cstdint>

namespace octavo {

/// Scale and statistics of one GEMM operand. The amax history, where there is one, stands in a
/// table beside it.
struct alignas(64) ScalingSlot {
  /// Values are multiplied by it before they are cast. cuBLASLt wants pointers to scales at
  /// multiples of 16 bytes.
  alignas(16) float scale;
  alignas(16) float scale_inverse;  ///< 1 / `scale`, what GEMMs multiply with
  /// Bits of max |x| since the last update: as integers, the bits of positive floats sort as the
  /// floats do, with Inf and NaN above every finite number.
  alignas(16) std::uint32_t amax_bits;
  std::uint32_t last_amax_bits;        ///< `amax_bits` as the last update found them, for people
  std::uint32_t position;              ///< where the history's next entry goes
  std::uint32_t nonfinite;             ///< times that the operand held an Inf or NaN
  alignas(16) std::uint64_t elements;  ///< values cast since the statistics were cleared
  /// Of these, cut to the format's largest value, or NaN. A value that rounds to the largest is not
  /// cut: E4M3 cuts what is above 464 once it is scaled, E5M2 what is 61440 or more.
  std::uint64_t saturated;
  std::uint64_t flushed;  ///< of these, not zero before and zero after
  /// Where `Cuda` gathers the amax of the values that current scaling is about to cast.
  std::uint32_t found_amax_bits;
};

/// How `update_delayed_scales` treats one slot.
struct ScalingRule {
  float target;                 ///< the format's largest value times 2^-margin
  std::int32_t history_length;  ///< 0: the slot is not scaled by history
  std::int32_t most_recent;     ///< 1: the newest amax counts, 0: the largest
  std::int32_t power_of_two;    ///< 1: scales are rounded down to a power of two
  std::int32_t group;           ///< an `OperandKind`; groups are updated at different times
};

}  // namespace octavo
