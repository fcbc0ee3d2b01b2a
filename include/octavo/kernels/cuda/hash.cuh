/// @file
/// Hashes of memory on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/hash.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Maximum number of blocks of hash_bytes: enough to read memory at full bandwidth.
inline constexpr Index hash_blocks = 1056;

/// Each thread reads pairs of words. A template, so that the linker accepts several definitions.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    hash_bytes_kernel(const ulonglong2* pairs, Index count, unsigned long long* hash) {
  const Index stride = Index{gridDim.x} * elementwise_threads;
  unsigned long long sum = 0;
  for (Index i = global_thread(); i < count; i += stride) {
    const ulonglong2 pair = pairs[i];
    sum += mixed_word(pair.x, 2 * i) + mixed_word(pair.y, 2 * i + 1);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(hash, sum);  // integer additions: the order does not matter
}

/// See hash_bytes.
inline void hash_bytes_body(TensorView<const std::byte, 1, Cuda> bytes,
                            TensorView<std::uint64_t, 1, Cuda> hash, const Context<Cuda>& context) {
  fill_zero(hash.data(), hash.bytes(), context);
  const Index pairs = bytes.size() / Index{sizeof(ulonglong2)};
  const Index blocks = std::min(ceil_divide(pairs, elementwise_threads), hash_blocks);
  launch("hash_bytes", hash_bytes_kernel<Cuda>, blocks, elementwise_threads, 0, context,
         reinterpret_cast<const ulonglong2*>(bytes.data()), pairs,
         reinterpret_cast<unsigned long long*>(hash.data()));
}

}  // namespace octavo::detail
