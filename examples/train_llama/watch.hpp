// Measurements at each evaluation in addition to the validation loss: HellaSwag, and text that the
// model generates.
#pragma once

#include <common/tokenizer.hpp>
#include <evaluate/hellaswag.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/io/event_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>
#include <train_llama/ranks.hpp>
#include <train_llama/report.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainer {

/// The questions of --hellaswag, and --sample-each.
class Watch {
 public:
  /// @throws IoError, ConfigError  naming a file, line or question that cannot be used
  Watch(const Options& options, const Instance& instance, const Ranks& ranks) : options_(options) {
    if (options.hellaswag.empty()) return;
    const octavo::Index vocabulary = instance.shape.vocabulary;
    choices_ =
        std::filesystem::path(options.hellaswag).extension() == ".jsonl"
            ? evaluate::read_hellaswag_lines(options.hellaswag, *tokenizer(vocabulary), vocabulary)
            : evaluate::read_hellaswag(options.hellaswag, vocabulary);
    choices_.resize(std::min(choices_.size(), static_cast<std::size_t>(options.questions)));
    batches_.emplace(
        choices_,
        octavo::BatchShape{options.batch, options.sequence_length, options.most_documents},
        ranks.rank() / options.tensor_parallel, options.ranks);
  }

  /// Measures and reports. All ranks must call it, after an evaluation.
  void run(octavo::Index step, octavo::TrainingSession& session, const RunData& data,
           Report& report) {
    if (batches_.has_value()) report_score(step, batches_->evaluate(session), report);
    if (!options_.samples_each) return;
    sample_ = data.sample(session, options_);
    sampled_step_ = step;
    if (sample_.empty()) return;  // such as one that no tokenizer decodes
    const std::string shown = programs::visible(sample_, programs::LineBreaks::keep);
    octavo::JsonLine line;
    line.add("event", "sample").add("step", step).add("text", sample_);
    report.measurement(step, octavo::message("sample at step ", step, " |\n", shown), line,
                       octavo::EventSummary{}.add_text("sample", sample_));
  }

  /// Returns the text that `run` generated and reported after this step, or null.
  [[nodiscard]] const std::string* sample_after(octavo::Index step) const {
    return sampled_step_ == step ? &sample_ : nullptr;
  }

 private:
  static void report_score(octavo::Index step, const evaluate::ChoiceScore& score, Report& report) {
    octavo::JsonLine line;
    octavo::EventSummary event;
    line.add("event", "hellaswag").add("step", step).add("questions", score.questions);
    std::string text = octavo::message("hellaswag at step ", step, " | ");
    const auto add = [&](const char* name, const char* key, octavo::Index right) {
      const double share = static_cast<double>(right) / static_cast<double>(score.questions);
      line.add(key, share);
      event.add_scalar(octavo::message("hellaswag/", key), share);
      text += fmt::format("{} {:.1f} % | ", name, 100 * share);
    };
    line.add("questions_without_loss", score.without_loss);
    if (score.without_loss > 0) {  // a fraction of the other questions would look like a score
      text += octavo::message(score.without_loss, " without a finite loss | ");
    } else {
      add("accuracy", "accuracy", score.by_sum);
      add("by tokens", "accuracy_by_tokens", score.by_tokens);
      if (score.has_characters) {
        add("by characters", "accuracy_by_characters", score.by_characters);
      }
    }
    report.measurement(step, octavo::message(text, score.questions, " questions"), line, event);
  }

  /// Opens --tokenizer, or else the model's.
  [[nodiscard]] std::unique_ptr<octavo::Tokenizer> tokenizer(octavo::Index vocabulary) const {
    const std::string& name = options_.chats.tokenizer;
    return programs::open_tokenizer(
        name.empty() ? programs::tokenizer_of_model(options_.load_hf, vocabulary) : name);
  }

  const Options& options_;
  std::vector<evaluate::Choice> choices_;
  std::optional<evaluate::ChoiceBatches> batches_;  ///< refer to `choices_`
  std::string sample_;                              ///< the last one
  octavo::Index sampled_step_ = -1;                 ///< step of `sample_`, or -1
};

}  // namespace trainer
