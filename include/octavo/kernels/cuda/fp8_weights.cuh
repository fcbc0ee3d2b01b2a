/// @file
/// Weights that ranks cast in shards, on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/tensor_cast.cuh>
#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/fp8_weights.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See raise_amax.
template <class T>
void raise_amax_body(TensorView<const T, 1, Cuda> values, TensorView<std::uint32_t, 1, Cuda> amax,
                     const Context<Cuda>& context) {
  enqueue_amax("raise_amax", TensorView<const T, 2, Cuda>{values.data(), {1, values.size()}},
               amax.data(), context);
}

struct SetCurrentScales {
  const std::uint32_t* found;
  OperandScale* scales;
  std::uint32_t* amax_bits;
  const ScalingRule* rules;
  bool record;
  __device__ void operator()(Index i) const {
    set_scale_of(scales[i], rules[i], found[i]);
    if (record) amax_bits[i] = max(amax_bits[i], found[i]);
  }
};

/// See set_current_scales.
inline void set_current_scales_body(TensorView<const std::uint32_t, 1, Cuda> found,
                                    const ScalingArrays<Cuda>& operands,
                                    TensorView<const ScalingRule, 1, Cuda> rules, bool record,
                                    const Context<Cuda>& context) {
  kernels::for_each_index("set_current_scales", operands.size(), context,
                          SetCurrentScales{found.data(), operands.scales.data(),
                                           operands.amax_bits.data(), rules.data(), record});
}

/// Transposes one tile of bytes per block, from left to right (x) and from the first row on (y).
template <Fit F, class Format>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    transpose_fp8_values_kernel(const Format* fp8_values,
                                CastArguments<Format, PerTensor> arguments) {
  __shared__ ByteTile tile;
  constexpr int units_per_row = tile_side / 16;
  constexpr int units = tile_side * units_per_row;
  const TilePlace place(blockIdx.y, blockIdx.x);
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < units; i += quantize_threads) {
    const int row = i / units_per_row;
    const int unit = i % units_per_row;
    const Index column = place.column + unit * 16;
    const bool has_row = F == Fit::whole || place.row + row < arguments.rows;
    const int count = has_row ? count_inside<F>(column, arguments.columns, 16) : 0;
    const Format* source = fp8_values + (place.row + row) * arguments.columns + column;
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if constexpr (F != Fit::any) {
      if (count > 0) bytes = *reinterpret_cast<const uint4*>(source);
    } else {
      std::uint32_t words[4] = {};
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        if (e < count) words[e / 4] |= std::uint32_t{source[e].bits} << (e % 4 * 8);
      }
      bytes = make_uint4(words[0], words[1], words[2], words[3]);
    }
    const int group = row / column_size;
    tile.units[group][row % column_size][unit ^ group] = bytes;
  }
  __syncthreads();
  const ColumnPosition position;
  store_tile_columns<F>(arguments, tile, position, place.row, place.column + position.word * 4,
                        arguments.columns);
}

/// See transpose_fp8_values.
template <class Format>
void transpose_fp8_values_body(
    const QuantizedView<Format, PerTensor, Layout::row_major, Cuda>& fp8_values,
    const QuantizedView<Format, PerTensor, Layout::transposed, Cuda>& target,
    const Context<Cuda>& context) {
  constexpr const char* name = "transpose_fp8_values";
  const Index rows = fp8_values.outer();
  const Index columns = fp8_values.inner();
  require_columns(name, columns);
  require<ShapeError>(rows <= max_cast_rows, name, ": at most ", max_cast_rows,
                      " rows can be transposed at once on Cuda, but there are ", rows);
  const CastArguments<Format, PerTensor> arguments{{},      target, rows,  columns,
                                                   columns, {},     false, false};
  const dim3 tiles(static_cast<unsigned>(ceil_divide(columns, tile_side)),
                   static_cast<unsigned>(ceil_divide(rows, tile_side)));
  const auto run = [&](auto kernel) {
    launch(name, kernel, tiles, quantize_threads, 0, context,
           static_cast<const Format*>(fp8_values.data()), arguments);
  };
  // 16 bytes of a row are read at once, and 16 bytes of a column are written.
  const bool vectors = is_vector_aligned(fp8_values.data()) && is_vector_aligned(target.data()) &&
                       rows % column_size == 0 && columns % 16 == 0;
  if (!vectors) return run(transpose_fp8_values_kernel<Fit::any, Format>);
  if (rows % tile_side != 0 || columns % tile_side != 0) {
    return run(transpose_fp8_values_kernel<Fit::vectors, Format>);
  }
  run(transpose_fp8_values_kernel<Fit::whole, Format>);
}

}  // namespace octavo::detail
