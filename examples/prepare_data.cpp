/// @file
/// Converts text to token files for the trainer:
///
///     prepare_data TEXT.txt DOCUMENTS.jsonl --tokenizer tokenizer.json --out train.bin
///
/// Exit codes: 0 success, 1 a file cannot be read or written, 2 an option or a text is invalid, 3
/// stopped by a signal. There is no output unless the exit code is 0.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/io/token_file_writer.hpp>
#include <octavo/run/interrupt.hpp>

#include <common/flags.hpp>
#include <common/needs.hpp>
#include <common/text.hpp>
#include <common/tokenizer.hpp>
#include "prepare_data/documents.hpp"
#include "prepare_data/progress.hpp"

namespace prepare_data {
namespace {

struct Options {
  std::vector<std::string> inputs;
  std::string out;
  std::string tokenizer = "bytes";
  std::string format = "llm.c";
  std::string begin = "none";
  std::string end = "auto";
  std::string input_format = "auto";
  std::string key = "text";
  bool special = false;
  int threads = 0;
};

const std::vector<std::string> formats{"llm.c", "megatron"};
const std::vector<std::string> input_formats{"auto", "text", "jsonl"};

void declare(CLI::App& app, Options& options) {
  app.add_option("TEXT", options.inputs,
                 "text files, each of which is a document, or .jsonl files with one document per "
                 "line, possibly compressed (.gz, .zst); - reads standard input")
      ->required();
  app.add_option("--out", options.out, "token file to write")->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "bytes, a tokenizer.json, or a tokenizer.model (SentencePiece, or Llama 3's)")
      ->capture_default_str();
  app.add_option("--format", options.format,
                 "format of the token file: llm.c, or megatron, which adds an index of documents")
      ->check(programs::one_of(formats))
      ->capture_default_str();
  app.add_option("--begin", options.begin, "special token before each document, or none")
      ->capture_default_str();
  app.add_option("--end", options.end,
                 "special token after each document, or none; auto: the tokenizer's EOS token, or "
                 "a newline for bytes")
      ->capture_default_str();
  app.add_option("--input-format", options.input_format,
                 "format of the texts: " + programs::joined(input_formats) +
                     "; auto reads .jsonl files and standard input as JSON Lines")
      ->check(programs::one_of(input_formats))
      ->capture_default_str();
  app.add_option("--key", options.key, "member of JSON Lines objects that contains the text")
      ->capture_default_str();
  app.add_flag("--special", options.special,
               "encode the names of special tokens in the text as these tokens");
  app.add_option("--threads", options.threads, "number of CPU threads; 0 uses all")
      ->check(programs::non_negative_integer())
      ->capture_default_str();
}

InputFormat format_of(const Options& options) {
  return options.input_format == "text"    ? InputFormat::text
         : options.input_format == "jsonl" ? InputFormat::json_lines
                                           : InputFormat::by_name;
}

/// Whether one of the files is read as JSON Lines.
bool reads_json_lines(const Options& options) {
  return std::ranges::any_of(options.inputs, [&](const std::string& file) {
    return is_json_lines(file, format_of(options));
  });
}

/// Returns the token that --begin or --end adds to a document, if any.
std::vector<std::int32_t> mark_of(const octavo::Tokenizer& tokenizer, const std::string& name) {
  if (name == "none") return {};
  if (name != "auto") return {tokenizer.special_token(name)};
  const auto& special = tokenizer.special_tokens();
  for (const char* known : {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"}) {
    if (special.contains(known)) return {tokenizer.special_token(known)};
  }
  octavo::require<octavo::ConfigError>(
      special.empty() && tokenizer.vocabulary_size() == octavo::ByteTokenizer::vocabulary,
      "--end auto: the tokenizer has none of <|end_of_text|>, <|endoftext|>, </s> and <eos>; pass "
      "the token that ends a document, or none");
  return tokenizer.encode("\n");
}

/// Encodes documents.
/// @throws ConfigError  with the file and line of the first document that cannot be encoded
std::vector<std::vector<std::int32_t>> encoded(const octavo::Tokenizer& tokenizer,
                                               const std::vector<Document>& documents,
                                               const octavo::Context<octavo::Cpu>& context,
                                               const std::vector<std::string>& allowed) {
  std::vector<std::string_view> texts;
  texts.reserve(documents.size());
  for (const Document& document : documents) texts.emplace_back(document.text);
  try {
    return tokenizer.encode_all(texts, context, allowed);
  } catch (const octavo::ConfigError&) {
    for (const Document& document : documents) {
      try {
        (void)tokenizer.encode(document.text, allowed);
      } catch (const octavo::ConfigError& error) {
        throw octavo::ConfigError(octavo::message(document.place, ": ", error.what()));
      }
    }
    throw;
  }
}

/// @returns the exit code
int run(CLI::App& app, const Options& options) {
  constexpr std::size_t batch_bytes = std::size_t{1} << 25;
  constexpr int stopped = 3;
  programs::require_effects(app,
                            {{{"--key"}, reads_json_lines(options), "--input-format", "jsonl"},
                             {{"--special"}, options.tokenizer != "bytes", "--tokenizer", "FILE"}});
  octavo::require<octavo::ConfigError>(!options.out.empty(),
                                       "--out must name a file, but is empty; pass a new file");
  const octavo::Context<octavo::Cpu> context(options.threads);
  const auto tokenizer = programs::open_tokenizer(options.tokenizer);
  const std::vector<std::int32_t> begin = mark_of(*tokenizer, options.begin);
  const std::vector<std::int32_t> end = mark_of(*tokenizer, options.end);
  std::vector<std::string> allowed;
  if (options.special) {
    for (const auto& [name, token] : tokenizer->special_tokens()) allowed.push_back(name);
  }
  Documents documents({options.inputs.begin(), options.inputs.end()}, options.key,
                      format_of(options));
  for (const std::string& note : documents.notes()) {
    programs::print_stderr("prepare_data: warning: {}\n", programs::visible(note));
  }
  octavo::require<octavo::ConfigError>(documents.total_bytes() != 0,
                                       "the files contain no text; pass others");
  octavo::TokenFileWriter writer(
      options.out,
      options.format == "llm.c" ? octavo::TokenFileKind::llm_c : octavo::TokenFileKind::megatron,
      tokenizer->vocabulary_size());
  const octavo::InterruptGuard guard;
  const auto start = std::chrono::steady_clock::now();
  Progress progress(documents.total_bytes(), ::isatty(STDERR_FILENO) != 0);
  std::uint64_t count = 0;
  try {
    for (;;) {
      const std::vector<Document> read = documents.next(batch_bytes);
      if (octavo::InterruptGuard::received() != 0) throw octavo::StoppedError("a signal arrived");
      if (read.empty()) break;
      for (std::vector<std::int32_t>& tokens : encoded(*tokenizer, read, context, allowed)) {
        tokens.insert(tokens.begin(), begin.begin(), begin.end());
        tokens.insert(tokens.end(), end.begin(), end.end());
        writer.add(tokens);
      }
      count += read.size();
      progress.show(documents.read_bytes(), writer.tokens());
    }
  } catch (const octavo::StoppedError&) {
    progress.clear();
    programs::print_stderr("prepare_data: stopped; nothing was written\n");
    return stopped;
  }
  progress.clear();
  octavo::require<octavo::ConfigError>(writer.tokens() > 0,
                                       "the files contain no tokens; pass others");
  writer.commit();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{} of {} to {} of a vocabulary of {} in {:.1f} s, {} tokens/s: {}\n",
      programs::counted(documents.read_bytes(), "byte"), programs::counted(count, "document"),
      programs::counted(static_cast<std::uint64_t>(writer.tokens()), "token"),
      programs::grouped(static_cast<std::uint64_t>(tokenizer->vocabulary_size())), seconds.count(),
      programs::grouped(rate_of(writer.tokens(), seconds.count())), programs::visible(options.out));
  programs::flush_output();
  return 0;
}

}  // namespace
}  // namespace prepare_data

int main(int argc, char** argv) {
  CLI::App app("Converts text to token files for the trainer.", "prepare_data");
  prepare_data::Options options;
  prepare_data::declare(app, options);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
  try {
    return prepare_data::run(app, options);
  } catch (const octavo::IoError& error) {
    programs::print_stderr("prepare_data: {}\n", programs::text_of(error));
    return 1;
  } catch (const octavo::Error& error) {
    programs::print_stderr("prepare_data: {}\n", programs::visible(error.what()));
    return 2;
  } catch (const std::exception& error) {
    programs::print_stderr("prepare_data: {}\n", programs::text_of(error));
    return 1;
  }
}
