/// @file
/// Hashes of memory, with which ranks check that they have the same data.
#pragma once

#include <octavo/tensor/tensor.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Computes hash[0] = Σ over the 64-bit words of mixed(word, position), modulo 2^64; the order in
/// which words are read does not matter. A difference in one word always changes the hash;
/// differences in several words change it except with a probability of 2^-64.
/// @param bytes  size a multiple of 16, aligned to 16
/// @param hash   [1], written
/// @note enqueues; does not synchronise
template <Device D>
void hash_bytes(TensorView<const std::byte, 1, D> bytes, TensorView<std::uint64_t, 1, D> hash,
                const Context<D>& context) {
  require<ShapeError>(bytes.size() % 16 == 0,
                      "hash_bytes: the number of bytes must be a multiple of 16, but is ",
                      bytes.size());
  check_shape("hash_bytes", "hash", hash, {1});
  hash_bytes_body(bytes, hash, context);
}

namespace detail {

/// Maps words to words, one to one for each position. Source: the finalizer of splitmix64, Steele
/// et al., OOPSLA 2014, applied to the word plus its position times the golden ratio.
OCTAVO_HOST_DEVICE constexpr std::uint64_t mixed_word(std::uint64_t word, Index place) {
  std::uint64_t z = word + (static_cast<std::uint64_t>(place) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/hash.hpp>
