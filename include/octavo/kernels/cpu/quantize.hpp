/// @file
/// Quantisation on the `Cpu` device: the reference for every other device.
#pragma once

#include <octavo/kernels/cpu/quantize_tile.hpp>
#include <octavo/kernels/quantize.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI::detail {

/// Returns the factor that a row is multiplied by before it is rounded.
template <class S, class Format>
float row_scale(float amax) {
  return current_scale(FormatTraits<Format>::max, amax,
                       rounding_of<S> == ScaleRounding::power_of_two);
}

/// Returns the factor that a block is multiplied by before it is rounded, and writes its inverse to
/// `scale_inverse`.
/// @param tensor_scale  the upper one of two levels of scales
template <class S, class Format, class Scale>
float block_scale(float amax, float tensor_scale, Scale& scale_inverse) {
  constexpr float largest = FormatTraits<Format>::max;
  if constexpr (has_two_levels<S>) {
    scale_inverse = two_level_scale_inverse(largest, amax, tensor_scale);
    return two_level_factor(scale_inverse, 1.0f / tensor_scale);
  } else if constexpr (std::is_same_v<Scale, E8M0>) {
    scale_inverse = mx_scale_inverse(largest, amax);
    return mx_scale(scale_inverse);
  } else {
    const float scale = current_scale(largest, amax, rounding_of<S> == ScaleRounding::power_of_two);
    scale_inverse = 1.0f / scale;
    return scale;
  }
}

/// How one copy of an operand is cast, beyond what its type states.
struct CopyCast {
  float tensor_scale = 1.0f;  ///< of per-tensor scaling, or the upper one of two levels
  RandomStream random = {};   ///< for stochastic rounding
};

/// Casts the tile whose first element is (row0, column0) of `copy`, which has scales of rows or
/// blocks. For scales per row, `find_row_amaxes` must have run.
/// @tparam Rounding  of values
template <class S, ValueRounding Rounding, class Format, class Granularity, Layout L>
CastStatistics cast_tile(const QuantizeTile& tile, Index row0, Index column0, const CopyCast& cast,
                         QuantizedView<Format, Granularity, L, Cpu> copy) {
  constexpr bool per_row = std::is_same_v<Granularity, PerRow>;
  constexpr Index height = Granularity::block_rows;
  constexpr Index width = per_row ? quantize_tile : Granularity::block_columns;
  static_assert(quantize_tile % height == 0 && quantize_tile % width == 0);
  CastStatistics total;
  for (Index top = 0; top < tile.rows; top += height) {
    const Index bottom = std::min(top + height, tile.rows);
    for (Index left = 0; left < tile.columns; left += width) {
      const Index count = std::min(width, tile.columns - left);
      float scale = 1.0f;
      if constexpr (per_row) {
        scale = row_scale<S, Format>(copy.scale_inverses()[row0 + top]);
      } else {
        std::uint32_t amax = 0;
        for (Index r = top; r < bottom; ++r) {
          amax = std::max(amax, amax_bits(tile.row(r) + left, count));
        }
        const Index at =
            scale_index<Granularity>(row0 + top, column0 + left, copy.outer(), copy.inner());
        scale = block_scale<S, Format>(float_from_bits(amax), cast.tensor_scale,
                                       copy.scale_inverses()[at]);
      }
      for (Index r = top; r < bottom; ++r) {
        const float* values = tile.row(r) + left;
        const Index column = column0 + left;
        Format* output = copy.data() + (row0 + r) * copy.inner() + column;
        CastStatistics counts;
        if constexpr (Rounding == ValueRounding::stochastic) {
          const Index place = (row0 + r) * round_up(copy.inner(), width) + column;
          counts = cast_run_stochastically(values, output, count, scale, cast.random, place);
        } else {
          counts = cast_run(values, output, count, scale);
        }
        total.saturated += counts.saturated;
        total.flushed += counts.flushed;
      }
    }
  }
  return total;
}

/// A tile that was cast.
template <class Format>
using CastTile = std::array<Format, quantize_tile * quantize_tile>;

/// Transposes a tile by perfect shuffles, each of which rotates the bits of all indices by one.
/// Compilers vectorise them.
template <class Format>
void transpose_cast(CastTile<Format>& tile) {
  constexpr std::size_t half = std::tuple_size_v<CastTile<Format>> / 2;
  CastTile<Format> other;
  Format* from = tile.data();
  Format* to = other.data();
  for (Index rotated = 1; rotated < quantize_tile; rotated *= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      to[2 * i].bits = from[i].bits;
      to[2 * i + 1].bits = from[half + i].bits;
    }
    std::swap(from, to);
  }
  if (from != tile.data()) tile = other;
}

/// Casts a tile whose copies have the same scale, and therefore the same elements, only once.
template <class Format>
CastStatistics cast_tile_once(
    const QuantizeTile& tile, Index row0, Index column0, float scale,
    QuantizedView<Format, PerTensor, Layout::row_major, Cpu> row_major,
    QuantizedView<Format, PerTensor, Layout::transposed, Cpu> transposed) {
  if (row_major.empty() && transposed.empty()) return {};
  CastTile<Format> cast;
  const auto counts = cast_run(tile.row(0), cast.data(), tile.rows * quantize_tile, scale);
  if (!row_major.empty()) {
    for (Index r = 0; r < tile.rows; ++r) {
      std::copy_n(cast.data() + r * quantize_tile, tile.columns,
                  row_major.data() + (row0 + r) * row_major.inner() + column0);
    }
  }
  if (!transposed.empty()) {
    transpose_cast(cast);
    for (Index c = 0; c < tile.columns; ++c) {
      std::copy_n(cast.data() + c * quantize_tile, tile.rows,
                  transposed.data() + (column0 + c) * transposed.inner() + row0);
    }
  }
  return counts;
}

/// Calls `body(tile, row0, column0)` for every tile of `values`.
template <class Storage, class Body>
void for_each_tile(TensorView<Storage, 2, Cpu> values, const Context<Cpu>& context,
                   const Body& body) {
  const Index across = ceil_divide(values.extent(1), quantize_tile);
  const Index tiles = ceil_divide(values.extent(0), quantize_tile) * across;
  parallel_for(tiles, quantize_tile * quantize_tile, context, [&](Index i) {
    QuantizeTile tile;
    const Index row0 = i / across * quantize_tile;
    const Index column0 = i % across * quantize_tile;
    tile.load(values, row0, column0);
    body(tile, row0, column0);
  });
}

/// Sets the operand's scale from the tensor's amax.
template <class S, class Format, class Storage>
void set_current_scale(TensorView<Storage, 2, Cpu> values, OperandScale& scaling,
                       const Context<Cpu>& context) {
  std::uint32_t largest = 0;
  for_each_tile(values, context,
                [&](const QuantizeTile& tile, Index, Index) { atomic_max(largest, tile.amax()); });
  scaling.scale = current_scale(FormatTraits<Format>::max, float_from_bits(largest),
                                rounding_of<S> == ScaleRounding::power_of_two);
  scaling.scale_inverse = 1.0f / scaling.scale;
}

/// Transposes a tile, and rotates it if the operand's transposed copy is rotated.
template <class S, OperandKind Kind>
void turn(const QuantizeTile& tile, QuantizeTile& turned) {
  turned.transpose_from(tile);
  if constexpr (rotates_transposed<S, Kind>) turned.rotate_rows();
}

/// Computes the upper scales of an operand with two levels from the amax of each copy, and stores
/// them with the copies.
template <QuantizedPrecision P, OperandKind Kind>
void set_tensor_scales(const Operand<P, Kind, Cpu>& operand, CopyCast& row_major,
                       CopyCast& transposed, const Context<Cpu>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  constexpr float largest = FormatTraits<OperandFormat<P, Kind>>::max;
  const bool is_rotated = rotates_transposed<S, Kind> && !operand.transposed.empty();
  std::uint32_t amax = 0;
  std::uint32_t rotated_amax = 0;
  for_each_tile(operand.values, context, [&](const QuantizeTile& tile, Index, Index) {
    atomic_max(amax, tile.amax());
    if (!is_rotated) return;
    QuantizeTile turned;
    turn<S, Kind>(tile, turned);
    atomic_max(rotated_amax, turned.amax());
  });
  const auto set = [](CopyCast& cast, std::uint32_t bits, const auto& copy) {
    cast.tensor_scale = two_level_scale(largest, float_from_bits(bits));
    if (!copy.empty()) set_tensor_scale_inverse(copy, 1.0f / cast.tensor_scale);
  };
  set(row_major, amax, operand.row_major);
  set(transposed, is_rotated ? rotated_amax : amax, operand.transposed);
}

/// Writes the amax of each row of a copy to where the inverse of its scale will be stored.
/// @param values  [rows, columns] of the tensor: the copy's rows and columns, or its columns and
///                rows
template <class Storage, class Format, Layout L>
void find_row_amaxes(TensorView<Storage, 2, Cpu> values, QuantizedView<Format, PerRow, L, Cpu> copy,
                     const Context<Cpu>& context) {
  parallel_for(ceil_divide(copy.outer(), quantize_tile), quantize_tile * copy.inner(), context,
               [&](Index strip) {
                 const Index begin = strip * quantize_tile;
                 std::array<std::uint32_t, quantize_tile> largest{};
                 QuantizeTile tile;
                 for (Index at = 0; at < copy.inner(); at += quantize_tile) {
                   if constexpr (L == Layout::row_major) {
                     tile.load(values, begin, at);
                   } else {
                     tile.load(values, at, begin);
                   }
                   for (Index r = 0; r < tile.rows; ++r) {
                     for (Index c = 0; c < tile.columns; ++c) {
                       std::uint32_t& amax =
                           largest[static_cast<std::size_t>(L == Layout::row_major ? r : c)];
                       amax = std::max(amax, float_bits(tile.row(r)[c]) & 0x7fffffffu);
                     }
                   }
                 }
                 const Index end = std::min(begin + quantize_tile, copy.outer());
                 for (Index r = begin; r < end; ++r) {
                   copy.scale_inverses()[r] =
                       float_from_bits(largest[static_cast<std::size_t>(r - begin)]);
                 }
               });
}

/// Replaces the amaxes written by `find_row_amaxes` with inverse scales.
template <class S, class Format, Layout L>
void invert_row_scales(QuantizedView<Format, PerRow, L, Cpu> copy) {
  for (Index r = 0; r < copy.outer(); ++r) {
    float& inverse = copy.scale_inverses()[r];
    inverse = 1.0f / row_scale<S, Format>(inverse);
  }
}

/// Calls `body(copy)` for the copies that the operand has, if it has scales per row.
template <class Operand, class Body>
void for_each_copy_by_rows(const Operand& operand, const Body& body) {
  if constexpr (std::is_same_v<typename Operand::Granularity, PerRow>) {
    if (!operand.row_major.empty()) body(operand.row_major);
    if (!operand.transposed.empty()) body(operand.transposed);
  }
}

/// Updates one operand.
inline void update_operand(const ScalingSlot& slot, const ScalingRule& rule, float* history) {
  const std::uint32_t bits = std::exchange(*slot.amax_bits, 0u);
  slot.statistics->last_amax_bits = bits;
  if (bits >= 0x7f800000u) {
    ++slot.statistics->nonfinite;
    return;
  }
  if (rule.history_length == 0 || bits == 0) return;
  OperandScale& scaling = *slot.scaling;
  const float amax = float_from_bits(bits);
  history[scaling.position] = amax;
  scaling.position = (scaling.position + 1) % static_cast<std::uint32_t>(rule.history_length);
  float used = amax;
  for (int i = 0; i < rule.history_length && rule.most_recent == 0; ++i) {
    used = history[i] > used ? history[i] : used;
  }
  scaling.scale = delayed_scale(rule.target, used, scaling.scale, rule.power_of_two != 0);
  scaling.scale_inverse = 1.0f / scaling.scale;
}

/// See quantize.
template <QuantizedPrecision P, OperandKind Kind>
void quantize_body(const Operand<P, Kind, Cpu>& operand, const Context<Cpu>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  using Format = OperandFormat<P, Kind>;
  OperandScale& scaling = *operand.slot.scaling;
  if constexpr (is_tensorwise<S>) {
    if (!operand.scale_is_found) {
      set_current_scale<S, Format>(operand.values, scaling, context);
    }
  }
  CopyCast row_major{.tensor_scale = scaling.scale};
  CopyCast transposed{.tensor_scale = scaling.scale};
  constexpr ValueRounding rounding = value_rounding<S, Kind>;
  if constexpr (has_two_levels<S>) set_tensor_scales(operand, row_major, transposed, context);
  if constexpr (rounding == ValueRounding::stochastic) {
    const std::uint64_t draw = 2 * std::uint64_t{scaling.position};
    row_major.random = {.seed = operand.number, .stream = draw};
    transposed.random = {.seed = operand.number, .stream = draw + 1};
    if (operand.record) ++scaling.position;
  }
  for_each_copy_by_rows(operand,
                        [&](auto copy) { find_row_amaxes(operand.values, copy, context); });
  std::uint32_t amax = 0;
  std::uint64_t saturated = 0;
  std::uint64_t flushed = 0;
  for_each_tile(operand.values, context, [&](const QuantizeTile& tile, Index row0, Index column0) {
    CastStatistics counts;
    if constexpr (std::is_same_v<OperandGranularity<P, Kind>, PerTensor>) {
      counts = cast_tile_once(tile, row0, column0, row_major.tensor_scale, operand.row_major,
                              operand.transposed);
    } else {
      if (!operand.row_major.empty()) {
        counts = cast_tile<S, rounding>(tile, row0, column0, row_major, operand.row_major);
      }
      if (!operand.transposed.empty()) {
        QuantizeTile turned;
        turn<S, Kind>(tile, turned);
        const auto other =
            cast_tile<S, rounding>(turned, column0, row0, transposed, operand.transposed);
        if (operand.row_major.empty()) counts = other;
      }
    }
    if (operand.record) {
      atomic_max(amax, tile.amax());
      std::atomic_ref(saturated).fetch_add(counts.saturated, std::memory_order_relaxed);
      std::atomic_ref(flushed).fetch_add(counts.flushed, std::memory_order_relaxed);
    }
  });
  for_each_copy_by_rows(operand, [](auto copy) { invert_row_scales<S>(copy); });
  if (!operand.record) return;
  std::uint32_t& recorded = *operand.slot.amax_bits;
  recorded = std::max(recorded, amax);
  OperandStatistics& statistics = *operand.slot.statistics;
  statistics.elements += static_cast<std::uint64_t>(operand.values.size());
  statistics.saturated += saturated;
  statistics.flushed += flushed;
}

/// See update_delayed_scales.
inline void update_delayed_scales_body(const ScalingArrays<Cpu>& operands,
                                       TensorView<const ScalingRule, 1, Cpu> rules,
                                       TensorView<float, 2, Cpu> history, const Context<Cpu>&) {
  for (Index i = 0; i < operands.size(); ++i) {
    update_operand(operands.slot(i), rules.data()[i], history.row(i));
  }
}

/// See clear_statistics.
inline void clear_statistics_body(TensorView<OperandStatistics, 1, Cpu> statistics,
                                  const Context<Cpu>&) {
  for (Index i = 0; i < statistics.extent(0); ++i) {
    OperandStatistics& operand = statistics.data()[i];
    operand.elements = operand.saturated = operand.flushed = 0;
  }
}

}  // namespace octavo::detail
