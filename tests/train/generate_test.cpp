#include <gtest/gtest.h>
#include <octavo/train/generate.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "support/session_stub.hpp"

namespace generate_test {

using octavo::GenerateOptions;

constexpr int vocabulary = 8;

/// A model that likes the token after the last one it sees best, and notes what it was shown.
class CountingModel final : public support::SessionStub {
 public:
  CountingModel() { facts_.vocabulary = vocabulary; }

  void begin_evaluation() override { ready_ = true; }
  void next_token_logits(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    EXPECT_TRUE(ready_) << "weights have to be quantised first";
    shown.emplace_back(tokens.begin(), tokens.end());
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 0.1f * static_cast<float>(i);
    logits[static_cast<std::size_t>((tokens.back() + 1) % vocabulary)] = 1.5f;
  }

  std::vector<std::vector<std::int32_t>> shown;

 private:
  bool ready_ = false;
};

std::vector<std::int32_t> generated(std::span<const std::int32_t> prompt,
                                    const GenerateOptions& options) {
  CountingModel model;
  return octavo::generate(model, prompt, 4, options);
}

constexpr std::array<std::int32_t, 2> prompt{3, 5};

TEST(Generate, TemperatureZeroTakesTheLikeliest) {
  const std::vector<std::int32_t> expected{6, 7, 0, 1, 2};
  EXPECT_EQ(generated(prompt, {.tokens = 5, .temperature = 0, .seed = 1}), expected);
  EXPECT_EQ(generated(prompt, {.tokens = 5, .temperature = 0, .seed = 2}), expected);
  EXPECT_EQ(generated(prompt, {.tokens = 5, .temperature = 1e-3, .seed = 2}), expected);
}

TEST(Generate, TheSameSeedGivesTheSameText) {
  const GenerateOptions options{.tokens = 100, .temperature = 1.0, .seed = 1};
  const std::vector<std::int32_t> text = generated(prompt, options);
  EXPECT_EQ(text.size(), 100U);
  EXPECT_EQ(generated(prompt, options), text);
  EXPECT_NE(generated(prompt, {.tokens = 100, .temperature = 1.0, .seed = 2}), text);
  EXPECT_EQ(std::set<std::int32_t>(text.begin(), text.end()).size(), 8U) << "every token is drawn";
  // A longer text begins with a shorter one.
  EXPECT_EQ(generated(prompt, {.tokens = 10, .temperature = 1.0, .seed = 1}),
            std::vector<std::int32_t>(text.begin(), text.begin() + 10));
}

// Token 7 after itself: logits 0, 0.1 … 0.7 but 1.5 for token 0. softmax(logits / T)[0], T = 0.5:
// e^3 / (e^3 + Σ_{i=1..7} e^{i/5}) = 20.0855 / (20.0855 + 16.8500) = 0.5438.
TEST(Generate, TokensAreDrawnWithTheirProbability) {
  int hits = 0;
  constexpr int draws = 4000;
  for (int seed = 0; seed < draws; ++seed) {
    const std::array<std::int32_t, 1> seven{7};
    hits += generated(
                seven,
                {.tokens = 1, .temperature = 0.5, .seed = static_cast<std::uint64_t>(seed)})[0] == 0
                ? 1
                : 0;
  }
  // The standard deviation of the share is 0.0079.
  EXPECT_NEAR(static_cast<double>(hits) / draws, 0.5438, 0.04);
}

TEST(Generate, TheModelSeesTheLastTokensOfASequence) {
  CountingModel model;
  const std::array<std::int32_t, 6> long_prompt{1, 2, 3, 4, 5, 6};
  (void)octavo::generate(model, long_prompt, 4, {.tokens = 3, .temperature = 0});
  const std::vector<std::vector<std::int32_t>> expected{{3, 4, 5, 6}, {4, 5, 6, 7}, {5, 6, 7, 0}};
  EXPECT_EQ(model.shown, expected);

  CountingModel other;
  (void)octavo::generate(other, prompt, 4, {.tokens = 3, .temperature = 0});
  const std::vector<std::vector<std::int32_t>> growing{{3, 5}, {3, 5, 6}, {3, 5, 6, 7}};
  EXPECT_EQ(other.shown, growing);
}

// The model counts on to ids that must not be drawn.
TEST(Generate, OnlyIdsOfTheVocabularyAreDrawn) {
  for (const double temperature : {0.0, 5.0}) {
    const auto text =
        generated(prompt, {.tokens = 100, .temperature = temperature, .seed = 1, .vocabulary = 4});
    ASSERT_EQ(text.size(), 100U);
    for (const std::int32_t token : text) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, 4);
    }
  }
  EXPECT_THROW(generated(prompt, {.tokens = 1, .vocabulary = 9}), octavo::ConfigError);
  EXPECT_THROW(generated(prompt, {.tokens = 1, .vocabulary = -1}), octavo::ConfigError);
}

TEST(Generate, NoTokensGiveNoText) { EXPECT_TRUE(generated(prompt, {.tokens = 0}).empty()); }

TEST(Generate, BadInputIsRefused) {
  EXPECT_THROW(generated({}, {}), octavo::ConfigError);
  for (const double wrong :
       {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(generated(prompt, {.tokens = 1, .temperature = wrong}), octavo::ConfigError);
  }
}

}  // namespace generate_test
