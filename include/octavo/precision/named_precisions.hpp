/// @file
/// Names of precisions on command lines and in build options. CMake also reads this list, which is
/// the only one.
#pragma once

#include <octavo/precision/layerwise.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

namespace octavo OCTAVO_ABI {

/// A precision and its name.
template <class P>
struct NamedPrecision {
  using Precision = P;
  const char* name;
};

/// All named precisions, with each name at the end of a line.
inline constexpr std::tuple named_precisions{
    NamedPrecision<Fp32>{"fp32"},
    NamedPrecision<Bf16>{"bf16"},
    NamedPrecision<Fp8Recipe<Delayed>>{"fp8-delayed"},
    NamedPrecision<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast>>{
        "fp8-delayed-fast-gradients"},
    NamedPrecision<Fp8Recipe<Tensorwise>>{"fp8-tensorwise"},
    NamedPrecision<Fp8Recipe<Rowwise>>{"fp8-rowwise"},
    NamedPrecision<Fp8Recipe<Blockwise>>{"fp8-blockwise"},
    NamedPrecision<Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>>{
        "fp8-delayed-bf16-edges"},
    NamedPrecision<Layerwise<First<1, Bf16>, Fp8Recipe<Tensorwise>, Last<1, Bf16>>>{
        "fp8-tensorwise-bf16-edges"},
    NamedPrecision<Layerwise<Fp8Recipe<Delayed>, Head<Fp8Recipe<Rowwise>>>>{"fp8-delayed-fp8-head"},
    NamedPrecision<Layerwise<Fp8Recipe<Tensorwise>, Head<Fp8Recipe<Rowwise>>>>{
        "fp8-tensorwise-fp8-head"},
    NamedPrecision<Layerwise<Fp8Recipe<Rowwise>, Head<Fp8Recipe<Rowwise>>>>{"fp8-rowwise-fp8-head"},
    NamedPrecision<Mxfp8>{"mxfp8"},
    NamedPrecision<Nvfp4>{"nvfp4"},
};

namespace detail {

/// A string as a template argument.
template <std::size_t Size>
struct Word {
  constexpr Word(const char (&word)[Size]) {  // NOLINT: a word is one wherever it stands
    for (std::size_t i = 0; i < Size; ++i) text[i] = word[i];
  }
  char text[Size]{};
};

/// Returns the index of a name in `named_precisions`.
constexpr std::size_t precision_number(std::string_view name) {
  const auto names = std::apply(
      [](const auto&... named) {
        return std::array<std::string_view, sizeof...(named)>{named.name...};
      },
      named_precisions);
  std::size_t number = 0;
  while (number < names.size() && names[number] != name) ++number;
  return number;
}

}  // namespace detail

/// The precision with a name: `PrecisionNamed<"fp8-delayed">` is `Fp8Recipe<Delayed>`.
template <detail::Word Name>
using PrecisionNamed =
    typename std::tuple_element_t<detail::precision_number(Name.text),
                                  std::remove_const_t<decltype(named_precisions)>>::Precision;

}  // namespace octavo
