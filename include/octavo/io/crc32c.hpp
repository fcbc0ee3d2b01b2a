/// @file
/// CRC-32C, the checksum of files. It detects every single flipped bit and every burst of up to 32
/// bits.
#pragma once

#include <octavo/core/version.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace octavo OCTAVO_ABI {

namespace detail {

/// `crc32c_tables[k][b]`: the register after byte b and k zero bytes, starting from 0.
using Crc32cTables = std::array<std::array<std::uint32_t, 256>, 8>;
inline constexpr Crc32cTables crc32c_tables = [] {
  constexpr std::uint32_t polynomial = 0x82f63b78;  // Castagnoli's, lowest bit first
  Crc32cTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? polynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 1; k < tables.size(); ++k) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

/// Updates the register with bytes, on any processor. Words are read in the machine's byte order,
/// little-endian like all file formats here.
/// Source: Kounavis and Berry 2005, "A systematic approach to building high performance,
/// software-based, CRC generators".
inline std::uint32_t crc32c_by_tables(std::uint32_t value, std::span<const std::byte> bytes) {
  const Crc32cTables& tables = crc32c_tables;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    word ^= value;
    value = 0;
    for (std::size_t k = 0; k < 8; ++k) value ^= tables[7 - k][word >> (8 * k) & 0xff];
  }
  for (const std::byte byte : bytes) {
    value = value >> 8 ^ tables[0][(value ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return value;
}

#if defined(__x86_64__) && defined(__GNUC__)
/// Whether the processor has a CRC-32C instruction.
inline bool has_crc32c_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

/// Same as `crc32c_by_tables`, several times faster, using the instruction.
inline std::uint32_t crc32c_by_instruction(std::uint32_t value, std::span<const std::byte> bytes) {
  std::uint64_t wide = value;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    __asm__("crc32q %1, %0" : "+r"(wide) : "rm"(word));
  }
  return crc32c_by_tables(static_cast<std::uint32_t>(wide), bytes);
}
#else
inline bool has_crc32c_instruction() { return false; }
inline std::uint32_t crc32c_by_instruction(std::uint32_t value, std::span<const std::byte> bytes) {
  return crc32c_by_tables(value, bytes);
}
#endif

}  // namespace detail

/// Returns the CRC-32C of bytes, for example 0xe3069283 for "123456789". The same on every
/// processor.
/// @param before  checksum of the preceding bytes; 0 if there are none
/// Source: RFC 3720, B.4.
[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes,
                                          std::uint32_t before = 0) {
  static const bool has_instruction = detail::has_crc32c_instruction();
  return ~(has_instruction ? detail::crc32c_by_instruction(~before, bytes)
                           : detail::crc32c_by_tables(~before, bytes));
}

/// Returns the CRC-32C of two consecutive parts from the checksums of both.
/// @param bytes  length of the second part
[[nodiscard]] inline std::uint32_t combine_crc32c(std::uint32_t first, std::uint32_t second,
                                                  std::uint64_t bytes) {
  // A zero byte changes the register by a linear map over GF(2): a matrix, which is squared for
  // twice as many bytes.
  using Matrix = std::array<std::uint32_t, 32>;
  const auto times = [](const Matrix& matrix, std::uint32_t value) {
    std::uint32_t sum = 0;
    for (std::size_t bit = 0; bit < 32; ++bit) sum ^= (value >> bit & 1) != 0 ? matrix[bit] : 0;
    return sum;
  };
  Matrix matrix{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    const std::uint32_t value = std::uint32_t{1} << bit;
    matrix[bit] = value >> 8 ^ detail::crc32c_tables[0][value & 0xff];
  }
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) first = times(matrix, first);
    Matrix square{};
    for (std::size_t bit = 0; bit < 32; ++bit) square[bit] = times(matrix, matrix[bit]);
    matrix = square;
  }
  return first ^ second;
}

}  // namespace octavo
