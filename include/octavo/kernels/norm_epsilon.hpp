/// @file
/// The check of the number that normalisations add to a mean of squares.
#pragma once

#include <octavo/core/error.hpp>

#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// @throws ConfigError  if it is negative or not finite
inline void check_norm_epsilon(const char* operation, float epsilon) {
  require<ConfigError>(epsilon >= 0 && std::isfinite(epsilon), operation,
                       ": epsilon must be finite and at least 0, but is ", epsilon,
                       "; set a small number, such as 1e-5");
}

}  // namespace octavo OCTAVO_ABI::detail
