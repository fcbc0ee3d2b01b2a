/// @file
/// Names of precisions on command lines and in build options. CMake also reads this list, which is
/// the only one.
#pragma once

#include <octavo/precision/layerwise.hpp>

#include <cstddef>
#include <string_view>
#include <tuple>

namespace octavo OCTAVO_ABI {

/// A precision and its name.
template <class P>
struct NamedPrecision {
  using Precision = P;
  const char* name;
};

/// A list of named precisions. A tuple would take much longer to compile.
template <class... P>
struct PrecisionList : NamedPrecision<P>... {
  static constexpr std::size_t size = sizeof...(P);

  /// Calls `function` with the `NamedPrecision` of each precision in turn.
  template <class F>
  constexpr void for_each(F&& function) const {
    (function(static_cast<const NamedPrecision<P>&>(*this)), ...);
  }

  /// Returns the index of a name, or `size` if no precision has it.
  [[nodiscard]] constexpr std::size_t index_of(std::string_view name) const {
    std::size_t index = 0;
    static_cast<void>(
        ((static_cast<const NamedPrecision<P>&>(*this).name == name || !++index) || ...));
    return index;
  }

  /// The precision with an index.
  template <std::size_t Index>
  using At = std::tuple_element_t<Index, std::tuple<P...>>;
};
template <class... P>
PrecisionList(NamedPrecision<P>...) -> PrecisionList<P...>;

/// All named precisions, with each name at the end of a line.
inline constexpr PrecisionList named_precisions{
    NamedPrecision<Fp32>{"fp32"},
    NamedPrecision<Bf16>{"bf16"},
    NamedPrecision<Fp8Recipe<Delayed>>{"fp8-delayed"},
    NamedPrecision<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast>>{
        "fp8-delayed-fast-gradients"},
    NamedPrecision<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>>{
        "fp8-delayed-fast-gemms"},
    NamedPrecision<Layerwise<Fp8Recipe<Delayed>, ForAttention<EightBitForward>>>{
        "fp8-delayed-8bit-attention"},
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
    NamedPrecision<
        Layerwise<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast>, Head<Fp8Recipe<Rowwise>>>>{
        "fp8-delayed-fast"},
    NamedPrecision<
        Layerwise<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>,
                  Head<Fp8Recipe<Delayed>>>>{"fp8-delayed-fast-gemms-fp8-head"},
    NamedPrecision<
        Layerwise<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>,
                  Head<Fp8Recipe<Delayed>>, ForAttention<EightBitForward>, ForActivation<E4M3>>>{
        "fp8-delayed-fastest"},
    NamedPrecision<Mxfp8>{"mxfp8"},
    NamedPrecision<Nvfp4>{"nvfp4"},
};

namespace detail {

/// A string as a template argument.
template <std::size_t Size>
struct Word {
  constexpr Word(const char (&word)[Size]) {  // NOLINT: literals convert implicitly
    for (std::size_t i = 0; i < Size; ++i) text[i] = word[i];
  }
  char text[Size]{};
};

}  // namespace detail

/// The precision with a name: `PrecisionNamed<"fp8-delayed">` is `Fp8Recipe<Delayed>`.
template <detail::Word Name>
using PrecisionNamed =
    typename decltype(named_precisions)::template At<named_precisions.index_of(Name.text)>;

}  // namespace octavo
