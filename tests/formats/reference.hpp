/// @file
/// Small floating-point formats by their definition, in double precision: the oracle of these
/// tests. Shares no code with the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace reference {

/// A format with a sign bit above exponent and mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  int largest;   ///< code of the largest finite value
  int infinity;  ///< code of +Inf; 0 if there is none
  bool has_nan;  ///< the codes after `largest` and `infinity` are NaN

  [[nodiscard]] int sign_code() const { return 1 << (exponent_bits + mantissa_bits); }
  [[nodiscard]] int codes() const { return 2 * sign_code(); }
};

inline constexpr Format e4m3{4, 3, 7, 0x7e, 0, true};
inline constexpr Format e5m2{5, 2, 15, 0x7b, 0x7c, true};
inline constexpr Format e2m1{2, 1, 1, 0x7, 0, false};

/// The value that a code stands for.
inline double decode(const Format& format, int code) {
  const int magnitude = code & (format.sign_code() - 1);
  const double sign = (code & format.sign_code()) != 0 ? -1.0 : 1.0;
  if (format.infinity != 0 && magnitude == format.infinity)
    return sign * std::numeric_limits<double>::infinity();
  if (magnitude > format.largest) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  const double significand = std::ldexp(mantissa, -format.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(significand, 1 - format.bias);
  return sign * std::ldexp(1.0 + significand, exponent - format.bias);
}

/// The code of the finite value nearest to `value`, found by trying all; of two equally near the
/// even code. Larger values saturate. NaN becomes the largest positive code.
inline int nearest(const Format& format, double value) {
  if (std::isnan(value)) return format.sign_code() - 1;
  const int sign = std::signbit(value) ? format.sign_code() : 0;
  // A distance from far away would be rounded.
  if (std::abs(value) >= decode(format, format.largest)) return sign | format.largest;
  int best = 0;
  double best_distance = std::abs(value);
  for (int code = 1; code <= format.largest; ++code) {
    const double distance = std::abs(std::abs(value) - decode(format, code));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return sign | best;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace reference
