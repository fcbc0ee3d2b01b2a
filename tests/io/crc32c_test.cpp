// Checksums of files, against published values and against the definition, bit by bit.
#include <octavo/io/crc32c.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace crc32c_test {

using octavo::crc32c;

std::vector<std::byte> bytes_of(const std::vector<int>& values) {
  std::vector<std::byte> bytes;
  bytes.reserve(values.size());
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, HasThePublishedValues) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of(std::vector<int>(32, 0))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::vector<int>(32, 0xff))), 0x62a8ab43u);
  std::vector<int> ascending(32);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x46dd794eu);
  std::reverse(ascending.begin(), ascending.end());
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x113fdb5cu);
}

/// The remainder by the polynomial, a bit at a time, highest power first.
std::uint32_t by_division(const std::vector<std::byte>& bytes) {
  constexpr std::uint32_t polynomial = 0x1edc6f41;
  const auto reversed = [](std::uint32_t value, int bits) {
    std::uint32_t result = 0;
    for (int i = 0; i < bits; ++i) result = result << 1 | (value >> i & 1);
    return result;
  };
  std::uint32_t value = ~0u;
  for (const std::byte byte : bytes) {
    value ^= reversed(std::to_integer<std::uint32_t>(byte), 8) << 24;
    for (int bit = 0; bit < 8; ++bit) {
      const bool divides = value >> 31 != 0;
      value = value << 1 ^ (divides ? polynomial : 0);
    }
  }
  return ~reversed(value, 32);
}

TEST(Crc32c, MatchesPolynomialDivision) {
  std::mt19937 random(3);
  for (std::size_t size = 0; size < 70; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const std::uint32_t expected = by_division(bytes);
    EXPECT_EQ(crc32c(bytes), expected) << size;
    EXPECT_EQ(~octavo::detail::crc32c_by_tables(~0u, bytes), expected) << size;
    if (octavo::detail::has_crc32c_instruction()) {
      EXPECT_EQ(~octavo::detail::crc32c_by_instruction(~0u, bytes), expected) << size;
    }
    for (std::size_t cut = 0; cut <= size; cut += 5) {
      const std::span<const std::byte> all = bytes;
      EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), expected) << size << ' ' << cut;
    }
  }
}

TEST(Crc32c, CombinedPartsMatchWhole) {
  std::mt19937 random(4);
  std::vector<std::byte> bytes(3000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::span<const std::byte> all = bytes;
  for (const std::size_t cut : {0u, 1u, 7u, 1024u, 2047u, 2999u, 3000u}) {
    EXPECT_EQ(
        octavo::combine_crc32c(crc32c(all.first(cut)), crc32c(all.subspan(cut)), all.size() - cut),
        by_division(bytes))
        << cut;
  }
}

}  // namespace crc32c_test
