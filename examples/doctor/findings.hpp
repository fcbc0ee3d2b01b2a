// Results of a recipe on a device, and how they are judged and printed.
#pragma once

#include <octavo/octavo.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

namespace doctor {

using octavo::Index;

/// A row-major matrix of numbers on the host.
struct Matrix {
  Index rows = 0;
  Index columns = 0;
  std::vector<double> values;

  friend bool operator==(const Matrix&, const Matrix&) = default;
};

/// result = a · bᵀ as computed by a device, and the values of the operands that it read.
struct Product {
  Matrix a;                   ///< [m, k]
  Matrix b;                   ///< [n, k]
  std::vector<float> result;  ///< [m, n], rounded to BF16
};

/// The three GEMMs of a linear layer in one precision, and one training step of llama_tiny.
struct Findings {
  std::array<Product, 3> products;
  octavo::StepResult step;
};

/// A recipe and its results on the `Cpu` device.
struct Reference {
  std::string recipe;
  Findings findings;
};

/// Examines precision `P` on device `D`. Each pair is a separate translation unit.
template <class P, class D>
Findings examine(octavo::Context<D>& context);

/// Returns the error bound of FP32 sums of `k` terms, relative to the sum of the terms' magnitudes:
/// one rounding for each addition, each product and each factor that undoes a scale.
inline double fp32_sums(Index k) { return static_cast<double>(k + 4) * 0x1p-24; }

/// Returns the error bound of tensor cores, whose FP8 accumulators keep 14 bits and add 32 terms at
/// a time.
inline double fp8_tensor_core_sums(Index k) {
  return static_cast<double>(octavo::ceil_divide(k, 32)) * 0x1p-13;
}

/// Returns half a unit in the last place of BF16 at a number, the maximum rounding error.
inline double half_ulp(double number) {
  return number == 0 ? 0 : std::ldexp(0x1p-8, std::ilogb(number));
}

/// Returns the largest error of the GEMMs against FP64 products of the same operands, as a fraction
/// of the error bound of their sums. Excludes the rounding of results to BF16, which would hide
/// other errors.
/// @param sums  (k) → error bound of a sum of k terms, relative to the sum of their magnitudes
template <class Sums>
double worst_error(const Findings& findings, const Sums& sums) {
  double worst = 0;
  for (const Product& product : findings.products) {
    const Index k = product.a.columns;
    for (Index row = 0; row < product.a.rows; ++row) {
      for (Index column = 0; column < product.b.rows; ++column) {
        const double* a = product.a.values.data() + row * k;
        const double* b = product.b.values.data() + column * k;
        double sum = 0;
        double magnitude = 0;
        for (Index i = 0; i < k; ++i) {
          sum += a[i] * b[i];
          magnitude += std::abs(a[i] * b[i]);
        }
        const auto place = static_cast<std::size_t>(row * product.b.rows + column);
        const auto result = static_cast<double>(product.result[place]);
        const double rounding = half_ulp(std::max(std::abs(sum), std::abs(result)));
        const double beyond = std::abs(result - sum) - rounding;
        if (beyond <= 0) continue;
        const double share = beyond / (sums(k) * magnitude);
        // The negation also catches NaN.
        if (!(share <= worst)) worst = std::isnan(share) ? INFINITY : share;
      }
    }
  }
  return worst;
}

/// Whether two devices multiplied equal values.
inline bool same_operands(const Findings& x, const Findings& y) {
  return std::equal(x.products.begin(), x.products.end(), y.products.begin(),
                    [](const Product& p, const Product& q) { return p.a == q.a && p.b == q.b; });
}

/// Returns |x - y| relative to |y|.
inline double relative_difference(double x, double y) { return std::abs(x - y) / std::abs(y); }

/// Formats text with printf; nvcc cannot compile the format strings of fmt.
[[gnu::format(printf, 1, 2)]] inline std::string text_of(const char* format, ...) {
  std::array<char, 1024> text{};
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  return text.data();
}

/// Prints lines in columns and counts failures.
class Report {
 public:
  static void line(const char* kind, const std::string& name, const std::string& text) {
    std::printf("%-7s | %-21s | %s\n", kind, name.c_str(), text.c_str());
    std::fflush(stdout);
  }
  void check(const std::string& name, bool holds, const std::string& text) {
    line("check", name, (holds ? "OK, " : "FAILED, ") + text);
    ++checks_;
    if (!holds) ++failures_;
  }
  [[nodiscard]] int checks() const { return checks_; }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  int checks_ = 0;
  int failures_ = 0;
};

}  // namespace doctor
