/// @file
/// The 8-bit forward of attention by its definition in FP64, for tests of both devices.
#pragma once

#include "attention/formula.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
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

/// Multiplies groups of `size` values by the Hadamard matrix whose element (i, j) is −1 to the
/// number of bits that i and j share.
inline std::vector<double> rotated(const std::vector<double>& values, std::size_t size) {
  std::vector<double> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      const double value = values[i / size * size + j];
      result[i] += std::popcount(i % size & j) % 2 == 0 ? value : -value;
    }
  }
  return result;
}

/// The largest power of two that divides a head's dimension.
inline Index rotation_size_of(const AttentionShape& shape) {
  Index size = 1;
  while (shape.heads.head_dim % (2 * size) == 0) size *= 2;
  return size;
}

/// Calls `body(values, head)` with a copy of each fused head of up to 128 tokens of a sequence,
/// which then replaces it.
template <class Body>
void for_each_head_tile(const AttentionShape& shape, std::vector<double>& fused, const Body& body) {
  const Index columns = shape.heads.columns();
  const Index dim = shape.heads.head_dim;
  for (Index s = 0; s < shape.sequences; ++s) {
    for (Index first = 0; first < shape.tokens; first += 128) {
      const Index rows = std::min<Index>(128, shape.tokens - first);
      for (Index head = 0; head < columns / dim; ++head) {
        const auto place = [&](Index i) {
          return at((s * shape.tokens + first + i / dim) * columns + head * dim + i % dim);
        };
        std::vector<double> values(at(rows * dim));
        for (Index i = 0; i < rows * dim; ++i) values[at(i)] = fused[place(i)];
        body(values, head);
        for (Index i = 0; i < rows * dim; ++i) fused[place(i)] = values[at(i)];
      }
    }
  }
}

/// Queries, keys and values as both passes read them. For each head, 128 tokens of a sequence share
/// the power of two that brings the largest magnitude to between 224 and 448 for values, and to
/// between 63.5 and 127 for rotated queries and keys. Queries are then divided by the size of the
/// rotation.
inline std::vector<double> eight_bit_values(const AttentionShape& shape,
                                            const std::vector<Bf16>& qkv) {
  std::vector<double> result;
  for (const Bf16 value : qkv) result.push_back(static_cast<double>(static_cast<float>(value)));
  const Index size = rotation_size_of(shape);
  for_each_head_tile(shape, result, [&](std::vector<double>& values, Index head) {
    const bool rotates = head < shape.heads.heads + shape.heads.kv_heads;
    if (rotates) values = rotated(values, at(size));
    double amax = 0;
    for (const double value : values) amax = std::max(amax, std::abs(value));
    const double scale =
        amax == 0 ? 1 : std::exp2(std::floor(std::log2((rotates ? 127 : 448) / amax)));
    for (double& value : values) {
      value = rotates ? std::nearbyint(value * scale) : rounded_to_e4m3(value * scale);
      value /= scale;
      if (head < shape.heads.heads) value /= static_cast<double>(size);
    }
  });
  return result;
}

/// Output and log-sum-exp of the 8-bit forward. Probabilities, relative to the power of two at or
/// above the largest, are rounded to E4M3 after multiplication by 2^8; their sum is not rounded.
/// @param begins  see formula
inline References eight_bit_formula(const AttentionShape& shape, const Inputs<Bf16>& inputs,
                                    const std::vector<Index>& begins = {}) {
  const auto [heads, kv_heads, dim] = shape.heads;
  const Index columns = shape.heads.columns();
  const double scale = shape.options.scale > 0.0f ? static_cast<double>(shape.options.scale)
                                                  : 1.0 / std::sqrt(static_cast<double>(dim));
  const std::vector<double> qkv = eight_bit_values(shape, inputs.qkv);
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
          double score = 0;
          for (Index c = 0; c < dim; ++c) {
            score += qkv[at(row * columns + head * dim + c)] * qkv[at(key(u) + c)];
          }
          scores[at(u)] = score * scale / std::log(2.0);
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
            const double v = p * qkv[at(key(u) + kv_heads * dim + c)];
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
/// Few do, because scores are exact before they are scaled. Tensor cores truncate sums of 32
/// products of probabilities and values, by up to 2^-13 of the largest. Together, these errors are
/// less than 2^-10 of the norm.
constexpr Tolerance eight_bit_tolerance{0x1.04p-8, 0x1p-3, 0x1.4p-8};

/// Multiplies queries and keys by a factor.
inline void scale_scores(const AttentionShape& shape, float factor, Inputs<Bf16>& inputs) {
  const Index keys_end = (shape.heads.heads + shape.heads.kv_heads) * shape.heads.head_dim;
  for (Index i = 0; i < shape.rows() * shape.heads.columns(); ++i) {
    Bf16& value = inputs.qkv[at(i)];
    if (i % shape.heads.columns() < keys_end) value = Bf16(factor * static_cast<float>(value));
  }
}

/// Returns the inputs of the backward after the 8-bit forward.
inline Inputs<Bf16> rounded_inputs(const AttentionShape& shape, Inputs<Bf16> inputs) {
  const std::vector<double> rounded = eight_bit_values(shape, inputs.qkv);
  for (std::size_t i = 0; i < inputs.qkv.size(); ++i) {
    inputs.qkv[i] = Bf16(static_cast<float>(rounded[i]));
  }
  return inputs;
}

/// Expects gradients that are close to those of unrounded probabilities.
/// @param inputs  of the forward
/// @param limit  of the norm of their differences, relative to the norm of the gradients
inline void expect_close_gradients(const AttentionShape& shape, const Inputs<Bf16>& inputs,
                                   const std::vector<Bf16>& actual, double limit) {
  std::vector<double> gradients = formula(shape, rounded_inputs(shape, inputs)).qkv_gradient.values;
  const Index size = rotation_size_of(shape);
  for_each_head_tile(shape, gradients, [&](std::vector<double>& values, Index head) {
    if (head >= shape.heads.heads + shape.heads.kv_heads) return;
    values = rotated(values, at(size));
    if (head >= shape.heads.heads) return;
    for (double& value : values) value /= static_cast<double>(size);
  });
  double difference = 0;
  double squares = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double expected = gradients[i];
    const double error = static_cast<double>(static_cast<float>(actual[i])) - expected;
    difference += error * error;
    squares += expected * expected;
  }
  const double error = std::sqrt(difference / squares);
  std::printf("gradients differ by %.4f\n", error);
  EXPECT_LT(error, limit);
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

/// Expects NaN in all outputs that depend on an Inf or NaN among queries, keys or values.
/// @param run  `run(shape, inputs)` returns the outputs
template <class Run>
void expect_nan_from_nonfinite_inputs(const Run& run) {
  AttentionShape shape{1, 300, {2, 1, 64}};
  shape.options.forward = AttentionForward::eight_bit;
  constexpr Index token = 140;
  for (const Index head : {1, 2, 3}) {  // the second query head, the key, the value
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      Inputs<Bf16> inputs = random_inputs<Bf16>(shape, 4);
      inputs.qkv[at((token * 4 + head) * 64 + 5)] = Bf16(value);
      const std::vector<Bf16> output = run(shape, inputs);
      for (Index row = 0; row < shape.tokens; ++row) {
        for (Index column = 0; column < 128; ++column) {
          const bool in_tile = row >= 128 && row < 256 && column >= 64;  // shares the query's scale
          const bool depends = head == 1 ? in_tile : row >= token;
          const bool may_depend = head == 1 ? in_tile : row >= 128;
          const auto result = static_cast<float>(output[at(row * 128 + column)]);
          ASSERT_TRUE(depends ? std::isnan(result) : may_depend || std::isfinite(result))
              << result << " at row " << row << ", column " << column << " with " << value
              << " in head " << head;
        }
      }
    }
  }
}

}  // namespace octavo::attention_formula
