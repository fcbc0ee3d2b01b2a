/// @file
/// Text from a model, one token after another.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/train/training_session.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// How the next token is drawn.
struct GenerateOptions {
  Index tokens = 200;        ///< to draw
  double temperature = 0.8;  ///< logits are divided by it; 0 always takes the likeliest
  std::uint64_t seed = 1;
  /// Ids below it can be drawn, such as a tokenizer's; 0: all of the model's.
  Index vocabulary = 0;
  std::function<bool()> stop{};  ///< asked before each token; if it says true, the text ends there
};

namespace detail {

/// Draws from softmax(logits / temperature) with one uniform number in [0, 1).
inline std::int32_t draw_token(std::span<const float> logits, double temperature, double random) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - static_cast<double>(*likeliest)) / temperature);
  };
  double total = 0;
  for (const float logit : logits) total += weight(logit);
  double left = random * total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= weight(logits[i]);
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(likeliest - logits.begin());
}

}  // namespace detail

/// Continues `prompt` by `options.tokens` tokens, or fewer if `options.stop` says so; the model
/// sees at most one sequence of the last tokens. The same seed gives the same text.
/// @param prompt    at least one token
/// @param sequence  tokens that the model can see at once
/// @throws ConfigError  for an empty prompt, a negative or non-finite temperature, or a vocabulary
///                      that is not the model's or a part of it
[[nodiscard]] inline std::vector<std::int32_t> generate(TrainingSession& session,
                                                        std::span<const std::int32_t> prompt,
                                                        Index sequence,
                                                        const GenerateOptions& options) {
  require<ConfigError>(!prompt.empty(), "the prompt is empty; give at least one token");
  require<ConfigError>(std::isfinite(options.temperature) && options.temperature >= 0,
                       "the temperature is ", options.temperature, "; give 0 or more");
  const Index vocabulary = session.facts().vocabulary;
  require<ConfigError>(options.vocabulary >= 0 && options.vocabulary <= vocabulary, "ids below ",
                       options.vocabulary, " are to be drawn, of ", vocabulary, "; give 1 to ",
                       vocabulary, ", or 0 for all");
  session.begin_evaluation();
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::vector<float> logits(static_cast<std::size_t>(vocabulary));
  const std::size_t drawn =
      options.vocabulary == 0 ? logits.size() : static_cast<std::size_t>(options.vocabulary);
  const RandomStream stream{options.seed, 0x73616d706c65u};
  for (Index i = 0; i < options.tokens; ++i) {
    if (options.stop && options.stop()) break;
    const std::size_t seen = std::min(text.size(), static_cast<std::size_t>(sequence));
    session.next_token_logits(std::span(text).last(seen), logits);
    const float random = uniform(random_word(stream, static_cast<std::uint64_t>(i)));
    text.push_back(detail::draw_token(std::span(logits).first(drawn), options.temperature,
                                      static_cast<double>(random)));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace octavo
