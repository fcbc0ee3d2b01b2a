/// @file
/// Quantisation by its definition, in double precision and element by element: the oracle of the
/// tests of `quantize`. Shares no code with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "formats/reference.hpp"

namespace reference {

/// How scales are found.
enum class Recipe { given, current, current_power_of_two, mx };

/// What one scale covers: a block, or the whole matrix where `rows` is 0.
struct Block {
  int rows = 0;
  int columns = 0;
};

/// A quantised matrix, with the factors of the block of each element.
struct Quantized {
  std::vector<int> codes;
  std::vector<double> scale;          ///< the value is multiplied by it before the cast
  std::vector<double> scale_inverse;  ///< turns the code back into the value
  unsigned long saturated = 0;        ///< cut to the largest value; a NaN is beyond everything
  unsigned long flushed = 0;          ///< not zero before and zero after
};

struct BlockScale {
  double scale;
  double scale_inverse;
};

inline double largest_of(const Format& format) { return decode(format, format.largest); }

/// Whether a value would round to one beyond the largest, if that were not the last: the next lies
/// as far above it as the one before lies below. In the middle, the even code is taken.
inline bool is_cut(const Format& format, double value) {
  const double step = largest_of(format) - decode(format, format.largest - 1);
  const double middle = largest_of(format) + step / 2;
  const bool largest_is_even = format.largest % 2 == 0;
  return !(std::abs(value) < middle || (std::abs(value) == middle && largest_is_even));
}

/// Codes of the nearest values: `nearest`, between the two neighbours in a sorted table.
class NearestCode {
 public:
  explicit NearestCode(const Format& format) : format_(format) {
    for (int code = 0; code <= format.largest; ++code) magnitudes_.push_back(decode(format, code));
  }

  [[nodiscard]] int operator()(double value) const {
    if (std::isnan(value)) return format_.sign_code() - 1;
    const int sign = std::signbit(value) ? format_.sign_code() : 0;
    const double magnitude = std::abs(value);
    const auto above = std::lower_bound(magnitudes_.begin(), magnitudes_.end(), magnitude);
    if (above == magnitudes_.end()) return sign | format_.largest;
    const int upper = static_cast<int>(above - magnitudes_.begin());
    if (upper == 0) return sign;
    const double to_upper = *above - magnitude;
    const double to_lower = magnitude - *(above - 1);
    const bool up = to_upper < to_lower || (to_upper == to_lower && upper % 2 == 0);
    return sign | (up ? upper : upper - 1);
  }

 private:
  Format format_;
  std::vector<double> magnitudes_;
};

/// The largest power of two that is at most `value`.
inline double power_of_two_below(double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, exponent - 1);
}

/// The scale of a block with this amax, by numerics of Transformer Engine's current scaling.
inline BlockScale current_scale(const Format& format, double amax, bool power_of_two) {
  if (!(amax > 0) || std::isinf(amax)) return {1.0, 1.0};
  const auto largest_float = static_cast<double>(std::numeric_limits<float>::max());
  double scale = static_cast<float>(std::min(largest_of(format) / amax, largest_float));
  if (power_of_two) scale = power_of_two_below(scale);
  return {scale, static_cast<float>(1.0 / scale)};
}

/// The scale of an MX block: amax / 448 rounded up to a power of two that E8M0 can hold.
inline BlockScale mx_scale(const Format& format, double amax) {
  if (std::isnan(amax)) return {amax, amax};
  const float inverse_of_largest = static_cast<float>(1.0 / largest_of(format));
  const double wanted = static_cast<float>(amax * static_cast<double>(inverse_of_largest));
  int exponent = -127;
  while (exponent < 127 && std::ldexp(1.0, exponent) < wanted) ++exponent;
  return {std::ldexp(1.0, -exponent), std::ldexp(1.0, exponent)};
}

/// max |x|; NaN counts as larger than all.
inline double amax_of(const std::vector<double>& values) {
  double amax = 0.0;
  for (const double value : values) {
    if (std::isnan(value) || std::isnan(amax)) return std::numeric_limits<double>::quiet_NaN();
    amax = std::max(amax, std::abs(value));
  }
  return amax;
}

/// Quantises `values`, a matrix of `rows` × `columns`.
/// @param given  the scale, for `Recipe::given`
inline Quantized quantize(const std::vector<double>& values, int rows, int columns,
                          const Format& format, Recipe recipe, Block block, double given = 1.0) {
  if (block.rows == 0) block = {rows, columns};
  const NearestCode nearest_code(format);
  Quantized result;
  result.codes.resize(values.size());
  result.scale.resize(values.size());
  result.scale_inverse.resize(values.size());
  const auto at = [width = static_cast<std::size_t>(columns)](int r, int c) {
    return static_cast<std::size_t>(r) * width + static_cast<std::size_t>(c);
  };
  for (int row0 = 0; row0 < rows; row0 += block.rows) {
    for (int column0 = 0; column0 < columns; column0 += block.columns) {
      const int row1 = std::min(row0 + block.rows, rows);
      const int column1 = std::min(column0 + block.columns, columns);
      std::vector<double> inside;
      for (int r = row0; r < row1; ++r) {
        for (int c = column0; c < column1; ++c) inside.push_back(values[at(r, c)]);
      }
      const double amax = amax_of(inside);
      BlockScale scale{given, static_cast<float>(1.0 / given)};
      if (recipe == Recipe::mx) scale = mx_scale(format, amax);
      if (recipe == Recipe::current) scale = current_scale(format, amax, false);
      if (recipe == Recipe::current_power_of_two) scale = current_scale(format, amax, true);
      for (int r = row0; r < row1; ++r) {
        for (int c = column0; c < column1; ++c) {
          const double value = values[at(r, c)];
          // The product is exact in double and rounded once, as FP32 arithmetic rounds it.
          const double scaled = static_cast<float>(value * scale.scale);
          const int code = nearest_code(scaled);
          result.codes[at(r, c)] = code;
          result.scale[at(r, c)] = scale.scale;
          result.scale_inverse[at(r, c)] = scale.scale_inverse;
          result.saturated += is_cut(format, scaled) ? 1 : 0;
          result.flushed += value != 0.0 && code % format.sign_code() == 0 ? 1 : 0;
        }
      }
    }
  }
  return result;
}

/// Where the layouts of cuBLASLt put the scale of an element.
inline int scale_position(Recipe recipe, Block block, int row, int column, int outer, int inner) {
  if (block.rows == 0) return 0;
  const int k_block = column / block.columns;
  const int k_blocks = (inner + block.columns - 1) / block.columns;
  if (recipe == Recipe::mx) return row * k_blocks + k_block;
  if (block.rows == 1) return k_block * outer + row;
  return row / block.rows * ((k_blocks + 3) / 4 * 4) + k_block;
}

}  // namespace reference
