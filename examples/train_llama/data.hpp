// The text of a run: what is read of it, and its batches.
#pragma once

#include <common/text.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

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
  return options.batch * options.micro_batches * options.ranks < train / options.sequence_length;
}

/// Throws if the text is too short for the shape of a step.
/// @throws ConfigError  naming the text and flags that would do: the longest sequences, in as many
///                      tokens as every precision can reduce
inline void require_room(const octavo::Text& text, const Options& options) {
  if (has_room(text.bytes.size(), options)) return;
  const auto shape = [](const Options& of) {
    return octavo::message(
        "--batch ", of.batch, " --seq-len ", of.sequence_length,
        of.micro_batches == 1 ? "" : octavo::message(" --micro-batches ", of.micro_batches),
        of.ranks == 1 ? "" : octavo::message(" on ", of.ranks, " ranks"));
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

/// The text of a run.
/// @throws ConfigError  if it is too short, with what would do
inline octavo::Text load_text(const Options& options) {
  octavo::Text text = octavo::load_text({options.data.begin(), options.data.end()});
  require_room(text, options);
  return text;
}

/// Its batches.
inline octavo::TokenBatches make_batches(const octavo::Text& text, const Options& options,
                                         const Ranks& ranks) {
  return {text.bytes,
          {.batch = {options.batch, options.sequence_length},
           .micro_batches = options.micro_batches,
           .rank = ranks.rank() / options.tensor_parallel,
           .ranks = options.ranks,
           .validation_fraction = options.validation_fraction,
           .validation_batches = options.validation_batches,
           .seed = options.seed}};
}

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
inline void print_text(const octavo::Text& text, const octavo::TokenBatches& batches) {
  print_files("read", "file", "files", text.read);
  if (!text.skipped.empty()) print_files("SKIPPED", "entry", "entries", text.skipped);
  fmt::print("text | {} tokens to train on, {} for validation\n", batches.training_tokens(),
             batches.validation_tokens());
}

}  // namespace trainer
