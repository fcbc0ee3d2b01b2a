/// @file
/// The FP8 forward of attention by its definition in FP64, for tests of both devices.
#pragma once

#include "attention/formula.hpp"

#include <algorithm>
#include <cmath>
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

/// Queries, keys and values as the FP8 forward reads them: for each head, 128 tokens of a sequence
/// share the power of two that brings the largest magnitude to between 224 and 448.
template <class T>
std::vector<double> fp8_values(const AttentionShape& shape, const std::vector<T>& qkv) {
  const Index columns = shape.heads.columns();
  const Index dim = shape.heads.head_dim;
  std::vector<double> result(qkv.size());
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
          result[i] = rounded_to_e4m3(value * scale) / scale;
        });
      }
    }
  }
  return result;
}

/// Output and log-sum-exp of the FP8 forward. Probabilities, relative to the power of two at or
/// above the largest, are rounded to E4M3 after multiplication by 2^8; their sum is not rounded.
/// @param begins  see formula
template <class T>
References fp8_formula(const AttentionShape& shape, const Inputs<T>& inputs,
                       const std::vector<Index>& begins = {}) {
  const auto [heads, kv_heads, dim] = shape.heads;
  const Index columns = shape.heads.columns();
  const double scale = shape.options.scale > 0.0f ? static_cast<double>(shape.options.scale)
                                                  : 1.0 / std::sqrt(static_cast<double>(dim));
  const std::vector<double> qkv = fp8_values(shape, inputs.qkv);
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
        for (Index u = begin; u <= t; ++u) sum += std::exp2(scores[at(u)] - base);
        for (Index u = begin; u <= t; ++u) {
          const double p = rounded_to_e4m3(std::exp2(scores[at(u)] - base)) / sum;
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

/// BF16 rounds the output once. A probability at the middle of two E4M3 values may round to either,
/// which moves its term by 2^-3 of itself. Few do, so the norm of all errors is that of BF16.
constexpr Tolerance fp8_tolerance{0x1.04p-8, 0x1p-3, 0x1p-7};
/// Tensor cores keep 14 bits of the sums of FP8 products, relative to their largest term.
constexpr Tolerance fp8_log_sum_exp_tolerance{0x1p-9, 0x1p-9, 0x1p-11};

}  // namespace octavo::attention_formula
