// The precisions that programs offer, by their names on the command line.
#pragma once

#include <octavo/precision/precision.hpp>

#include <tuple>

namespace programs {

/// A precision and its name.
template <class P>
struct NamedPrecision {
  using Precision = P;
  const char* name;
};

inline constexpr std::tuple precisions{
    NamedPrecision<octavo::Fp32>{"fp32"},
    NamedPrecision<octavo::Bf16>{"bf16"},
    NamedPrecision<octavo::Fp8Recipe<octavo::Delayed>>{"fp8-delayed"},
    NamedPrecision<octavo::Fp8Recipe<octavo::Tensorwise>>{"fp8-tensorwise"},
    NamedPrecision<octavo::Fp8Recipe<octavo::Blockwise>>{"fp8-blockwise"},
    NamedPrecision<
        octavo::Layerwise<octavo::First<1, octavo::Bf16>, octavo::Fp8Recipe<octavo::Delayed>,
                          octavo::Last<1, octavo::Bf16>>>{"fp8-delayed-bf16-edges"},
    NamedPrecision<octavo::Mxfp8>{"mxfp8"},
};

}  // namespace programs
