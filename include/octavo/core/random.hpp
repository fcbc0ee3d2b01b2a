/// @file
/// Counter-based random numbers. A number is a pure function of seed, stream and position, so
/// it does not depend on the order of draws or the number of threads.
#pragma once

#include <octavo/core/array.hpp>
#include <octavo/core/macros.hpp>

#include <cmath>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Identifies one sequence of random numbers: a seed, and the purpose for which the numbers are
/// drawn.
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
};

namespace detail {

/// Returns all 64 bits of a product. nvcc would treat the constants of `philox` as 64-bit factors.
OCTAVO_HOST_DEVICE constexpr std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    std::uint64_t product = 0;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
  }
#endif
  return std::uint64_t{a} * b;
}

}  // namespace detail

/// Returns four random words for `position` of `stream`. Source: Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10).
OCTAVO_HOST_DEVICE constexpr Array<std::uint32_t, 4> philox(RandomStream stream,
                                                            std::uint64_t position) {
  std::uint32_t c0 = static_cast<std::uint32_t>(position);
  std::uint32_t c1 = static_cast<std::uint32_t>(position >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(stream.stream);
  std::uint32_t c3 = static_cast<std::uint32_t>(stream.stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(stream.seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = detail::wide_product(0xD2511F53u, c0);
    const std::uint64_t p1 = detail::wide_product(0xCD9E8D57u, c2);
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// Returns one random word for `position`.
OCTAVO_HOST_DEVICE constexpr std::uint32_t random_word(RandomStream stream,
                                                       std::uint64_t position) {
  return philox(stream, position)[0];
}

/// Maps a random word to a uniform number in [0, 1) with 24 random bits.
OCTAVO_HOST_DEVICE constexpr float uniform(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

/// Returns a standard normal number for `position`, by the Box–Muller transform.
OCTAVO_HOST_DEVICE inline float normal(RandomStream stream, std::uint64_t position) {
  const auto words = philox(stream, position);
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(words[0]) + 0.5) * 0x1p-32));
  const double angle = 6.283185307179586 * (static_cast<double>(words[1]) * 0x1p-32);
  return static_cast<float>(radius * std::cos(angle));
}

}  // namespace octavo
