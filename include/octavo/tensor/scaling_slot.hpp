/// @file
/// Scaling state of quantised operands in device memory: amaxes, scales and statistics.
#pragma once

#include <octavo/formats/format_traits.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// The scale with which the values of an operand are cast. Scales of many operands are adjacent, 16
/// bytes apart, because cuBLASLt requires 16-byte alignment of pointers to scales.
struct alignas(16) OperandScale {
  float scale_inverse;     ///< 1 / `scale`, the factor that GEMMs use
  float scale;             ///< multiplies values before they are cast
  std::uint32_t position;  ///< index of the history's next entry; the number of recorded casts, if
                           ///< they round stochastically
  /// Where `Cuda` accumulates the amax of values before current scaling casts them.
  std::uint32_t found_amax_bits;
};
static_assert(sizeof(OperandScale) == 16);

/// Statistics of an operand's casts: 32 bytes, which a GPU transfers in one memory transaction.
struct alignas(32) OperandStatistics {
  std::uint64_t elements;  ///< values cast since the statistics were last cleared
  /// The number of these that saturated at the format's largest value or were NaN. A value that
  /// rounds to the largest is not counted: E4M3 saturates scaled values above 464, E5M2 values of
  /// 61440 or more. Of the result of a GEMM in E4M3, all values of magnitude 448 are counted.
  std::uint64_t saturated;
  std::uint64_t flushed;         ///< the number of these that were nonzero before the cast and zero
                                 ///< after it
  std::uint32_t last_amax_bits;  ///< the amax found by the last update, for reports
  std::uint32_t nonfinite;       ///< updates that found an Inf or NaN
};

/// The scaling state of a standalone operand that belongs to no table.
struct OperandScaling : OperandScale, OperandStatistics {
  std::uint32_t amax_bits;  ///< see ScalingSlot
};

/// Pointers to the scaling state of one operand.
struct ScalingSlot {
  /// Bits of max |x| since the last update. As integers, the bits of positive floats compare like
  /// the floats, with Inf and NaN above every finite number.
  std::uint32_t* amax_bits = nullptr;
  OperandScale* scaling = nullptr;
  OperandStatistics* statistics = nullptr;

  ScalingSlot() = default;
  ScalingSlot(std::uint32_t* amax, OperandScale* scale, OperandStatistics* observed)
      : amax_bits(amax), scaling(scale), statistics(observed) {}
  /// For a standalone operand; null: no memory is allocated yet.
  ScalingSlot(OperandScaling* alone)
      : amax_bits(alone == nullptr ? nullptr : &alone->amax_bits),
        scaling(alone),
        statistics(alone) {}
};

/// The scaling state of many operands, one array for each member. The amaxes are packed, so that
/// ranks reduce all of them in one operation. Operands are cast one after the other, so neighbours
/// do not contend for atomics. The amax histories, if any, are in a separate table.
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
  std::int32_t history_length;  ///< 0: the operand's scale does not come from a history
  std::int32_t most_recent;     ///< 1: use the newest amax, 0: the largest
  std::int32_t power_of_two;    ///< 1: scales are rounded down to a power of two
};

}  // namespace octavo
