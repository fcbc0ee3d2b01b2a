/// @file
/// An array that kernels may read.
#pragma once

#include <octavo/core/macros.hpp>

#include <cstddef>

namespace octavo OCTAVO_ABI {

/// A `std::array` whose elements kernels can also read: nvcc lets kernels call the members of
/// `std::array` only with --expt-relaxed-constexpr, which users should not have to pass.
template <class T, std::size_t Size>
struct Array {
  T elements[Size];

  OCTAVO_HOST_DEVICE constexpr T& operator[](std::size_t i) { return elements[i]; }
  OCTAVO_HOST_DEVICE constexpr const T& operator[](std::size_t i) const { return elements[i]; }
  OCTAVO_HOST_DEVICE constexpr const T* begin() const { return elements; }
  OCTAVO_HOST_DEVICE constexpr const T* end() const { return elements + Size; }
  friend constexpr bool operator==(const Array&, const Array&) = default;
};

}  // namespace octavo
