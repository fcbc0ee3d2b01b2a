/// @file
/// Scales of MX blocks in the order that cuBLASLt reads.
#pragma once

#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/kernels/cuda/launch.cuh>
#include <octavo/tensor/quantized_view.hpp>
#include <octavo/tensor/swizzled_scales.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Copies row-major scales into the tiles of `swizzled_scale_index`; padding is zero. One thread
/// per scale of the tiles.
/// @param scales    [rows, blocks]
/// @param swizzled  [swizzled_scale_count(rows, blocks)]
template <class Scale>
OCTAVO_KERNEL void swizzle_scales_kernel(const Scale* scales, Scale* swizzled, Index rows,
                                         Index blocks) {
  const Index i = global_thread();
  if (i >= swizzled_scale_count(rows, blocks)) return;
  const Index width = round_up(blocks, scale_tile_columns);
  const Index row = i / width;
  const Index block = i % width;
  const bool exists = row < rows && block < blocks;
  swizzled[swizzled_scale_index(row, block, blocks)] =
      exists ? scales[row * blocks + block] : Scale::from_bits(0);
}

/// Enqueues that copy for an operand with E8M0 scales.
template <class Format, int Columns, Layout L>
void swizzle_scales(QuantizedView<Format, PerBlock<1, Columns, E8M0>, L, Cuda> operand,
                    E8M0* swizzled, const Context<Cuda>& context) {
  const Index blocks = ceil_divide(operand.inner(), Index{Columns});
  const Index count = swizzled_scale_count(operand.outer(), blocks);
  launch("swizzle_scales", swizzle_scales_kernel<E8M0>,
         ceil_divide(count, Index{elementwise_threads}), elementwise_threads, 0, context,
         operand.scale_inverses(), swizzled, operand.outer(), blocks);
}

}  // namespace octavo::detail
