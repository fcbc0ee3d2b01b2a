#include <gtest/gtest.h>
#include <octavo/inference/generate.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "support/session_stub.hpp"

namespace generate_test {

using octavo::GenerateOptions;
using octavo::Index;

constexpr int vocabulary = 8;

/// Logits of a model that likes the token after the last one best.
void count_on(std::int32_t last, std::span<float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 0.1f * static_cast<float>(i);
  logits[static_cast<std::size_t>((last + 1) % vocabulary)] = 1.5f;
}

/// Such a model, with room for a short text. It notes what is appended.
class CountingModel final : public octavo::TextModel {
 public:
  explicit CountingModel(Index longest = 1000, Index piece = 1000)
      : longest_(longest), piece_(piece) {
    facts_.vocabulary = vocabulary;
  }

  const octavo::ModelFacts& facts() const override { return facts_; }
  Index length() const override { return length_; }
  Index longest() const override { return longest_; }
  Index piece() const override { return piece_; }
  void truncate(Index length) override { length_ = length; }
  void append(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    octavo::detail::check_appended(*this, tokens, logits.size());
    appended.emplace_back(tokens.begin(), tokens.end());
    length_ += static_cast<Index>(tokens.size());
    if (!logits.empty()) count_on(tokens.back(), logits);
  }

  std::vector<std::vector<std::int32_t>> appended;

 private:
  octavo::ModelFacts facts_;
  Index longest_;
  Index piece_;
  Index length_ = 0;
};

/// The same as a session that trains, which notes what it is shown.
class CountingSession final : public support::SessionStub {
 public:
  CountingSession() { facts_.vocabulary = vocabulary; }

  void begin_evaluation() override { ready_ = true; }
  void next_token_logits(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    EXPECT_TRUE(ready_) << "weights have to be quantised first";
    shown.emplace_back(tokens.begin(), tokens.end());
    count_on(tokens.back(), logits);
  }

  std::vector<std::vector<std::int32_t>> shown;

 private:
  bool ready_ = false;
};

std::vector<std::int32_t> generated(std::span<const std::int32_t> prompt,
                                    const GenerateOptions& options) {
  CountingModel model;
  return octavo::generate(model, prompt, options);
}

constexpr std::array<std::int32_t, 2> prompt{3, 5};
constexpr octavo::SamplingOptions likeliest{.temperature = 0};

TEST(Generate, TemperatureZeroIsGreedy) {
  const std::vector<std::int32_t> expected{6, 7, 0, 1, 2};
  EXPECT_EQ(generated(prompt, {.tokens = 5, .sampling = likeliest, .seed = 1}), expected);
  EXPECT_EQ(generated(prompt, {.tokens = 5, .sampling = likeliest, .seed = 2}), expected);
  EXPECT_EQ(generated(prompt, {.tokens = 5, .sampling = {.temperature = 1e-3}, .seed = 2}),
            expected);
}

TEST(Generate, SameSeedGivesSameText) {
  const GenerateOptions options{.tokens = 100, .sampling = {.temperature = 1}, .seed = 1};
  const std::vector<std::int32_t> text = generated(prompt, options);
  EXPECT_EQ(text.size(), 100U);
  EXPECT_EQ(generated(prompt, options), text);
  EXPECT_NE(generated(prompt, {.tokens = 100, .sampling = {.temperature = 1}, .seed = 2}), text);
  EXPECT_EQ(std::set<std::int32_t>(text.begin(), text.end()).size(), 8U) << "every token is drawn";
  // A longer text begins with a shorter one.
  EXPECT_EQ(generated(prompt, {.tokens = 10, .sampling = {.temperature = 1}, .seed = 1}),
            std::vector<std::int32_t>(text.begin(), text.begin() + 10));
}

// Token 7 after itself: logits 0, 0.1 … 0.7 but 1.5 for token 0. softmax(logits / T)[0], T = 0.5:
// e^3 / (e^3 + Σ_{i=1..7} e^{i/5}) = 20.0855 / (20.0855 + 16.8500) = 0.5438.
TEST(Generate, DrawsTokensByProbability) {
  int hits = 0;
  constexpr int draws = 4000;
  const std::array<std::int32_t, 1> seven{7};
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    hits += generated(seven, {.tokens = 1, .sampling = {.temperature = 0.5}, .seed = seed})[0] == 0;
  }
  // The standard deviation of the share is 0.0079.
  EXPECT_NEAR(static_cast<double>(hits) / draws, 0.5438, 0.04);
}

TEST(Generate, ReadsPromptAtOnceThenTokenByToken) {
  CountingModel model;
  (void)octavo::generate(model, prompt, {.tokens = 4, .sampling = likeliest});
  EXPECT_EQ(model.appended, (std::vector<std::vector<std::int32_t>>{{3, 5}, {6}, {7}, {0}}));
  // The text goes on behind what is read: the last token is not.
  (void)octavo::generate(model, std::array<std::int32_t, 2>{1, 2}, {.tokens = 1});
  EXPECT_EQ(model.length(), 7);
}

TEST(Generate, StopsBetweenPiecesOfPrompt) {
  constexpr std::array<std::int32_t, 5> long_prompt{1, 2, 3, 4, 5};
  CountingModel model(1000, 2);
  int calls = 0;
  GenerateOptions options{.tokens = 2, .sampling = likeliest};
  options.stop = [&] { return ++calls == 3; };
  EXPECT_TRUE(octavo::generate(model, long_prompt, options).empty());
  EXPECT_EQ(model.appended, (std::vector<std::vector<std::int32_t>>{{1, 2}, {3, 4}}));

  CountingModel other(1000, 2);
  options.stop = [] { return false; };
  EXPECT_EQ(octavo::generate(other, long_prompt, options), (std::vector<std::int32_t>{6, 7}));
  EXPECT_EQ(other.appended, (std::vector<std::vector<std::int32_t>>{{1, 2}, {3, 4}, {5}, {6}}));

  // Nothing is appended of a prompt that is too long, or has a token that there is not.
  CountingModel small(4, 2);
  EXPECT_THROW((void)octavo::generate(small, long_prompt, options), octavo::ConfigError);
  EXPECT_THROW(
      (void)octavo::generate(small, std::array<std::int32_t, 3>{1, 2, vocabulary}, options),
      octavo::ConfigError);
  EXPECT_TRUE(small.appended.empty());
}

TEST(Generate, StopsWhenModelIsFull) {
  CountingModel model(4);
  EXPECT_EQ(octavo::generate(model, prompt, {.tokens = 10, .sampling = likeliest}),
            (std::vector<std::int32_t>{6, 7, 0}))
      << "the last one is drawn, and has no place";
  EXPECT_THROW(octavo::generate(model, prompt, {.tokens = 1}), octavo::ConfigError);
}

TEST(Generate, StopTokensEndTextAndAreOmitted) {
  const auto with_stops = [](std::vector<std::int32_t> stops) {
    return generated(prompt, {.tokens = 9, .sampling = likeliest, .stop_tokens = std::move(stops)});
  };
  EXPECT_EQ(with_stops({2, 0}), (std::vector<std::int32_t>{6, 7}));
  EXPECT_EQ(with_stops({6}), std::vector<std::int32_t>{});
  EXPECT_EQ(with_stops({}).size(), 9U);
}

TEST(Generate, StreamsTokensUntilStopped) {
  std::vector<std::int32_t> taken;
  GenerateOptions options{.tokens = 9, .sampling = likeliest};
  options.take = [&](std::int32_t token) { taken.push_back(token); };
  options.stop = [&] { return taken.size() == 3; };
  EXPECT_EQ(generated(prompt, options), taken);
  EXPECT_EQ(taken, (std::vector<std::int32_t>{6, 7, 0}));
  // What ends the text is no part of it for those either who are given it token by token.
  taken.clear();
  options.stop = {};
  options.stop_tokens = {7};
  EXPECT_EQ(generated(prompt, options), taken);
  CountingModel model;
  options.stop = [] { return true; };
  EXPECT_TRUE(octavo::generate(model, prompt, options).empty());
  EXPECT_TRUE(model.appended.empty()) << "the prompt was read, though nothing was to be";
}

TEST(Generate, TrainingModelSeesLastTokensOfSequence) {
  CountingSession session;
  const std::array<std::int32_t, 6> long_prompt{1, 2, 3, 4, 5, 6};
  (void)octavo::generate(session, long_prompt, 4, {.tokens = 3, .sampling = likeliest});
  const std::vector<std::vector<std::int32_t>> expected{{3, 4, 5, 6}, {4, 5, 6, 7}, {5, 6, 7, 0}};
  EXPECT_EQ(session.shown, expected);

  CountingSession other;
  octavo::TrainingText text(other, 4);
  EXPECT_EQ(octavo::generate(text, prompt, {.tokens = 3, .sampling = likeliest}),
            (std::vector<std::int32_t>{6, 7, 0}));
  const std::vector<std::vector<std::int32_t>> growing{{3, 5}, {3, 5, 6}, {3, 5, 6, 7}};
  EXPECT_EQ(other.shown, growing);
  text.truncate(1);
  std::vector<float> logits(vocabulary);
  text.append(std::array<std::int32_t, 1>{4}, logits);
  EXPECT_EQ(other.shown.back(), (std::vector<std::int32_t>{3, 4}));
}

TEST(Generate, RejectsTextsOfWhichModelSeesNothing) {
  CountingSession session;
  for (const octavo::Index sequence : {0, -1}) {
    EXPECT_THROW((void)octavo::generate(session, prompt, sequence, {.tokens = 3}),
                 octavo::ConfigError);
  }
  EXPECT_TRUE(session.shown.empty());
}

// The model counts on to ids that must not be drawn.
TEST(Generate, DrawsOnlyIdsInVocabulary) {
  for (const double temperature : {0.0, 5.0}) {
    const auto text = generated(
        prompt,
        {.tokens = 100, .sampling = {.temperature = temperature}, .seed = 1, .vocabulary = 4});
    ASSERT_EQ(text.size(), 100U);
    for (const std::int32_t token : text) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, 4);
    }
  }
  EXPECT_THROW(generated(prompt, {.tokens = 1, .vocabulary = 9}), octavo::ConfigError);
  EXPECT_THROW(generated(prompt, {.tokens = 1, .vocabulary = -1}), octavo::ConfigError);
}

TEST(Generate, ZeroTokensGiveNoText) { EXPECT_TRUE(generated(prompt, {.tokens = 0}).empty()); }

TEST(Generate, RejectsBadInput) {
  EXPECT_THROW(generated({}, {}), octavo::ConfigError);
  EXPECT_THROW(generated(prompt, {.tokens = 1, .sampling = {.temperature = -1}}),
               octavo::ConfigError);
}

}  // namespace generate_test
