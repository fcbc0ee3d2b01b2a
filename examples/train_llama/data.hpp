// The text of a run: what is read of it, its batches, its evaluation.
#pragma once

#include <common/text.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace trainer {

/// Whether so many bytes are enough for validation and for the steps.
inline bool has_room(std::size_t bytes, const Options& options) {
  const auto all = static_cast<octavo::Index>(bytes);
  const auto share =
      static_cast<octavo::Index>(options.validation_fraction * static_cast<double>(all));
  const octavo::Index train = all - std::max(share, options.sequence_length + 1);
  return options.batch * options.micro_batches < train / options.sequence_length;
}

/// Throws if the text is too short for the shape of a step.
/// @throws ConfigError  naming the text and flags that would do: the longest sequences, in as many
///                      tokens as every precision can reduce
inline void require_room(const octavo::Text& text, const Options& options) {
  if (has_room(text.bytes.size(), options)) return;
  const auto shape = [](const Options& of) {
    return octavo::message(
        "--batch ", of.batch, " --seq-len ", of.sequence_length,
        of.micro_batches == 1 ? "" : octavo::message(" --micro-batches ", of.micro_batches));
  };
  std::string name = text.read.front().path.string();
  if (text.read.size() > 1) name += octavo::message(" and ", text.read.size() - 1, " more");
  const auto fitting = [&](Options other) {
    constexpr octavo::Index multiple = 32;
    const auto most = static_cast<octavo::Index>(text.bytes.size());
    other.sequence_length = std::min(other.sequence_length, most) / multiple * multiple;
    while (other.sequence_length > 0 && !has_room(text.bytes.size(), other)) {
      other.sequence_length -= multiple;
    }
    return other;
  };
  Options less = fitting(options);
  if (less.sequence_length == 0) {
    less.batch = less.micro_batches = 1;
    less.sequence_length = options.sequence_length;
    less = fitting(less);
  }
  throw octavo::ConfigError(octavo::message(
      name, ": ", text.bytes.size(), " bytes are too few for ", shape(options),
      " and validation; give more text", less.sequence_length == 0 ? "" : ", or " + shape(less)));
}

/// Text, batches and buffers of a run.
class Data {
 public:
  explicit Data(const Options& options)
      : text_(read(options)),
        parts_(octavo::split_validation(text_.bytes, options.validation_fraction,
                                        options.sequence_length + 1)),
        stream_(parts_.train, {.sequences = options.batch * options.micro_batches,
                               .sequence_length = options.sequence_length,
                               .seed = options.seed}),
        validation_(parts_.validation, {.sequences = options.batch,
                                        .sequence_length = options.sequence_length,
                                        .max_batches = options.validation_batches}),
        rows_(static_cast<std::size_t>(options.batch * options.sequence_length)),
        tokens_(rows_ * static_cast<std::size_t>(options.micro_batches)),
        targets_(tokens_.size()) {}

  octavo::StepResult step(octavo::TrainingSession& session, double learning_rate) {
    stream_.next(tokens_, targets_);
    return session.step(tokens_, targets_, learning_rate);
  }

  octavo::LossSum evaluate(octavo::TrainingSession& session) {
    session.begin_evaluation();
    const auto tokens = std::span(tokens_).first(rows_);
    const auto targets = std::span(targets_).first(rows_);
    octavo::LossSum total;
    for (octavo::Index batch = 0; batch < validation_.batches(); ++batch) {
      validation_.get(batch, tokens, targets);
      const octavo::LossSum loss = session.evaluate(tokens, targets);
      total.sum += loss.sum;
      total.tokens += loss.tokens;
    }
    return total;
  }

  [[nodiscard]] double epoch() const { return stream_.epoch(); }
  [[nodiscard]] double tokens_in_step() const { return static_cast<double>(tokens_.size()); }
  [[nodiscard]] const octavo::Text& text() const { return text_; }
  [[nodiscard]] std::size_t training_tokens() const { return parts_.train.size(); }
  [[nodiscard]] std::size_t validation_tokens() const { return parts_.validation.size(); }

 private:
  /// @throws ConfigError  if the text is too short, with what would do
  static octavo::Text read(const Options& options) {
    octavo::Text text = octavo::load_text({options.data.begin(), options.data.end()});
    require_room(text, options);
    return text;
  }

  octavo::Text text_;
  octavo::TokenSplit parts_;
  octavo::TokenStream stream_;
  octavo::ValidationSet validation_;
  std::size_t rows_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
};

/// Prints how much of which files was read, or skipped and why: the first of them by name.
inline void print_files(const char* what, const char* one, const char* many,
                        const std::vector<octavo::TextFile>& files) {
  constexpr std::size_t named = 12;
  std::uintmax_t bytes = 0;
  for (const octavo::TextFile& file : files) bytes += file.bytes;
  fmt::print("text | {} {} {}, {} bytes\n", what, files.size(), files.size() == 1 ? one : many,
             bytes);
  for (std::size_t i = 0; i < std::min(files.size(), named); ++i) {
    const octavo::TextFile& file = files[i];
    fmt::print("text |   {} | {} bytes{}\n", programs::visible(file.path.string()), file.bytes,
               file.remark.empty() ? "" : " | " + programs::visible(file.remark));
  }
  if (files.size() > named) fmt::print("text |   and {} more\n", files.size() - named);
}

/// Prints what the run is going to read.
inline void print_text(const Data& data) {
  print_files("read", "file", "files", data.text().read);
  if (!data.text().skipped.empty()) print_files("SKIPPED", "entry", "entries", data.text().skipped);
  fmt::print("text | {} tokens to train on, {} for validation\n", data.training_tokens(),
             data.validation_tokens());
}

}  // namespace trainer
