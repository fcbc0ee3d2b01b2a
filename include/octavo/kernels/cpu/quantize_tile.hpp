/// @file
/// The tiles in which the `Cpu` device quantises, and casts of runs of values with one scale.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/kernels/hadamard.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Size of the tiles in which quantisation works; a multiple of every block size.
inline constexpr Index quantize_tile = 128;

/// Bits of an element without its sign.
template <class Format>
inline constexpr std::uint32_t magnitude_mask = (1u << (FormatTraits<Format>::bits - 1)) - 1u;

/// Counts over one tile.
struct CastStatistics {
  std::uint64_t saturated = 0;
  std::uint64_t flushed = 0;
};

/// Counts the values of a run that its cast with one scale saturated or flushed.
template <class Format>
CastStatistics count_run(const float* values, const Format* output, Index count, float scale) {
  std::uint32_t saturated = 0;
  std::uint32_t flushed = 0;
  for (Index i = 0; i < count; ++i) {
    const std::uint32_t magnitude = float_bits(values[i] * scale) & 0x7fffffffu;
    const std::uint32_t is_zero = (output[i].bits & magnitude_mask<Format>) == 0;
    const std::uint32_t was_nonzero = (float_bits(values[i]) << 1) != 0;
    saturated += magnitude > float_bits(largest_unsaturated<Format>) ? 1u : 0u;
    flushed += is_zero & was_nonzero;
  }
  return {saturated, flushed};
}

/// Casts `count` values with one scale. A separate loop counts, because compilers vectorise two
/// loops, but not one loop that does both. Stores bits instead of format types, because copying a
/// struct also prevents vectorisation.
template <class Format>
CastStatistics cast_run(const float* values, Format* output, Index count, float scale) {
  for (Index i = 0; i < count; ++i) output[i].bits = Format(values[i] * scale).bits;
  return count_run(values, output, count, scale);
}

/// Casts `count` values with one scale, and rounds them stochastically, with 16 bits of `random`
/// for each.
/// @param place  number of the first element, a multiple of 8
inline CastStatistics cast_run_stochastically(const float* values, E2M1* output, Index count,
                                              float scale, RandomStream random, Index place) {
  constexpr Index values_per_draw = 8;
  for (Index begin = 0; begin < count; begin += values_per_draw) {
    const auto words =
        philox(random, static_cast<std::uint64_t>((place + begin) / values_per_draw));
    for (Index i = begin; i < std::min(begin + values_per_draw, count); ++i) {
      const auto number = static_cast<std::size_t>(i - begin);
      output[i] =
          E2M1::rounded_stochastically(values[i] * scale, words[number / 2] >> (number % 2 * 16));
    }
  }
  return count_run(values, output, count, scale);
}

/// Returns the bits of max |x|; Inf and NaN are larger than every finite value.
inline std::uint32_t amax_bits(const float* values, Index count) {
  std::uint32_t largest = 0;
  for (Index i = 0; i < count; ++i) {
    largest = std::max(largest, float_bits(values[i]) & 0x7fffffffu);
  }
  return largest;
}

inline void atomic_max(std::uint32_t& target, std::uint32_t value) {
  std::atomic_ref<std::uint32_t> shared(target);
  std::uint32_t seen = shared.load(std::memory_order_relaxed);
  while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

/// A square row-major tile of FP32 values. `load` sets the columns beyond the tensor to 0.
struct QuantizeTile {
  Index rows = 0;
  Index columns = 0;
  std::array<float, quantize_tile * quantize_tile> values;

  float* row(Index r) { return values.data() + r * quantize_tile; }
  [[nodiscard]] const float* row(Index r) const { return values.data() + r * quantize_tile; }

  template <class Storage>
  void load(TensorView<Storage, 2, Cpu> source, Index row0, Index column0) {
    rows = std::min(quantize_tile, source.extent(0) - row0);
    columns = std::min(quantize_tile, source.extent(1) - column0);
    for (Index r = 0; r < rows; ++r) {
      const Storage* from = source.data() + (row0 + r) * source.extent(1) + column0;
      float* to = row(r);
      for (Index c = 0; c < columns; ++c) to[c] = static_cast<float>(from[c]);
      std::fill(to + columns, to + quantize_tile, 0.0f);
    }
  }

  void transpose_from(const QuantizeTile& other) {
    rows = other.columns;
    columns = other.rows;
    // Small blocks keep both tiles' cache lines in the cache.
    constexpr Index block = 16;
    for (Index r0 = 0; r0 < other.rows; r0 += block) {
      for (Index c = 0; c < other.columns; ++c) {
        float* to = row(c);
        for (Index r = r0; r < std::min(r0 + block, other.rows); ++r) to[r] = other.row(r)[c];
      }
    }
  }

  /// Rotates groups of 16 columns: see detail::rotate. Their number must be a multiple of 16.
  void rotate_rows() {
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; c += hadamard_length) rotate(row(r) + c);
    }
  }

  [[nodiscard]] std::uint32_t amax() const {
    std::uint32_t largest = 0;
    for (Index r = 0; r < rows; ++r) largest = std::max(largest, amax_bits(row(r), columns));
    return largest;
  }
};

}  // namespace octavo::detail
