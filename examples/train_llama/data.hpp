// Text and token files as the data of a run: flags, files and batches.
#pragma once

#include <common/text.hpp>
#include <common/tokenizer.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/data/data.hpp>
#include <octavo/inference/generate.hpp>
#include <octavo/octavo.hpp>
#include <octavo/run/interrupt.hpp>
#include <octavo/run/token_batches.hpp>
#include <train_llama/documents.hpp>
#include <train_llama/program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

/// Declares the flags for text and token files.
inline void declare_text(CLI::App& app, Options& options) {
  const programs::FlagGroup group(app, data_group);
  group.add("--data", options.data,
            "text, JSON Lines or token file, folder of text files, or pattern; required, "
            "repeatable; either all or none have a weight, as in code.bin:0.3");
  group.add_without_default(
      "--validation-data", options.validation_data,
      "validation files, named like those of --data; replaces --validation-fraction");
  group.add_without_default(
      "--tokenizer", options.chats.tokenizer,
      "tokenizer of token files, as in prepare_data; decodes samples, and encodes --hellaswag "
      "questions in JSON Lines; without it, samples are printed only for text");
  group
      .add_without_default("--document-end", options.document_end,
                           "token ID that ends a document; tokens then attend only within their "
                           "own document; by default, each sequence is one document")
      ->check(programs::non_negative_integer());
  group
      .add("--most-documents", options.most_documents,
           "maximum number of documents in a micro-batch; used with --document-end")
      ->check(programs::non_negative_integer());
}

/// @throws ConfigError  if a required flag is missing, with advice
inline void require_text(const Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.data.empty(), "--data is required: pass a text file or a folder of text files",
      or_configuration(options));
  octavo::require<octavo::ConfigError>(
      (options.document_end >= 0) == (options.most_documents > 0), "--document-end and ",
      "--most-documents must be set together: the token that ends a document, and the maximum "
      "number of documents in a micro-batch of --batch sequences; pass both");
}

/// Whether --data with this number of tokens is long enough for a step, and for validation unless
/// --validation-data is set.
inline bool has_room(octavo::Index all, const Options& options) {
  const auto share =
      static_cast<octavo::Index>(options.validation_fraction * static_cast<double>(all));
  octavo::Index train = all;
  if (options.validation_data.empty()) train -= std::max(share, options.sequence_length + 1);
  return options.batch * options.micro_batches * options.ranks < train / options.sequence_length;
}

/// Throws if the data is too short for the shape of a step.
/// @throws ConfigError  with flags that fit: the longest sequences that every precision supports
inline void require_room(const octavo::Data& data, const Options& options) {
  if (data.train.size() > 1) return;  // the token stream checks each share
  const octavo::Index tokens = data.train.front().tokens.size();
  if (has_room(tokens, options)) return;
  const auto shape = [&](const Options& of) {
    return octavo::message("--batch ", of.batch, " --seq-len ", of.sequence_length,
                           of.micro_batches == 1 && options.micro_batches == 1
                               ? ""
                               : octavo::message(" --micro-batches ", of.micro_batches),
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
      " and validation; pass more text", less.sequence_length == 0 ? "" : ", or " + shape(less)));
}

/// Returns why weights with a tokenizer cannot be trained on text, whose tokens are bytes, and how
/// to write token files; "" if they can.
/// @param load_hf  folder of --model hf:FOLDER; empty for new weights
inline std::string refusal_of_text(const std::filesystem::path& load_hf, octavo::Index vocabulary) {
  if (load_hf.empty()) return {};
  std::filesystem::path tokenizer;
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (std::filesystem::exists(load_hf / name)) tokenizer = load_hf / name;
  }
  if (tokenizer.empty() && vocabulary <= octavo::ByteTokenizer::vocabulary) return {};
  const std::string why =
      octavo::message("--data is text, whose bytes would be the tokens, but hf:", load_hf.string(),
                      " has a tokenizer with ", vocabulary, " tokens");
  if (tokenizer.empty()) {
    return why +
           ", and the folder contains neither tokenizer.json nor tokenizer.model; get one of them "
           "for this model, pass it to prepare_data as --tokenizer, and pass the token files that "
           "it writes";
  }
  return octavo::message(why, "; write token files with prepare_data --tokenizer ",
                         tokenizer.string(), ", and pass those");
}

/// Returns a note that bytes are the tokens, if the model's vocabulary is larger than that; else
/// "".
inline std::string note_of_bytes(octavo::Index vocabulary) {
  if (vocabulary <= octavo::ByteTokenizer::vocabulary) return {};
  return octavo::message("bytes are the tokens, ", octavo::ByteTokenizer::vocabulary, " of the ",
                         vocabulary,
                         " that the model has; prepare_data writes token files with a tokenizer");
}

/// Loads the data of a run.
/// @throws ConfigError  if it is too short, or if it is text but the weights have a tokenizer; text
///                      is then not read
inline octavo::Data load_data(const Options& options, octavo::Index vocabulary) {
  const octavo::BatchShape shape{options.batch, options.sequence_length, options.most_documents};
  require_documents(options.document_end, shape, vocabulary);
  octavo::DataRequest request;
  request.train = options.data;
  request.validation = options.validation_data;
  request.vocabulary = vocabulary;
  request.least_tokens = options.batch * options.sequence_length + 1;
  request.text_refusal = refusal_of_text(options.load_hf, vocabulary);
  if (options.document_end >= 0 && options.document_end < octavo::ByteTokenizer::vocabulary) {
    request.between = static_cast<std::uint8_t>(options.document_end);
  }
  octavo::Data data = octavo::load_data(request);
  require_documents_of(data, options.document_end, shape, octavo::ByteTokenizer::vocabulary);
  require_room(data, options);
  if (options.validation_data.empty()) {
    data.validation = octavo::split_off_validation(data.train, options.validation_fraction,
                                                   options.sequence_length + 1);
  }
  return data;
}

/// Returns the batches of the data.
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

/// Prints the number and bytes of files that were read or skipped, and names the first ones.
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

/// The text of a run, and its batches.
class TextData final : public RunDataOf<octavo::TokenBatches> {
 public:
  TextData(octavo::Data data, const Options& options, const Ranks& ranks, octavo::Index vocabulary)
      : RunDataOf(name_document_flags([&] { return make_batches(data, options, ranks); })),
        data_(std::move(data)),
        note_(data_.is_text ? note_of_bytes(vocabulary) : "") {
    const std::string& name = options.chats.tokenizer;
    if (name.empty() && !data_.is_text && options.samples_each) note_ = note_of_no_samples;
    if (name.empty() || (name == "bytes" && data_.is_text)) return;
    octavo::require<octavo::ConfigError>(
        !data_.is_text, "--tokenizer ", name,
        " must be the tokenizer of token files, but --data is text, whose bytes are the tokens; "
        "leave it out, or write token files with prepare_data and pass those");
    tokenizer_ = programs::open_tokenizer(name);
    // Samples follow the training, so an error there would come too late.
    for (const std::int32_t token : tokenizer_->encode(prompt)) {
      octavo::require<octavo::ConfigError>(
          token < vocabulary, "--tokenizer ", name, " must be the one that wrote the token files, ",
          "but its token ", token, " is outside the model's vocabulary of ", vocabulary,
          "; pass that one");
    }
  }

  [[nodiscard]] std::size_t training_tokens() const override { return batches_.training_tokens(); }
  [[nodiscard]] std::size_t validation_tokens() const override {
    return batches_.validation_tokens();
  }

  void print() const override {
    print_files("read", "file", "files", data_.read);
    if (!data_.skipped.empty()) print_files("SKIPPED", "entry", "entries", data_.skipped);
    if (data_.train.size() > 1) {
      for (const octavo::TokenShare& share : data_.train) {
        fmt::print("text |   share of weight {:g} | {} tokens of {}\n", share.weight,
                   share.tokens.size(), programs::visible(share.name));
      }
    }
    fmt::print("text | {} tokens to train on, {} for validation\n", training_tokens(),
               validation_tokens());
    if (!note_.empty()) fmt::print("text | {}\n", note_);
  }

  void describe(octavo::JsonLine& line) const override {
    line.add("files", data_.read.size()).add("skipped_files", data_.skipped.size());
  }

  [[nodiscard]] std::vector<std::filesystem::path> sampled_files() const override {
    std::vector<std::filesystem::path> files;
    for (const octavo::TextFile& file : data_.read) {
      if (!file.format.empty()) files.push_back(file.path);
    }
    return files;
  }

  /// Returns "" if the model's tokens are not bytes and --tokenizer was not passed.
  [[nodiscard]] std::string sample(octavo::TrainingSession& session,
                                   const Options& options) const override {
    if (!data_.is_text && tokenizer_ == nullptr) return {};
    const octavo::ByteTokenizer bytes;
    const octavo::Tokenizer* own = tokenizer_.get();
    const octavo::Tokenizer& tokenizer = own == nullptr ? bytes : *own;
    return tokenizer.decode(octavo::generate(
        session, tokenizer.encode(prompt), options.sequence_length,
        {.tokens = options.sample,
         .sampling = {.temperature = options.temperature},
         .seed = options.seed,
         .vocabulary = std::min(tokenizer.vocabulary_size(), session.facts().vocabulary),
         .stop = [&] {
           return session.ranks().largest(octavo::InterruptGuard::received()) != 0;
         }}));
  }

 private:
  static constexpr const char* prompt = "\n";  ///< of samples
  static constexpr const char* note_of_no_samples =
      "no samples: nothing decodes their tokens; pass the tokenizer of the files as --tokenizer";

  octavo::Data data_;
  std::string note_;
  std::unique_ptr<octavo::Tokenizer> tokenizer_;  ///< null: tokens are bytes, or cannot be decoded
};

}  // namespace trainer
