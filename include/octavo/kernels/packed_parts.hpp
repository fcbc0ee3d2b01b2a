/// @file
/// Packing of gradients as FP8 for exchange between ranks: blocks of E4M3 values with one scale
/// each.
#pragma once

#include <octavo/kernels/rank_sums.hpp>
#include <octavo/kernels/scale.hpp>
#include <octavo/tensor/tensor.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Byte layout of a part: its elements in E4M3, then for each `block` elements an FP32 factor that
/// converts them back, then zeros up to the next multiple of 256.
struct PackedPart {
  static constexpr Index block = 128;
  using Format = E4M3;

  /// Returns the bytes of a part.
  /// @param elements  a multiple of `block`
  [[nodiscard]] static constexpr Index bytes(Index elements) {
    return round_up(elements + elements / block * Index{sizeof(float)}, 256);
  }
};

/// Packs the part of each rank. A block with an Inf or NaN becomes NaN.
/// @param parts   [ranks, elements], with elements a multiple of 128
/// @param packed  [ranks, PackedPart::bytes(elements)]
/// @note enqueues; does not synchronise
template <class G, Device D>
void pack_parts(TensorView<const G, 2, D> parts, TensorView<std::byte, 2, D> packed,
                const Context<D>& context) {
  require<ShapeError>(parts.extent(1) % PackedPart::block == 0, "pack_parts: parts have ",
                      parts.extent(1), " elements; pass a multiple of ", PackedPart::block);
  check_shape("pack_parts", "packed", packed,
              {parts.extent(0), PackedPart::bytes(parts.extent(1))});
  pack_parts_body(parts, packed, context);
}

/// Same as sum_parts for packed parts, whose values were rounded to E4M3 once, when they were
/// packed.
/// @param packed  of PackedPart::bytes(elements) each
/// @param sum     [elements]
/// @note enqueues; does not synchronise
template <class Sum, Device D>
void sum_packed_parts(const RankParts<std::byte, D>& packed, TensorView<Sum, 1, D> sum,
                      bool accumulate, const Context<D>& context) {
  check_shape("sum_packed_parts", "packed", packed.received,
              {packed.ranks(), PackedPart::bytes(sum.size())});
  sum_packed_parts_body(packed, sum, accumulate, context);
}

namespace detail {

/// Returns a block's scale, and writes to `inverse` the factor that converts packed values back.
/// @param amax_bits  the maximum of the values' bits without signs
OCTAVO_HOST_DEVICE inline float packed_scale(std::uint32_t amax_bits, float& inverse) {
  constexpr float largest = FormatTraits<PackedPart::Format>::max;
  const float amax = float_from_bits(amax_bits);
  const float scale = current_scale(largest, amax, false);
  constexpr std::uint32_t not_a_number = 0x7fc00000u;
  inverse = !is_finite(amax) ? float_from_bits(not_a_number)
            : scale == 1.0f  ? 1.0f
                             : amax / largest;
  return scale;
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/packed_parts.hpp>
