/// @file
/// The FP8 forward of attention by its definition in FP64, for tests of both devices.
#pragma once

#include "attention/formula.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace octavo::attention_formula {

/// Rounds to the nearest E4M3 value, ties to even: 4 significant bits from 2^-6 on, and multiples
/// of 2^-9 below.
inline double rounded_to_e4m3(double value) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -6);
  const double unit = std::ldexp(1.0, exponent - 3);
  return std::clamp(std::nearbyint(value / unit) * unit, -448.0, 448.0);
}

/// A value of E4M3.
struct Fp8Value {
  std::int64_t steps;  ///< in multiples of 2^-9
  int exponent;        ///< -6 for 0 and subnormal values
};

/// How the products of a score are added.
enum class Fp8Sums {
  exact,
  /// As Hopper's tensor cores do: 32 products and the sum so far lose the bits below 2^-13 of the
  /// largest power of two among them, and then the new sum below 2^-13 of its own. Source:
  /// DeepSeek-V3, arXiv 2412.19437, section 3.5.2.
  hopper
};

/// Returns the sum of products of E4M3 values.
inline double fp8_dot(const Fp8Value* a, const Fp8Value* b, Index count, Fp8Sums sums) {
  constexpr int bits = 18;  // integers are multiples of 2^-18
  std::int64_t sum = 0;
  const auto truncated = [](std::int64_t value, int exponent) {
    const int unit = exponent - 13 + bits;
    if (unit <= 0) return value;
    const std::int64_t kept = std::abs(value) >> unit << unit;
    return value < 0 ? -kept : kept;
  };
  const auto exponent_of = [](std::int64_t value) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::abs(value)))) - 1 - bits;
  };
  for (Index first = 0; first < count; first += 32) {
    const Index end = std::min(first + 32, count);
    int largest = sum == 0 ? -12 : exponent_of(sum);
    for (Index i = first; i < end; ++i) largest = std::max(largest, a[i].exponent + b[i].exponent);
    const bool cuts = sums == Fp8Sums::hopper;
    if (cuts) sum = truncated(sum, largest);
    for (Index i = first; i < end; ++i) {
      const std::int64_t product = a[i].steps * b[i].steps;
      sum += cuts ? truncated(product, largest) : product;
    }
    if (cuts && sum != 0) sum = truncated(sum, exponent_of(sum));
  }
  return std::ldexp(static_cast<double>(sum), -bits);
}

/// Queries, keys and values as the FP8 forward reads them: for each head, 128 tokens of a sequence
/// share the power of two that brings the largest magnitude to between 224 and 448.
struct Fp8Values {
  std::vector<Fp8Value> scaled;
  std::vector<double> units;   ///< the inverse of the scale of each value
  std::vector<double> values;  ///< multiplied by it
};

template <class T>
Fp8Values fp8_values(const AttentionShape& shape, const std::vector<T>& qkv) {
  const Index columns = shape.heads.columns();
  const Index dim = shape.heads.head_dim;
  Fp8Values result{std::vector<Fp8Value>(qkv.size()), std::vector<double>(qkv.size()),
                   std::vector<double>(qkv.size())};
  for (Index s = 0; s < shape.sequences; ++s) {
    for (Index first = 0; first < shape.tokens; first += 128) {
      const Index end = std::min(first + 128, shape.tokens);
      for (Index head = 0; head < columns / dim; ++head) {
        const auto for_each = [&](const auto& body) {
          for (Index t = first; t < end; ++t) {
            for (Index c = 0; c < dim; ++c) {
              body(at((s * shape.tokens + t) * columns + head * dim + c));
            }
          }
        };
        double amax = 0;
        for_each([&](std::size_t i) {
          amax = std::max(amax, std::abs(static_cast<double>(static_cast<float>(qkv[i]))));
        });
        const double scale = amax == 0 ? 1 : std::exp2(std::floor(std::log2(448 / amax)));
        for_each([&](std::size_t i) {
          const auto value = static_cast<double>(static_cast<float>(qkv[i]));
          const double rounded = rounded_to_e4m3(value * scale);
          const int exponent = rounded == 0 ? -6 : std::max(std::ilogb(rounded), -6);
          result.scaled[i] = {std::llround(std::ldexp(rounded, 9)), exponent};
          result.units[i] = 1 / scale;
          result.values[i] = rounded / scale;
        });
      }
    }
  }
  return result;
}

/// Output and log-sum-exp of the FP8 forward. Probabilities, relative to the power of two at or
/// above the largest, are rounded to E4M3 after multiplication by 2^8; their sum is not rounded.
/// @param begins  see formula
/// @param sums    how the products of a score are added
template <class T>
References fp8_formula(const AttentionShape& shape, const Inputs<T>& inputs,
                       const std::vector<Index>& begins = {}, Fp8Sums sums = Fp8Sums::exact) {
  const auto [heads, kv_heads, dim] = shape.heads;
  const Index columns = shape.heads.columns();
  const double scale = shape.options.scale > 0.0f ? static_cast<double>(shape.options.scale)
                                                  : 1.0 / std::sqrt(static_cast<double>(dim));
  const Fp8Values qkv = fp8_values(shape, inputs.qkv);
  References result{Reference(shape.rows() * heads * dim), Reference(0),
                    Reference(shape.rows() * heads)};
  std::vector<double> scores(at(shape.tokens));
  for (Index s = 0; s < shape.sequences; ++s) {
    for (Index head = 0; head < heads; ++head) {
      const Index kv = head / (heads / kv_heads);
      Index document = 0;
      for (Index t = 0; t < shape.tokens; ++t) {
        const Index row = s * shape.tokens + t;
        if (std::find(begins.begin(), begins.end(), row) != begins.end()) document = t;
        const Index window = shape.options.window;
        const Index begin = window > 0 ? std::max(document, t - window + 1) : document;
        const auto key = [&](Index u) {
          return (s * shape.tokens + u) * columns + (heads + kv) * dim;
        };
        double largest = -INFINITY;
        for (Index u = begin; u <= t; ++u) {
          const std::size_t query = at(row * columns + head * dim);
          const std::size_t keys = at(key(u));
          const double score = fp8_dot(&qkv.scaled[query], &qkv.scaled[keys], dim, sums);
          scores[at(u)] = score * qkv.units[query] * qkv.units[keys] * scale / std::log(2.0);
          largest = std::max(largest, scores[at(u)]);
        }
        const double base = std::ceil(largest) - 8;
        double sum = 0;
        double rounded_sum = 0;
        for (Index u = begin; u <= t; ++u) {
          sum += std::exp2(scores[at(u)] - base);
          rounded_sum += rounded_to_e4m3(std::exp2(scores[at(u)] - base));
        }
        for (Index u = begin; u <= t; ++u) {
          const double p = rounded_to_e4m3(std::exp2(scores[at(u)] - base)) / rounded_sum;
          for (Index c = 0; c < dim; ++c) {
            const double v = p * qkv.values[at(key(u) + kv_heads * dim + c)];
            result.output.add((row * heads + head) * dim + c, v, std::abs(v));
          }
        }
        const double log_sum = base * std::log(2.0) + std::log(sum);
        const Index statistic =
            shape.most_documents > 0 ? row * heads + head : (s * heads + head) * shape.tokens + t;
        result.log_sum_exp.add(statistic, log_sum, 1.0 + std::abs(log_sum));
      }
    }
  }
  return result;
}

/// BF16 rounds the output once, by at most 2^-8 of a value and therefore of the norm. A probability
/// at the middle of two E4M3 values may round to either, which moves its term by 2^-3 of itself.
/// Few do if the scores are those of the formula. Tensor cores truncate the 32 products of
/// probabilities with values as well, by up to 2^-13 of the largest: together, less than 2^-10 of
/// the norm.
constexpr Tolerance fp8_tolerance{0x1.04p-8, 0x1p-3, 0x1.4p-8};

/// Returns inputs that rounding does not change. Queries and keys are multiplied by `factor`
/// before.
inline Inputs<Bf16> rounded_inputs(const AttentionShape& shape, float factor) {
  auto inputs = random_inputs<Bf16>(shape, 2);
  const Index columns = shape.heads.columns();
  const Index keys_end = (shape.heads.heads + shape.heads.kv_heads) * shape.heads.head_dim;
  for (Index i = 0; i < shape.rows() * columns; ++i) {
    Bf16& value = inputs.qkv[at(i)];
    if (i % columns < keys_end) value = Bf16(factor * static_cast<float>(value));
  }
  const Fp8Values rounded = fp8_values(shape, inputs.qkv);
  for (std::size_t i = 0; i < inputs.qkv.size(); ++i) {
    inputs.qkv[i] = Bf16(static_cast<float>(rounded.values[i]));
  }
  return inputs;
}

/// Expects gradients that are close to those of unrounded probabilities.
/// @param limit  of the norm of their differences, relative to the norm of the gradients
inline void expect_close_gradients(const AttentionShape& shape, const Inputs<Bf16>& inputs,
                                   const std::vector<Bf16>& actual, double limit) {
  const References plain = formula(shape, inputs);
  double difference = 0;
  double squares = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double expected = plain.qkv_gradient.values[i];
    const double error = static_cast<double>(static_cast<float>(actual[i])) - expected;
    difference += error * error;
    squares += expected * expected;
  }
  EXPECT_LT(std::sqrt(difference / squares), limit);
}

/// Expects that the gradients of each column of values sum to those of the outputs, which they do
/// only if the probabilities of each row that the backward computed sum to 1.
inline void expect_probabilities_sum_to_one(const AttentionShape& shape, const Inputs<Bf16>& inputs,
                                            const std::vector<Bf16>& qkv_gradient) {
  const HeadLayout& heads = shape.heads;
  const auto sum = [&](const std::vector<Bf16>& rows, Index columns, Index column, bool absolute) {
    double total = 0;
    for (Index row = 0; row < shape.rows(); ++row) {
      const auto value = static_cast<double>(static_cast<float>(rows[at(row * columns + column)]));
      total += absolute ? std::abs(value) : value;
    }
    return total;
  };
  const Index group = heads.heads / heads.kv_heads;
  for (Index kv = 0; kv < heads.kv_heads; ++kv) {
    for (Index c = 0; c < heads.head_dim; ++c) {
      double expected = 0;
      double magnitude = 0;
      for (Index head = kv * group; head < (kv + 1) * group; ++head) {
        const Index column = head * heads.head_dim + c;
        expected += sum(inputs.output_gradient, heads.heads * heads.head_dim, column, false);
        magnitude += sum(inputs.output_gradient, heads.heads * heads.head_dim, column, true);
      }
      const Index column = (heads.heads + heads.kv_heads + kv) * heads.head_dim + c;
      EXPECT_NEAR(sum(qkv_gradient, heads.columns(), column, false), expected, 0x1p-7 * magnitude)
          << "column " << c << " of KV head " << kv;
    }
  }
}

}  // namespace octavo::attention_formula
