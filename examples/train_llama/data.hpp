// The data of a run: what is read of it, and its batches.
#pragma once

#include <common/text.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

/// Whether so many tokens of --data are enough for the steps, and for validation where nothing else
/// is named for it.
inline bool has_room(octavo::Index all, const Options& options) {
  const auto share =
      static_cast<octavo::Index>(options.validation_fraction * static_cast<double>(all));
  octavo::Index train = all;
  if (options.validation_data.empty()) train -= std::max(share, options.sequence_length + 1);
  return options.batch * options.micro_batches * options.ranks < train / options.sequence_length;
}

/// Throws if the data is too short for the shape of a step.
/// @throws ConfigError  naming it and flags that would do: the longest sequences, in as many tokens
///                      as every precision can reduce
inline void require_room(const octavo::Data& data, const Options& options) {
  if (data.train.size() > 1) return;  // each share has room of its own, or the stream says so
  const octavo::Index tokens = data.train.front().tokens.size();
  if (has_room(tokens, options)) return;
  const auto shape = [](const Options& of) {
    return octavo::message(
        "--batch ", of.batch, " --seq-len ", of.sequence_length,
        of.micro_batches == 1 ? "" : octavo::message(" --micro-batches ", of.micro_batches),
        of.ranks == 1 ? "" : octavo::message(" on ", of.ranks, " ranks"));
  };
  std::string name = data.read.front().path.string();
  if (data.read.size() > 1) name += octavo::message(" and ", data.read.size() - 1, " more");
  const auto fitting = [&](Options other) {
    constexpr octavo::Index multiple = 32;
    other.sequence_length = std::min(other.sequence_length, tokens) / multiple * multiple;
    while (other.sequence_length > 0 && !has_room(tokens, other)) {
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
      name, ": ", tokens, data.is_text ? " bytes" : " tokens", " are too few for ", shape(options),
      " and validation; give more text", less.sequence_length == 0 ? "" : ", or " + shape(less)));
}

/// The data of a run.
/// @throws ConfigError  if it is too short, with what would do
inline octavo::Data load_data(const Options& options, octavo::Index vocabulary) {
  octavo::DataRequest request;
  request.train = options.data;
  request.validation = options.validation_data;
  request.vocabulary = vocabulary;
  request.least_tokens = options.batch * options.sequence_length + 1;
  if (options.document_end >= 0 && options.document_end < octavo::ByteTokenizer::vocabulary) {
    request.between = static_cast<std::uint8_t>(options.document_end);
  }
  octavo::Data data = octavo::load_data(request);
  require_room(data, options);
  if (options.validation_data.empty()) {
    data.validation = octavo::split_off_validation(data.train, options.validation_fraction,
                                                   options.sequence_length + 1);
  }
  return data;
}

/// Its batches.
inline octavo::TokenBatches make_batches(const octavo::Data& data, const Options& options,
                                         const Ranks& ranks) {
  octavo::TokenBatchesOptions batches;
  batches.batch = {options.batch, options.sequence_length, options.most_documents};
  batches.micro_batches = options.micro_batches;
  batches.rank = ranks.rank() / options.tensor_parallel;
  batches.ranks = options.ranks;
  batches.validation_batches = options.validation_batches;
  batches.seed = options.seed;
  if (options.document_end >= 0) batches.document_end = options.document_end;
  return {data.train, data.validation, batches};
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
    fmt::print("text |   {} | {} bytes{}{}\n", programs::visible(file.path.string()), file.bytes,
               file.format.empty() ? "" : " | " + file.format,
               file.remark.empty() ? "" : " | " + programs::visible(file.remark));
  }
  if (files.size() > named) fmt::print("text |   and {} more\n", files.size() - named);
}

/// Prints what the run is going to read.
inline void print_data(const octavo::Data& data, const octavo::TokenBatches& batches) {
  print_files("read", "file", "files", data.read);
  if (!data.skipped.empty()) print_files("SKIPPED", "entry", "entries", data.skipped);
  if (data.train.size() > 1) {
    for (const octavo::TokenShare& share : data.train) {
      fmt::print("text |   share of weight {:g} | {} tokens of {}\n", share.weight,
                 share.tokens.size(), programs::visible(share.name));
    }
  }
  fmt::print("text | {} tokens to train on, {} for validation\n", batches.training_tokens(),
             batches.validation_tokens());
}

}  // namespace trainer
