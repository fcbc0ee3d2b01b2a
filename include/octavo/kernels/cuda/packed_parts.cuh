/// @file
/// Packing of gradients as FP8 on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/convert.cuh>
#include <octavo/kernels/cuda/rank_sums.cuh>
#include <octavo/kernels/packed_parts.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Threads that share a block of 128 elements, each with a run of them.
inline constexpr int packed_lanes = static_cast<int>(PackedPart::block) / run_size;
static_assert(packed_lanes == 16);

/// Packs the part of rank blockIdx.y; half a warp packs a block of 128 elements at a time.
template <class G>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    pack_parts_kernel(const G* parts, Index elements, std::byte* packed, Index part_bytes) {
  const G* source = parts + Index{blockIdx.y} * elements;
  std::byte* part = packed + Index{blockIdx.y} * part_bytes;
  auto* inverses = reinterpret_cast<float*>(part + elements);
  const Index stride = Index{gridDim.x} * elementwise_threads;
  const Index runs = elements / run_size;
  // Whole warps iterate together: both groups of 16 threads take part or neither does.
  for (Index run = global_thread(); run < round_up(runs, 32); run += stride) {
    const Floats values = load_floats<true>(source + run * run_size, run < runs ? run_size : 0);
    std::uint32_t amax = 0;
#pragma unroll
    for (int e = 0; e < run_size; ++e) {
      amax = max(amax, __float_as_uint(values.values[e]) & 0x7fffffffu);
    }
#pragma unroll
    for (int distance = packed_lanes / 2; distance > 0; distance /= 2) {
      amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, distance));
    }
    if (run >= runs) continue;
    float inverse = 0;
    const float scale = packed_scale(amax, inverse);
    Run<E4M3> bytes{};
#pragma unroll
    for (int e = 0; e < run_size; e += 2) {
      const float2 pair = make_float2(values.values[e] * scale, values.values[e + 1] * scale);
      const std::uint32_t two = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      bytes.words[e / 4] |= two << (e % 4 * 8);
    }
    store_run<true>(reinterpret_cast<E4M3*>(part) + run * run_size, run_size, bytes);
    if (run % packed_lanes == 0) inverses[run / packed_lanes] = inverse;
  }
  // The padding after the last scale.
  const Index used = elements + elements / PackedPart::block * Index{sizeof(float)};
  const Index rest = used + global_thread();
  if (rest < part_bytes) part[rest] = std::byte{0};
}

/// See pack_parts.
template <class G>
void pack_parts_body(TensorView<const G, 2, Cuda> parts, TensorView<std::byte, 2, Cuda> packed,
                     const Context<Cuda>& context) {
  const Index ranks = parts.extent(0);
  const Index elements = parts.extent(1);
  if (ranks == 0 || elements == 0) return;
  require<ShapeError>(is_vector_aligned(parts.data()) && is_vector_aligned(packed.data()),
                      "pack_parts: parts and packed parts must begin at multiples of 16 bytes");
  const Index blocks = std::min(ceil_divide(elements, elementwise_threads * run_size),
                                std::max(Index{1}, sum_parts_blocks / ranks));
  launch("pack_parts", pack_parts_kernel<G>,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(ranks)), elementwise_threads, 0,
         context, parts.data(), elements, packed.data(), packed.extent(1));
}

/// Each thread sums a run of adjacent elements at a time.
template <class Sum>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    sum_packed_parts_kernel(RankParts<std::byte, Cuda> packed, Index elements, Sum* sum,
                            bool accumulate) {
  const Index stride = Index{gridDim.x} * elementwise_threads;
  const Index runs = elements / run_size;
  for (Index run = global_thread(); run < runs; run += stride) {
    Floats total{};
    if (accumulate) total = load_floats<true>(sum + run * run_size, run_size);
    for (Index rank = 0; rank < packed.ranks(); ++rank) {
      const std::byte* part = packed.of(rank);
      const uint2 bytes = reinterpret_cast<const uint2*>(part)[run];
      const float inverse = reinterpret_cast<const float*>(part + elements)[run / packed_lanes];
#pragma unroll
      for (int e = 0; e < run_size; e += 2) {
        const std::uint32_t word = e < 4 ? bytes.x : bytes.y;
        const auto two = static_cast<__nv_fp8x2_storage_t>(word >> (e % 4 * 8));
        const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
        total.values[e] = fmaf(pair.x, inverse, total.values[e]);
        total.values[e + 1] = fmaf(pair.y, inverse, total.values[e + 1]);
      }
    }
    store_floats<true>(sum + run * run_size, run_size, total);
  }
}

/// See sum_packed_parts.
template <class Sum>
void sum_packed_parts_body(const RankParts<std::byte, Cuda>& packed, TensorView<Sum, 1, Cuda> sum,
                           bool accumulate, const Context<Cuda>& context) {
  require<ShapeError>(
      is_vector_aligned(packed.received.data()) && is_vector_aligned(packed.own) &&
          is_vector_aligned(sum.data()),
      "sum_packed_parts: packed parts and the sum must begin at multiples of 16 bytes");
  const Index elements = sum.size();
  const Index blocks =
      std::min(ceil_divide(elements, elementwise_threads * run_size), sum_parts_blocks);
  launch("sum_packed_parts", sum_packed_parts_kernel<Sum>, blocks, elementwise_threads, 0, context,
         packed, elements, sum.data(), accumulate);
}

}  // namespace octavo::detail
