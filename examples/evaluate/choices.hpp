// Multiple-choice questions, and the endings that a model finds most likely.
#pragma once

#include <octavo/data/tokens.hpp>
#include <octavo/octavo.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace evaluate {

using octavo::Index;

/// One ending of a question.
struct Ending {
  std::vector<std::int32_t> tokens;
  Index characters = 0;  ///< of its text; 0 if unknown
};

/// A context with several endings, one of which is correct.
struct Choice {
  std::string place;  ///< file and position, for messages
  std::vector<std::int32_t> context;
  std::vector<Ending> endings;
  std::size_t label = 0;  ///< index of the correct ending
};

/// Returns a hash that identifies questions: their tokens, characters, and correct endings.
inline std::uint64_t hash_of(std::span<const Choice> choices) {
  octavo::detail::WordHash hash;
  const auto add = [&](const std::vector<std::int32_t>& tokens) {
    hash.add(tokens.size());
    for (const std::int32_t token : tokens) hash.add(static_cast<std::uint64_t>(token));
  };
  for (const Choice& choice : choices) {
    add(choice.context);
    for (const Ending& ending : choice.endings) {
      add(ending.tokens);
      hash.add(static_cast<std::uint64_t>(ending.characters));
    }
    hash.add(choice.label);
  }
  return hash.value();
}

/// Number of questions answered correctly, by the ending whose tokens have the smallest loss: in
/// total (the accuracy of lm-eval and of llm.c's reference), per token (llm.c's normalised
/// accuracy), or per character (lm-eval's normalised accuracy).
struct ChoiceScore {
  Index questions = 0;
  Index by_sum = 0;
  Index by_tokens = 0;
  Index by_characters = 0;
  Index without_loss = 0;      ///< questions with an ending whose loss is not finite
  bool has_characters = true;  ///< known for all endings
};

namespace detail {

/// Position of the losses of an ending in a batch.
struct EndingPlace {
  std::size_t choice, ending;
  std::size_t first;  ///< row that predicts its first token
};

/// Endings in one batch, each with its context as a separate document.
struct PackedBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<Index> documents;
  std::vector<EndingPlace> endings;
};

/// Packs documents into batches, sequence by sequence. If the shape has no documents, each sequence
/// contains one.
class Packer {
 public:
  explicit Packer(octavo::BatchShape shape) : shape_(shape) {}

  /// @throws ConfigError  if the question and its ending are longer than a sequence
  void add(const Choice& choice, std::size_t number, std::size_t ending) {
    std::vector<std::int32_t> text = choice.context;
    const std::vector<std::int32_t>& end = choice.endings[ending].tokens;
    text.insert(text.end(), end.begin(), end.end());
    const auto rows = static_cast<Index>(text.size()) - 1;
    octavo::require<octavo::ConfigError>(rows <= shape_.tokens, choice.place, ": has ", rows + 1,
                                         " tokens with an ending, but a sequence has ",
                                         shape_.tokens, "; raise --seq-len");
    if (shape_.most_documents == 0) at_ = octavo::round_up(at_, shape_.tokens);
    if (batches_.empty() || !has_room(rows)) begin_batch();
    // The rest of the sequence is too short.
    if (at_ % shape_.tokens + rows > shape_.tokens) at_ = octavo::round_up(at_, shape_.tokens);
    PackedBatch& batch = batches_.back();
    const auto begin = static_cast<std::size_t>(at_);
    if (shape_.most_documents > 0) batch.documents.push_back(at_);
    std::copy(text.begin(), text.end() - 1, batch.tokens.begin() + at_);
    const std::size_t first = choice.context.size() - 1;
    std::copy(end.begin(), end.end(),
              batch.targets.begin() + static_cast<std::ptrdiff_t>(begin + first));
    batch.endings.push_back({number, ending, begin + first});
    at_ += rows;
  }

  [[nodiscard]] std::vector<PackedBatch> take() { return std::move(batches_); }

 private:
  /// Whether a document fits the batch, counting those that begin with the following sequences.
  [[nodiscard]] bool has_room(Index rows) const {
    if (shape_.most_documents == 0) return at_ < shape_.rows();
    const Index sequence = at_ / shape_.tokens;
    const bool fits_here = at_ % shape_.tokens + rows <= shape_.tokens;
    const Index own = fits_here ? sequence : sequence + 1;
    const auto documents = static_cast<Index>(batches_.back().documents.size());
    return own < shape_.sequences &&
           documents + 1 + shape_.sequences - 1 - own <= shape_.most_documents;
  }
  void begin_batch() {
    const auto rows = static_cast<std::size_t>(shape_.rows());
    batches_.push_back(
        {std::vector<std::int32_t>(rows, 0), std::vector<std::int32_t>(rows, -1), {}, {}});
    at_ = 0;
  }

  octavo::BatchShape shape_;
  std::vector<PackedBatch> batches_;
  Index at_ = 0;  ///< next free row
};

}  // namespace detail

/// Returns the number of documents in a batch, assuming that few are shorter than 32 tokens.
inline Index max_choices(octavo::BatchShape shape) {
  return std::max(shape.sequences, shape.rows() / 32);
}

/// Asks a model the questions of one rank.
class ChoiceBatches {
 public:
  /// @param choices  questions of all ranks; must outlive this object
  /// @param rank     this rank
  /// @param ranks    number of ranks, which share the questions in turn
  /// @throws ConfigError  naming a question that is longer than a sequence
  ChoiceBatches(std::span<const Choice> choices, octavo::BatchShape shape, int rank, int ranks)
      : shape_(shape), choices_(choices) {
    detail::Packer packer(shape);
    for (std::size_t i = static_cast<std::size_t>(rank); i < choices.size();
         i += static_cast<std::size_t>(ranks)) {
      for (std::size_t ending = 0; ending < choices[i].endings.size(); ++ending) {
        packer.add(choices[i], i, ending);
      }
      local_choices_.push_back(i);
    }
    batches_ = packer.take();
    // An empty batch to evaluate after this rank's own batches.
    const auto rows = static_cast<std::size_t>(shape.rows());
    batches_.push_back(
        {std::vector<std::int32_t>(rows, 0), std::vector<std::int32_t>(rows, -1), {}, {}});
  }

  /// Returns the first batch, for calibration.
  [[nodiscard]] octavo::Batch first() const { return batch_of(batches_.front()); }

  /// Returns the score of all ranks' questions. All ranks must call it.
  /// @param progress  called after each batch with the numbers of finished and of all batches
  [[nodiscard]] ChoiceScore evaluate(octavo::TrainingSession& session,
                                     const std::function<void(Index, Index)>& progress = {}) const {
    session.begin_evaluation();
    std::vector<std::vector<double>> losses(choices_.size());
    for (const std::size_t choice : local_choices_)
      losses[choice].resize(choices_[choice].endings.size());
    std::vector<float> batch_losses(static_cast<std::size_t>(shape_.rows()));
    const Index count = session.ranks().largest(static_cast<Index>(batches_.size()) - 1);
    for (Index i = 0; i < count; ++i) {
      const detail::PackedBatch& batch =
          batches_[std::min(static_cast<std::size_t>(i), batches_.size() - 1)];
      (void)session.evaluate(batch_of(batch), batch_losses);
      for (const detail::EndingPlace& place : batch.endings) {
        const std::size_t tokens = choices_[place.choice].endings[place.ending].tokens.size();
        for (std::size_t row = place.first; row < place.first + tokens; ++row) {
          losses[place.choice][place.ending] += static_cast<double>(batch_losses[row]);
        }
      }
      if (progress) progress(i + 1, count);
    }
    return sum_over_ranks(session, local_score(losses));
  }

 private:
  static octavo::Batch batch_of(const detail::PackedBatch& batch) {
    return {batch.tokens, batch.targets, batch.documents};
  }

  /// Whether the correct ending has the smallest loss relative to its size; the first wins among
  /// equals.
  template <class Size>
  static bool is_correct(const Choice& choice, const std::vector<double>& losses,
                         const Size& size) {
    std::size_t best = 0;
    const auto mean = [&](std::size_t i) {
      return losses[i] / static_cast<double>(size(choice.endings[i]));
    };
    for (std::size_t i = 1; i < losses.size(); ++i) {
      if (mean(i) < mean(best)) best = i;
    }
    return best == choice.label;
  }

  [[nodiscard]] ChoiceScore local_score(const std::vector<std::vector<double>>& losses) const {
    ChoiceScore score;
    for (const std::size_t i : local_choices_) {
      const Choice& choice = choices_[i];
      ++score.questions;
      for (const Ending& ending : choice.endings) score.has_characters &= ending.characters > 0;
      const auto is_finite = [](double loss) { return std::isfinite(loss); };
      if (!std::all_of(losses[i].begin(), losses[i].end(), is_finite)) {
        ++score.without_loss;
        continue;
      }
      score.by_sum += is_correct(choice, losses[i], [](const Ending&) { return 1; });
      score.by_tokens +=
          is_correct(choice, losses[i], [](const Ending& ending) { return ending.tokens.size(); });
      if (!score.has_characters) continue;
      score.by_characters +=
          is_correct(choice, losses[i], [](const Ending& ending) { return ending.characters; });
    }
    return score;
  }

  static ChoiceScore sum_over_ranks(octavo::TrainingSession& session, ChoiceScore score) {
    const auto sum = [&](Index& number) { number = session.ranks().sum({0, number}).tokens; };
    sum(score.questions);
    sum(score.by_sum);
    sum(score.by_tokens);
    sum(score.by_characters);
    sum(score.without_loss);
    score.has_characters = session.ranks().largest(score.has_characters ? 0 : 1) == 0;
    return score;
  }

  octavo::BatchShape shape_;
  std::span<const Choice> choices_;
  std::vector<std::size_t> local_choices_;
  std::vector<detail::PackedBatch> batches_;
};

}  // namespace evaluate
