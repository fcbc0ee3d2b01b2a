#include <octavo/layers/flat_parameters.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace flat_parameters_test {

using namespace octavo;

/// A run of `shapes`, in memory of its own.
struct MadeRun {
  auto each() {
    return [this](const auto& body) { std::for_each(parameters.begin(), parameters.end(), body); };
  }
  explicit MadeRun(const std::vector<std::array<Index, 2>>& shapes) : parameters(shapes.size()) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      parameters[i].declare("parameter" + std::to_string(i), shapes[i][0], shapes[i][1],
                            Initial::ones());
    }
    flat.allocate_weights(arena, each());
    flat.allocate_gradients(arena, each());
    std::fill_n(flat.gradients().data(), flat.size(), 1.0f);
  }
  /// Elements of a parameter's gradient that are not zero.
  [[nodiscard]] Index left(std::size_t i) const {
    const auto& gradient = parameters[i].gradient;
    return gradient.size() - std::count(gradient.data(), gradient.data() + gradient.size(), 0.0f);
  }

  /// Elements between parameters, and behind the last, that are not zero.
  [[nodiscard]] Index left_between(TensorView<float, 1, Cpu> elements) const {
    Index count =
        elements.size() - std::count(elements.data(), elements.data() + flat.size(), 0.0f);
    for (const auto& parameter : parameters) {
      const float* begin = elements.data() + parameter.offset;
      const Index size = parameter.weight.size();
      count -= size - std::count(begin, begin + size, 0.0f);
    }
    return count;
  }

  Context<Cpu> context{1};
  Arena<Cpu> arena{{.peak = 1 << 16}, context};
  std::vector<Parameter<float, float, Cpu>> parameters;
  FlatParameters<float, float, Cpu> flat;
};

TEST(FlatParameters, ClearsAccumulatedGradients) {
  // A norm's weight, a linear layer's, a bias and a table of one's own, to which layers add.
  MadeRun made({{1, 8}, {4, 8}, {1, 4}, {3, 8}});
  made.parameters[1].is_overwritten = true;
  made.flat.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left(0), 0);
  EXPECT_EQ(made.left(1), 32);
  EXPECT_EQ(made.left(2), 0);
  EXPECT_EQ(made.left(3), 0);
}

TEST(FlatParameters, ClearsAdjacentGradientsUpToLast) {
  MadeRun made({{4, 8}, {1, 8}, {1, 300}, {2, 2}});
  made.parameters[0].is_overwritten = true;
  made.flat.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left(0), 32);
  for (const std::size_t i : {1U, 2U, 3U}) EXPECT_EQ(made.left(i), 0) << i;
}

TEST(FlatParameters, DoesNotClearOverwrittenGradients) {
  MadeRun made({{4, 8}, {2, 8}});
  for (auto& parameter : made.parameters) parameter.is_overwritten = true;
  made.flat.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left(0), 32);
  EXPECT_EQ(made.left(1), 16);
}

TEST(FlatParameters, ZeroesGapsBetweenGradients) {
  // Overwritten ones of 300, 256 and 8 elements, and one of 10 to which layers add.
  MadeRun made({{3, 100}, {2, 128}, {1, 10}, {2, 4}});
  for (const std::size_t i : {0U, 1U, 3U}) made.parameters[i].is_overwritten = true;
  EXPECT_EQ(made.left_between(made.flat.gradients()), 212 + 246 + 248);
  made.flat.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left_between(made.flat.gradients()), 0);
  EXPECT_EQ(made.left(0), 300);
  EXPECT_EQ(made.left(1), 256);
  EXPECT_EQ(made.left(2), 0);
  EXPECT_EQ(made.left(3), 8);
}

TEST(FlatParameters, ZeroesGapsBetweenWeights) {
  MadeRun made({{3, 100}, {1, 10}});
  std::fill_n(made.flat.weights().data(), made.flat.size(), 1.0f);
  clear_weights(WeightRange<float, Cpu>{made.flat.weights()}, made.context);
  EXPECT_EQ(made.left_between(made.flat.weights()), 0);
}

/// A vector, and a matrix that a linear layer casts, which two ranks have shards of.
struct CastWeights {
  CastWeights(Index vector, bool gathered, const CastWeights* lender = nullptr) {
    parameters[0].declare("norm", 1, vector, Initial::ones());
    parameters[1].declare("weight", 8, 128, Initial::ones());
    parameters[1].operand = 0;
    const auto each = [this](const auto& body) {
      std::for_each(parameters.begin(), parameters.end(), body);
    };
    const FlatLayout layout{.multiple = 2 * 256, .fp8_values = true, .gathered = gathered};
    flat.allocate_weights(arena, each, layout, lender == nullptr ? nullptr : &lender->flat);
  }

  Context<Cpu> context{1};
  Arena<Cpu> arena{{.peak = 1 << 14}, context};
  std::array<Parameter<Bf16, Bf16, Cpu>, 2> parameters;
  FlatParameters<Bf16, Bf16, Cpu> flat;
};

TEST(FlatParameters, Fp8ValuesLieAtWeightOffsets) {
  const CastWeights made(100, false);
  EXPECT_EQ(made.flat.fp8_values().size(), made.flat.size());
  EXPECT_EQ(made.parameters[1].fp8_values.data(),
            made.flat.fp8_values().data() + made.parameters[1].offset);
  EXPECT_EQ(made.parameters[1].fp8_values.shape(), made.parameters[1].weight.shape());
  for (const auto& parameter : made.parameters) {
    EXPECT_EQ(parameter.weight.data(), made.flat.weights().data() + parameter.offset);
  }
  EXPECT_FALSE(made.parameters[0].has_fp8_values());
}

TEST(FlatParameters, HasNoFp8ValuesIfTheySaveNoBytes) {
  // One rank of the two sends all of the vector, for which the other has to send as much.
  const CastWeights made(800, false);
  EXPECT_FALSE(made.flat.has_fp8_values());
  EXPECT_FALSE(made.parameters[1].has_fp8_values());
}

TEST(FlatParameters, LendsFp8ValuesWithoutTheirWeights) {
  const CastWeights lender(100, true);
  EXPECT_TRUE(lender.flat.weights().empty());
  EXPECT_TRUE(lender.parameters[1].weight.empty());
  EXPECT_FALSE(lender.parameters[0].weight.empty());
  const CastWeights borrower(100, true, &lender);
  EXPECT_EQ(borrower.flat.fp8_values().data(), lender.flat.fp8_values().data());
  EXPECT_EQ(borrower.parameters[0].weight.data(), lender.parameters[0].weight.data());
  EXPECT_EQ(borrower.arena.plan().peak, 0u);
}

}  // namespace flat_parameters_test
