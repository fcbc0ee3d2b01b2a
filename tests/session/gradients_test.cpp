// The comparison of gradients that holds devices together, between two sessions on the Cpu: it
// passes for equal ones, and names the one tensor that a fault was put into.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "support/gradients.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace gradients_test {

using reference::Weights;

template <class Precision>
Weights gradients(octavo::Index micro_batches, unsigned seed = 3) {
  octavo::SessionOptions options = support::small_options();
  options.batch = {4 / micro_batches, 64};
  options.micro_batches = micro_batches;
  octavo::Context<octavo::Cpu> context{2};
  return support::nontrivial_gradients<support::SmallSession<Precision>>(
      options, support::step_batch(options, 0), context, seed);
}

template <class Precision>
class Gradients : public testing::Test {};
using Precisions =
    support::TestTypes<octavo::Fp32, octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                       octavo::Fp8Recipe<octavo::Tensorwise>, octavo::Fp8Recipe<octavo::Rowwise>,
                       octavo::Fp8Recipe<octavo::Blockwise>>;
TYPED_TEST_SUITE(Gradients, Precisions);

TYPED_TEST(Gradients, ComparisonReportsWrongTensor) {
  const Weights expected = gradients<TypeParam>(1);
  constexpr support::GradientBounds bounds = support::gradient_bounds<TypeParam>();
  EXPECT_TRUE(support::beyond(support::distances(expected, expected), bounds).empty());
  for (const auto& [name, values] : expected) {
    const auto expect_named = [&, &tensor = name](const Weights& computed, const char* fault) {
      const auto found = support::beyond(support::distances(computed, expected), bounds);
      ASSERT_EQ(found.size(), 1U) << fault << " in " << tensor;
      EXPECT_EQ(found[0].name, tensor) << fault;
    };
    Weights scaled = expected;
    for (double& value : scaled[name]) value *= 1.0 + 2.0 * bounds.factor;
    expect_named(scaled, "a factor");
    Weights shifted = expected;
    std::rotate(shifted[name].begin(), shifted[name].begin() + 1, shifted[name].end());
    expect_named(shifted, "an index off by one");
    Weights zero = expected;
    std::fill(zero[name].begin(), zero[name].end(), 0.0);
    expect_named(zero, "a gradient that was not made");
    Weights half = expected;
    std::fill(half[name].begin() + static_cast<std::ptrdiff_t>(values.size() / 2), half[name].end(),
              0.0);
    expect_named(half, "half a gradient");
  }
}

// Another order of sums, and other roundings: the bounds leave room for what is right.
TYPED_TEST(Gradients, TwoMicroBatchesAreWithinBounds) {
  if constexpr (!std::is_same_v<TypeParam, octavo::Fp8Recipe<octavo::Delayed>>) {
    const auto found =
        support::beyond(support::distances(gradients<TypeParam>(2), gradients<TypeParam>(1)),
                        support::gradient_bounds<TypeParam>());
    for (const support::Distance& one : found) {
      ADD_FAILURE() << one.name << ": error " << one.error << ", factor " << one.factor;
    }
  }
}

// What rounding moves a tensor's factor by, and a comparison of one gradient would hide.
TEST(MeanFactors, DistinguishSmallFactorFromRounding) {
  using Precision = octavo::Fp8Recipe<octavo::Tensorwise>;  // whose gradients differ most
  constexpr double bound = support::mean_factor_bound<Precision>();
  support::MeanFactors one;
  support::MeanFactors other;
  support::MeanFactors faulty;
  for (unsigned seed = 3; seed < 3 + support::mean_factor_gradients; ++seed) {
    const Weights exact = gradients<octavo::Fp32>(1, seed);
    Weights computed = gradients<Precision>(1, seed);
    one.add(computed, exact);
    other.add(gradients<Precision>(2, seed), exact);  // other scales, and other roundings
    for (auto& [name, values] : computed) {
      if (!name.ends_with("k_proj.weight")) continue;
      for (double& value : values) value *= 1.05;
    }
    faulty.add(computed, exact);
  }
  for (const auto& [kind, mean] : one.means()) {
    EXPECT_NEAR(other.means().at(kind) / mean, 1.0, bound) << kind;
    const double apart = faulty.means().at(kind) / mean - 1.0;
    EXPECT_NEAR(apart, kind == "self_attn.k_proj.weight" ? 0.05 : 0.0, 1e-9) << kind;
  }
  EXPECT_EQ(one.means().size(), 12U);
}

}  // namespace gradients_test
