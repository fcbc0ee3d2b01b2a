/// @file
/// Matrix products in FP64: the oracle of the tests of `matmul`, and a loop over addends and
/// threads.
#pragma once

#include <octavo/gemm/matmul.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "support/matrix.hpp"

namespace reference {

using octavo::Cpu;
using octavo::GemmOutput;
using octavo::Index;
using support::Matrix;

/// A matrix product in FP64, and what its rounding errors are measured against.
class Product {
 public:
  /// result[i, j] = Σ a(i, p) · b(j, p)
  template <class A, class B>
  Product(Index m, Index n, Index k, const A& a, const B& b) : columns_(n) {
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (Index p = 0; p < k; ++p) {
          const double term = a(i, p) * b(j, p);
          sum += term;
          magnitude += std::abs(term);
        }
        sums_.push_back(sum);
        magnitudes_.push_back(magnitude);
      }
    }
  }

  /// Checks `result` = round(product + addend + bias): FP32 sums, rounded once to the result's
  /// format.
  template <class T>
  void check(const Matrix<T>& result, const std::type_identity_t<Matrix<T>>* addend = nullptr,
             const std::type_identity_t<Matrix<T>>* bias = nullptr) const {
    constexpr double unit = std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;
    for (Index i = 0; i < result.rows; ++i) {
      for (Index j = 0; j < result.columns; ++j) {
        const auto at = static_cast<std::size_t>(i * columns_ + j);
        const double expected = sums_[at] + (addend != nullptr ? (*addend)(i, j) : 0.0) +
                                (bias != nullptr ? (*bias)(0, j) : 0.0);
        const double tolerance = 1.01 * unit * std::abs(expected) + 1e-6 * magnitudes_[at];
        ASSERT_NEAR(result(i, j), expected, tolerance) << i << ", " << j;
      }
    }
  }

 private:
  Index columns_;
  std::vector<double> sums_;
  std::vector<double> magnitudes_;
};

/// Runs `gemm(output, context)` plainly, with an addend elsewhere and in place, for several numbers
/// of threads, and checks every result; all threads must agree bit for bit.
template <class T, class Gemm>
void check_gemm(Index m, Index n, Index k, const Product& product, const Gemm& gemm) {
  const auto addend = support::random_matrix<T>(m, n, 99, 3.0f);
  const auto bias = support::random_matrix<T>(1, n, 98, 3.0f);
  Matrix<T> first(m, n);
  for (const int threads : {1, 2, 4}) {
    support::ContextWithWorkspace place(threads);
    place.bind(octavo::matmul_workspace(m, n, k, place.context));
    Matrix<T> plain(m, n, T(77.0f));
    Matrix<T> added(m, n, T(77.0f));
    Matrix<T> in_place = addend;
    gemm(GemmOutput<T, Cpu>{plain.view(), {}}, place.context);
    gemm(GemmOutput<T, Cpu>{added.view(), addend.input()}, place.context);
    gemm(GemmOutput<T, Cpu>{in_place.view(), in_place.input()}, place.context);
    product.check(plain);
    product.check(added, &addend);
    Matrix<T> with_bias(m, n, T(77.0f));
    gemm(GemmOutput<T, Cpu>{with_bias.view(), {}, bias.flat_input()}, place.context);
    product.check(with_bias, nullptr, &bias);
    Matrix<T> with_both = addend;
    gemm(GemmOutput<T, Cpu>{with_both.view(), with_both.input(), bias.flat_input()}, place.context);
    product.check(with_both, &addend, &bias);
    EXPECT_EQ(support::bytes_of(in_place.elements), support::bytes_of(added.elements));
    if (threads == 1) first = plain;
    EXPECT_EQ(support::bytes_of(plain.elements), support::bytes_of(first.elements)) << threads;
  }
}

}  // namespace reference
