/// @file
/// Hashes of memory on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/hash.hpp>

#include <atomic>
#include <cstring>

namespace octavo OCTAVO_ABI::detail {

/// See hash_bytes.
inline void hash_bytes_body(TensorView<const std::byte, 1, Cpu> bytes,
                            TensorView<std::uint64_t, 1, Cpu> hash, const Context<Cpu>& context) {
  constexpr Index word_bytes = sizeof(std::uint64_t);
  *hash.data() = 0;
  parallel_pieces(bytes.size() / word_bytes, context, [&](Index begin, Index end) {
    std::uint64_t sum = 0;
    for (Index i = begin; i < end; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i * word_bytes, sizeof word);
      sum += mixed_word(word, i);
    }
    std::atomic_ref(*hash.data()).fetch_add(sum, std::memory_order_relaxed);
  });
}

}  // namespace octavo::detail
