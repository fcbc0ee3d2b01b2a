/// @file
/// Generating text with a model, token by token.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/inference/sampling.hpp>
#include <octavo/inference/text_model.hpp>
#include <octavo/session/training_session.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options of `generate`.
struct GenerateOptions {
  Index tokens = 200;  ///< maximum number of tokens to generate
  SamplingOptions sampling{};
  std::uint64_t seed = 1;
  /// Only token IDs below this number are sampled, such as those of a tokenizer; 0: all of the
  /// model's.
  Index vocabulary = 0;
  /// Tokens that end the text, such as an end-of-text token. They are not part of the text.
  std::vector<std::int32_t> stop_tokens{};
  /// Called before each token, and between pieces of the prompt; true ends the text.
  std::function<bool()> stop{};
  std::function<void(std::int32_t)>
      take{};  ///< called with each token of the text when it is sampled
};

/// Appends a prompt to the model's text and continues it with sampled tokens, until the maximum
/// number is reached, a stop token is sampled, `stop` returns true, or the text has the maximum
/// length. The same seed samples the same tokens from the same logits, regardless of earlier
/// samples. Afterwards the model's text contains all tokens except the last; if `stop` ends it
/// while the prompt is processed, it contains the pieces of the prompt up to there
/// (`TextModel::piece`).
/// @param prompt  at least one token
/// @return the sampled tokens, without the stop token
/// @throws ConfigError  for an empty or too long prompt, invalid sampling options, or a vocabulary
///                      that is larger than the model's
inline std::vector<std::int32_t> generate(TextModel& model, std::span<const std::int32_t> prompt,
                                          const GenerateOptions& options) {
  require<ConfigError>(!prompt.empty(), "the prompt must not be empty; pass at least one token");
  const Index vocabulary = model.facts().vocabulary;
  require<ConfigError>(options.vocabulary >= 0 && options.vocabulary <= vocabulary,
                       "vocabulary must be 0 to ", vocabulary, ", but is ", options.vocabulary,
                       "; 0 samples from all tokens");
  Sampler sampler(options.sampling);
  std::vector<float> logits(static_cast<std::size_t>(vocabulary));
  const auto drawn = std::span(logits).first(
      options.vocabulary == 0 ? logits.size() : static_cast<std::size_t>(options.vocabulary));
  detail::check_appended(model, prompt, logits.size());
  const auto piece = static_cast<std::size_t>(model.piece());
  const auto is_stopped = [&] { return options.stop && options.stop(); };
  constexpr std::uint64_t sampling_stream = 0x73616d706c65u;
  const RandomStream stream{options.seed, sampling_stream};
  std::vector<std::int32_t> text;
  for (Index i = 0; i < options.tokens; ++i) {
    if (is_stopped()) break;
    if (i > 0 && model.length() == model.longest()) break;
    std::span<const std::int32_t> added =
        i == 0 ? prompt : std::span<const std::int32_t>(text).last(1);
    for (; added.size() > piece; added = added.subspan(piece)) {
      model.append(added.first(piece), {});
      if (is_stopped()) return text;
    }
    model.append(added, logits);
    const float random = uniform(random_word(stream, static_cast<std::uint64_t>(i)));
    const std::int32_t token = sampler.draw(drawn, static_cast<double>(random));
    if (std::ranges::find(options.stop_tokens, token) != options.stop_tokens.end()) break;
    text.push_back(token);
    if (options.take) options.take(token);
  }
  return text;
}

/// The text of a model that is being trained, in the layout and precision of training. It has no
/// cache, and the model receives at most the last `sequence` tokens.
class TrainingText final : public TextModel {
 public:
  /// @param session   outlives this object
  /// @param sequence  maximum number of tokens that the model receives, from 1 to the sequence
  ///                  length of the session
  /// @throws ConfigError  if `sequence` is below 1
  TrainingText(TrainingSession& session, Index sequence) : session_(session), sequence_(sequence) {
    require<ConfigError>(sequence >= 1,
                         "the model must receive at least 1 token of a text, but sequence is ",
                         sequence, "; pass the sequence length of the session");
    session.begin_evaluation();
  }

  [[nodiscard]] const ModelFacts& facts() const override { return session_.facts(); }
  [[nodiscard]] Index length() const override { return static_cast<Index>(text_.size()); }
  [[nodiscard]] Index longest() const override { return std::numeric_limits<Index>::max(); }

  void truncate(Index length) override {
    detail::check_truncated(length, this->length());
    text_.resize(static_cast<std::size_t>(length));
  }
  void append(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    detail::check_appended(*this, tokens, logits.size());
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    if (logits.empty()) return;
    const std::size_t seen = std::min(text_.size(), static_cast<std::size_t>(sequence_));
    session_.next_token_logits(std::span(text_).last(seen), logits);
  }

 private:
  TrainingSession& session_;
  Index sequence_;
  std::vector<std::int32_t> text_;
};

/// Continues `prompt` with a session's current weights; see `TrainingText`. A collective call: all
/// ranks call it together.
[[nodiscard]] inline std::vector<std::int32_t> generate(TrainingSession& session,
                                                        std::span<const std::int32_t> prompt,
                                                        Index sequence,
                                                        const GenerateOptions& options) {
  TrainingText text(session, sequence);
  return generate(text, prompt, options);
}

}  // namespace octavo
