// How doctor judges what it found.
#include <doctor/findings.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace findings_test {

using doctor::Findings;
using doctor::Product;

/// Three products of the rows (1, 2) and (3, 4), whose sum is 11.
Findings findings_with(float result) {
  Findings findings;
  findings.products.fill(Product{{1, 2, {1, 2}}, {1, 2, {3, 4}}, {11.0f}});
  findings.products[1].result[0] = result;
  return findings;
}

/// Sums that may be off by 2^-10 of what is added.
double sums(octavo::Index) { return 0x1p-10; }

TEST(WorstError, ExcludesRoundingToBf16) {
  EXPECT_EQ(worst_error(findings_with(11.0f), sums), 0);
  // BF16's last place at 11 is 2^-4, of which half may be lost in rounding.
  EXPECT_EQ(worst_error(findings_with(11.0f + 0x1p-5f), sums), 0);
  EXPECT_DOUBLE_EQ(worst_error(findings_with(11.0f + 0x1p-4f), sums), 0x1p-5 / (11 * 0x1p-10));
  EXPECT_DOUBLE_EQ(worst_error(findings_with(11.0f - 0x1p-4f), sums), 0x1p-5 / (11 * 0x1p-10));
  EXPECT_GT(worst_error(findings_with(-11.0f), sums), 100);
}

TEST(WorstError, IsInfiniteForNan) {
  EXPECT_EQ(worst_error(findings_with(NAN), sums), INFINITY);
  EXPECT_EQ(worst_error(findings_with(INFINITY), sums), INFINITY);
}

TEST(SameOperands, ComparesBothOperandsOfEachProduct) {
  const Findings one = findings_with(11.0f);
  EXPECT_TRUE(same_operands(one, findings_with(12.0f)));
  for (const std::size_t product : {0U, 2U}) {
    Findings other = one;
    other.products[product].a.values[1] = 5;
    EXPECT_FALSE(same_operands(one, other)) << product;
    other = one;
    other.products[product].b.values[1] = 5;
    EXPECT_FALSE(same_operands(one, other)) << product;
  }
}

TEST(Report, CountsChecksAndFailures) {
  doctor::Report report;
  report.check("a", true, "right");
  report.check("b", false, "wrong");
  report.check("c", true, "right");
  EXPECT_EQ(report.checks(), 3);
  EXPECT_EQ(report.failures(), 1);
}

}  // namespace findings_test
