/// @file
/// Packing of gradients as FP8 on the `Cpu` device.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/kernels/packed_parts.hpp>

#include <algorithm>
#include <cstring>

namespace octavo OCTAVO_ABI::detail {

/// See pack_parts.
template <class G>
void pack_parts_body(TensorView<const G, 2, Cpu> parts, TensorView<std::byte, 2, Cpu> packed,
                     const Context<Cpu>& context) {
  constexpr Index block = PackedPart::block;
  const Index elements = parts.extent(1);
  const Index blocks = elements / block;
  parallel_for(parts.extent(0) * blocks, block, context, [&](Index i) {
    const Index rank = i / blocks;
    const Index number = i % blocks;
    const G* source = parts.row(rank) + number * block;
    std::byte* part = packed.row(rank);
    std::uint32_t amax = 0;
    for (Index e = 0; e < block; ++e) {
      amax = std::max(amax, float_bits(static_cast<float>(source[e])) & 0x7fffffffu);
    }
    float inverse = 0;
    const float scale = packed_scale(amax, inverse);
    for (Index e = 0; e < block; ++e) {
      part[number * block + e] =
          static_cast<std::byte>(E4M3(static_cast<float>(source[e]) * scale).bits);
    }
    std::memcpy(part + elements + number * Index{sizeof(float)}, &inverse, sizeof inverse);
  });
  const Index used = elements + blocks * Index{sizeof(float)};
  for (Index rank = 0; rank < parts.extent(0); ++rank) {
    std::fill(packed.row(rank) + used, packed.row(rank) + packed.extent(1), std::byte{0});
  }
}

/// See sum_packed_parts.
template <class Sum>
void sum_packed_parts_body(const RankParts<std::byte, Cpu>& packed, TensorView<Sum, 1, Cpu> sum,
                           bool accumulate, const Context<Cpu>& context) {
  constexpr Index block = PackedPart::block;
  const Index elements = sum.size();
  parallel_for(elements / block, block * packed.ranks(), context, [&](Index number) {
    Sum* target = sum.data() + number * block;
    float totals[block];
    for (Index e = 0; e < block; ++e) totals[e] = accumulate ? static_cast<float>(target[e]) : 0;
    for (Index rank = 0; rank < packed.ranks(); ++rank) {
      const std::byte* part = packed.of(rank);
      float inverse = 0;
      std::memcpy(&inverse, part + elements + number * Index{sizeof(float)}, sizeof inverse);
      for (Index e = 0; e < block; ++e) {
        E4M3 value;
        value.bits = static_cast<std::uint8_t>(part[number * block + e]);
        totals[e] += static_cast<float>(value) * inverse;
      }
    }
    for (Index e = 0; e < block; ++e) target[e] = Sum(totals[e]);
  });
}

}  // namespace octavo::detail
