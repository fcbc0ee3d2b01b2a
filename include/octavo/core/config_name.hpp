/// @file
/// Names as parts of template arguments.
#pragma once

#include <octavo/core/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns up to eight characters of a name, from `begin` on, the first in the lowest byte.
template <std::size_t N>
constexpr std::uint64_t name_word(const char (&name)[N], std::size_t begin) {
  std::uint64_t word = 0;
  for (std::size_t i = begin; i < N && i < begin + 8; ++i) {
    word |= std::uint64_t{static_cast<unsigned char>(name[i])} << (8 * (i - begin));
  }
  return word;
}

}  // namespace detail

/// A name that can be part of a template argument: at most 31 characters, in words of eight. The
/// words are separate members, because nvcc converts template arguments back to source code and
/// does not support arrays there.
struct ConfigName {
  std::uint64_t word0 = 0;
  std::uint64_t word1 = 0;
  std::uint64_t word2 = 0;
  std::uint64_t word3 = 0;

  constexpr ConfigName(std::uint64_t w0, std::uint64_t w1, std::uint64_t w2, std::uint64_t w3)
      : word0(w0), word1(w1), word2(w2), word3(w3) {}

  template <std::size_t N>
  constexpr ConfigName(const char (&name)[N])  // NOLINT: literals convert implicitly
      : word0(detail::name_word(name, 0)),
        word1(detail::name_word(name, 8)),
        word2(detail::name_word(name, 16)),
        word3(detail::name_word(name, 24)) {
    static_assert(N <= 32,
                  "ConfigName: a preset's name must have at most 31 characters; shorten it");
  }

  [[nodiscard]] std::string text() const {
    std::string characters;
    for (const std::uint64_t eight : {word0, word1, word2, word3}) {
      for (int i = 0; i < 8; ++i) {
        const auto character = static_cast<char>(eight >> (8 * i) & 0xff);
        if (character != 0) characters.push_back(character);
      }
    }
    return characters;
  }
};

}  // namespace octavo
