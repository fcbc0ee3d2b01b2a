/// @file
/// Scales of MX and NVFP4 blocks in the order that cuBLASLt reads, and scale factors of GEMMs,
/// whose values are known only on the GPU.
#pragma once

#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/launch.cuh>
#include <octavo/tensor/quantized_view.hpp>
#include <octavo/tensor/swizzled_scales.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Whether cuBLASLt reads such scales in tiles: those of MX and NVFP4.
template <class Granularity>
inline constexpr bool has_swizzled_scales =
    Granularity::block_columns != 0 && !std::is_same_v<typename Granularity::Scale, float>;

/// Copies scales into the tiles of `swizzled_scale_index`; padding is zero. All rows of a square
/// receive its scale. One thread per scale of the tiles.
/// @param scales    those of a [rows, inner] matrix
/// @param swizzled  [swizzled_scale_count(rows, blocks of a row)]
template <class Granularity, class Scale>
OCTAVO_KERNEL void swizzle_scales_kernel(const Scale* scales, Scale* swizzled, Index rows,
                                         Index inner) {
  constexpr Index columns = Granularity::block_columns;
  const Index blocks = ceil_divide(inner, columns);
  const Index i = global_thread();
  if (i >= swizzled_scale_count(rows, blocks)) return;
  const Index width = round_up(blocks, scale_tile_columns);
  const Index row = i / width;
  const Index block = i % width;
  const bool exists = row < rows && block < blocks;
  swizzled[swizzled_scale_index(row, block, blocks)] =
      exists ? scales[scale_index<Granularity>(row, block * columns, rows, inner)]
             : Scale::from_bits(0);
}

/// Enqueues the copy of an operand's scales; returns their number with padding.
template <class Format, class Granularity, Layout L>
Index swizzle_scales(QuantizedView<Format, Granularity, L, Cuda> operand,
                     typename Granularity::Scale* swizzled, const Context<Cuda>& context) {
  const Index blocks = ceil_divide(operand.inner(), Index{Granularity::block_columns});
  const Index count = swizzled_scale_count(operand.outer(), blocks);
  launch("swizzle_scales", swizzle_scales_kernel<Granularity, typename Granularity::Scale>,
         ceil_divide(count, Index{elementwise_threads}), elementwise_threads, 0, context,
         operand.scale_inverses(), swizzled, operand.outer(), operand.inner());
  return count;
}

/// Writes the factors of a GEMM whose operands have tensor scales.
struct SetGemmFactors {
  const float* a;  ///< scale of the tensor, or null
  const float* b;
  bool adds;
  GemmFactors* factors;

  __device__ void operator()(Index) const {
    factors->product = (a == nullptr ? 1.0f : *a) * (b == nullptr ? 1.0f : *b);
    factors->addend = adds ? 1.0f : 0.0f;
  }
};

/// Returns where the scale of an operand's tensor is; null if it has none.
template <class Format, class Granularity, Layout L>
const float* tensor_scale_address(QuantizedView<Format, Granularity, L, Cuda> operand) {
  if constexpr (Granularity::block_columns == 0 || has_tensor_scale<Granularity>) {
    return reinterpret_cast<const float*>(operand.scale_inverses());
  } else {
    return nullptr;
  }
}

/// Enqueues the computation of a GEMM's factors from the scales of the tensors.
/// @param factors  in device memory
template <class ViewA, class ViewB>
void set_gemm_factors(const ViewA& a, const ViewB& b, bool adds, GemmFactors* factors,
                      const Context<Cuda>& context) {
  for_each_index("matmul", 1, context,
                 SetGemmFactors{tensor_scale_address(a), tensor_scale_address(b), adds, factors});
}

}  // namespace octavo::detail
