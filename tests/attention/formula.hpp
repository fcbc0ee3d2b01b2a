/// @file
/// Attention by its formula in FP64, for tests of both devices.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/formats/bf16.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace octavo::attention_formula {

inline std::size_t at(Index i) { return static_cast<std::size_t>(i); }

template <class T>
struct Inputs {
  std::vector<T> qkv, output_gradient;
};

/// Queries and keys are large enough for probabilities to differ by orders of magnitude.
template <class T>
Inputs<T> random_inputs(const AttentionShape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Inputs<T> inputs;
  for (Index i = 0; i < shape.rows() * shape.heads.columns(); ++i) {
    inputs.qkv.push_back(T(1.5f * normal(random)));
  }
  for (Index i = 0; i < shape.rows() * shape.heads.heads * shape.heads.head_dim; ++i) {
    inputs.output_gradient.push_back(T(normal(random)));
  }
  return inputs;
}

template <class T>
struct Results {
  std::vector<T> output, qkv_gradient;
  std::vector<float> log_sum_exp;

  bool operator==(const Results&) const = default;
};

/// FP64 values, and for each the sum of the magnitudes of its terms, to which rounding is in
/// proportion.
struct Reference {
  std::vector<double> values, magnitudes;

  explicit Reference(Index count) : values(at(count)), magnitudes(at(count)) {}
  void add(Index place, double value, double magnitude) {
    values[at(place)] += value;
    magnitudes[at(place)] += magnitude;
  }
  /// Adds factor · row, whose terms have magnitudes of magnitude · |row|.
  void add_row(Index place, double factor, double magnitude, const double* row, Index columns) {
    double* value = values.data() + place;
    double* sum = magnitudes.data() + place;
    for (Index c = 0; c < columns; ++c) {
      value[c] += factor * row[c];
      sum[c] += magnitude * std::abs(row[c]);
    }
  }
};

struct References {
  Reference output, qkv_gradient, log_sum_exp;
};

/// softmax(scale · Q · Kᵀ) · V and its gradient, written as sums over pairs of tokens of a document
/// and a window.
/// @param begins  of documents, where the shape has some; log-sum-exps then are [rows, heads]
template <class T>
References formula(const AttentionShape& shape, const Inputs<T>& inputs,
                   const std::vector<Index>& begins = {}) {
  const auto [heads, kv_heads, dim] = shape.heads;
  const Index columns = shape.heads.columns();
  const Index out_columns = heads * dim;
  const Index window = shape.options.window;
  const double scale = shape.options.scale > 0.0f ? static_cast<double>(shape.options.scale)
                                                  : 1.0 / std::sqrt(static_cast<double>(dim));
  References result{Reference(shape.rows() * out_columns), Reference(shape.rows() * columns),
                    Reference(shape.rows() * heads)};
  const auto converted = [](const std::vector<T>& values) {
    std::vector<double> numbers;
    for (const T v : values) numbers.push_back(static_cast<double>(static_cast<float>(v)));
    return numbers;
  };
  const std::vector<double> qkv = converted(inputs.qkv);
  const std::vector<double> gradients = converted(inputs.output_gradient);
  const auto dot = [count = dim](const double* a, const double* b) {
    double sum = 0;
    for (Index c = 0; c < count; ++c) sum += a[c] * b[c];
    return sum;
  };
  std::vector<double> p(at(shape.tokens));
  for (Index s = 0; s < shape.sequences; ++s) {
    for (Index head = 0; head < heads; ++head) {
      const Index kv = head / (heads / kv_heads);
      Index document = 0;  // its first token
      for (Index t = 0; t < shape.tokens; ++t) {
        if (std::find(begins.begin(), begins.end(), s * shape.tokens + t) != begins.end())
          document = t;
        // Token u is visible if t - window < u.
        const Index begin = window > 0 ? std::max(document, t - window + 1) : document;
        const Index q = (s * shape.tokens + t) * columns + head * dim;
        const Index o = (s * shape.tokens + t) * out_columns + head * dim;
        const auto key = [&](Index u) {
          return (s * shape.tokens + u) * columns + (heads + kv) * dim;
        };
        const Index to_value = kv_heads * dim;
        const double* const query = qkv.data() + q;
        const double* const gradient = gradients.data() + o;
        const auto row = [&](Index i) { return qkv.data() + i; };
        double largest = -INFINITY;
        for (Index u = begin; u <= t; ++u) {
          p[at(u)] = dot(query, row(key(u))) * scale;
          largest = std::max(largest, p[at(u)]);
        }
        double sum = 0;
        for (Index u = begin; u <= t; ++u) sum += std::exp(p[at(u)] - largest);
        const double log_sum = largest + std::log(sum);
        const Index statistic = shape.most_documents > 0 ? (s * shape.tokens + t) * heads + head
                                                         : (s * heads + head) * shape.tokens + t;
        result.log_sum_exp.add(statistic, log_sum, 1.0 + std::abs(log_sum));
        double delta = 0;
        double delta_magnitude = 0;
        for (Index u = begin; u <= t; ++u) {
          p[at(u)] = std::exp(p[at(u)] - log_sum);
          result.output.add_row(o, p[at(u)], p[at(u)], row(key(u) + to_value), dim);
        }
        for (Index c = 0; c < dim; ++c) {
          delta += result.output.values[at(o + c)] * gradient[c];
          // The output carries the rounding of every probability that made it.
          delta_magnitude += result.output.magnitudes[at(o + c)] * std::abs(gradient[c]);
        }
        for (Index u = begin; u <= t; ++u) {
          const double dp = dot(gradient, row(key(u) + to_value));
          const double ds = p[at(u)] * (dp - delta) * scale;
          const double ds_magnitude = p[at(u)] * (std::abs(dp) + delta_magnitude) * scale;
          result.qkv_gradient.add_row(q, ds, ds_magnitude, row(key(u)), dim);
          result.qkv_gradient.add_row(key(u), ds, ds_magnitude, query, dim);
          result.qkv_gradient.add_row(key(u) + to_value, p[at(u)], p[at(u)], gradient, dim);
        }
      }
    }
  }
  return result;
}

/// What may differ: in each value, and in the norm of all.
struct Tolerance {
  double value;      ///< of the value
  double magnitude;  ///< of the sum of its terms' magnitudes
  double norm;       ///< of the norm of all values
};
/// BF16 has 8 significant bits: it rounds with a relative error of up to 2^-8. Results are rounded
/// once. Of the terms of a score's gradient, p · (dp − delta): delta is a sum over an output that
/// was rounded itself and was made from rounded probabilities, and the difference is rounded once
/// more.
constexpr Tolerance bf16_tolerance{0x1.04p-8, 0x1.84p-7, 0x1p-7};
constexpr Tolerance fp32_tolerance{0x1p-18, 0x1p-18, 0x1p-18};
/// Scores are sums of some hundred products in FP32, which tensor cores truncate.
constexpr Tolerance log_sum_exp_tolerance{0x1p-16, 0x1p-16, 0x1p-16};

template <class T>
void expect_close(const char* name, const std::vector<T>& actual, const Reference& expected,
                  Tolerance tolerance) {
  ASSERT_EQ(actual.size(), expected.values.size());
  double worst = 0;
  double errors = 0;
  double squares = 0;
  double magnitudes = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto value = static_cast<double>(static_cast<float>(actual[i]));
    const double error = std::abs(value - expected.values[i]);
    const double allowed = tolerance.value * std::abs(expected.values[i]) +
                           tolerance.magnitude * expected.magnitudes[i];
    ASSERT_LE(error, allowed) << name << " at " << i << ": " << value << " in place of "
                              << expected.values[i];
    worst = std::max(worst, error / allowed);
    errors += error * error;
    squares += expected.values[i] * expected.values[i];
    magnitudes += expected.magnitudes[i] * expected.magnitudes[i];
  }
  // Where terms cancel, as a single token's gradients of query and key do, the norm of the values
  // says nothing.
  const double norm = std::max(std::sqrt(squares), 0x1p-7 * std::sqrt(magnitudes));
  const double relative = std::sqrt(errors) / norm;
  std::printf("  %-12s worst %.3f of what is allowed, relative norm of errors %.2e\n", name, worst,
              relative);
  EXPECT_LE(relative, tolerance.norm) << name;
}

template <class T>
void expect_close(const Results<T>& actual, const References& expected, Tolerance tolerance) {
  expect_close("output", actual.output, expected.output, tolerance);
  expect_close("log_sum_exp", actual.log_sum_exp, expected.log_sum_exp, log_sum_exp_tolerance);
  expect_close("dqkv", actual.qkv_gradient, expected.qkv_gradient, tolerance);
}

}  // namespace octavo::attention_formula
