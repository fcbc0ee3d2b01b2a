#include <octavo/layers/parameter_run.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace parameter_run_test {

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
    run.take_weights(arena, each());
    run.take_gradients(arena, each());
    std::fill_n(run.gradients().data(), run.size(), 1.0f);
  }
  /// Elements of a parameter's gradient that are not zero.
  [[nodiscard]] Index left(std::size_t i) const {
    const auto& gradient = parameters[i].gradient;
    return gradient.size() - std::count(gradient.data(), gradient.data() + gradient.size(), 0.0f);
  }

  /// Elements between parameters, and behind the last, that are not zero.
  [[nodiscard]] Index left_between(TensorView<float, 1, Cpu> elements) const {
    Index count = elements.size() - std::count(elements.data(), elements.data() + run.size(), 0.0f);
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
  ParameterRun<float, float, Cpu> run;
};

TEST(ParameterRun, ClearsTheGradientsThatLayersAddTo) {
  // A norm's weight, a linear layer's, a bias and a table of one's own, to which layers add.
  MadeRun made({{1, 8}, {4, 8}, {1, 4}, {3, 8}});
  made.parameters[1].is_overwritten = true;
  made.run.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left(0), 0);
  EXPECT_EQ(made.left(1), 32);
  EXPECT_EQ(made.left(2), 0);
  EXPECT_EQ(made.left(3), 0);
}

TEST(ParameterRun, ClearsNeighboursUpToTheLast) {
  MadeRun made({{4, 8}, {1, 8}, {1, 300}, {2, 2}});
  made.parameters[0].is_overwritten = true;
  made.run.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left(0), 32);
  for (const std::size_t i : {1U, 2U, 3U}) EXPECT_EQ(made.left(i), 0) << i;
}

TEST(ParameterRun, LeavesWhatIsOverwrittenAlone) {
  MadeRun made({{4, 8}, {2, 8}});
  for (auto& parameter : made.parameters) parameter.is_overwritten = true;
  made.run.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left(0), 32);
  EXPECT_EQ(made.left(1), 16);
}

TEST(ParameterRun, HasZerosBetweenGradients) {
  // Overwritten ones of 300, 256 and 8 elements, and one of 10 to which layers add.
  MadeRun made({{3, 100}, {2, 128}, {1, 10}, {2, 4}});
  for (const std::size_t i : {0U, 1U, 3U}) made.parameters[i].is_overwritten = true;
  EXPECT_EQ(made.left_between(made.run.gradients()), 212 + 246 + 248);
  made.run.clear_gradients(made.each(), made.context);
  EXPECT_EQ(made.left_between(made.run.gradients()), 0);
  EXPECT_EQ(made.left(0), 300);
  EXPECT_EQ(made.left(1), 256);
  EXPECT_EQ(made.left(2), 0);
  EXPECT_EQ(made.left(3), 8);
}

TEST(ParameterRun, HasZerosBetweenWeights) {
  MadeRun made({{3, 100}, {1, 10}});
  std::fill_n(made.run.weights().data(), made.run.size(), 1.0f);
  clear_weights(RunPart<float, Cpu>{made.run.weights()}, made.context);
  EXPECT_EQ(made.left_between(made.run.weights()), 0);
}

}  // namespace parameter_run_test
