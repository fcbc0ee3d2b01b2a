/// @file
/// Functions of other_flags.cpp, which is compiled for another processor.
#pragma once

#include "support/matrix.hpp"

namespace other_flags {

/// What the compiler made of this file: SIMD lanes, and functions that depend on its flags.
struct Parts {
  octavo::Index lanes;
  const void* sgemm;
};
Parts parts();

/// x · wᵀ.
support::Matrix<float> product(const support::Matrix<float>& x, const support::Matrix<float>& w);

}  // namespace other_flags
