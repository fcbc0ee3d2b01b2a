// Opens the tokenizer that a flag names.
#pragma once

#include <common/paths.hpp>
#include <common/text.hpp>
#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/run/interrupt.hpp>
#if defined(OCTAVO_WITH_PCRE2)
#include <octavo/data/tokenizer_json.hpp>
#endif
#if defined(OCTAVO_WITH_UTF8PROC)
#include <octavo/data/utf8proc.hpp>
#endif

#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace programs {

/// Returns the tokenizer's file in a Hugging Face folder: tokenizer.json, or else tokenizer.model.
/// Returns "" if the folder has neither.
inline std::string tokenizer_in(const std::filesystem::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    std::error_code error;
    if (std::filesystem::exists(folder / name, error)) return (folder / name).string();
  }
  return "";
}

/// Returns the tokenizer of a model's texts if --tokenizer is not set: the file in its Hugging Face
/// folder, or else "bytes" if they are all of its tokens.
/// @param folder  empty without --model hf:FOLDER
/// @throws ConfigError  if only the user knows the tokenizer
inline std::string tokenizer_of_model(const std::filesystem::path& folder,
                                      octavo::Index vocabulary) {
  std::string own = folder.empty() ? "" : tokenizer_in(folder);
  if (!own.empty()) return own;
  if (vocabulary <= octavo::ByteTokenizer::vocabulary) return "bytes";
  const std::string tokens = octavo::message("the model has ", vocabulary, " tokens, not only the ",
                                             octavo::ByteTokenizer::vocabulary, " bytes");
  octavo::require<octavo::ConfigError>(folder.empty(), folder.string(),
                                       " contains neither tokenizer.json nor tokenizer.model, and ",
                                       tokens, "; pass --tokenizer, or copy its files there");
  throw octavo::ConfigError("--tokenizer is required, because " + tokens +
                            "; pass the one of the training data, or bytes if it was text");
}

/// Returns a note about a written Hugging Face folder without a tokenizer; "" if it has one.
inline std::string note_of_no_tokenizer(const std::filesystem::path& folder,
                                        octavo::Index vocabulary) {
  if (!tokenizer_in(folder).empty()) return "";
  const std::string lack = "the folder contains neither tokenizer.json nor tokenizer.model";
  if (vocabulary <= octavo::ByteTokenizer::vocabulary) return lack + ": tokens are bytes";
  return lack +
         "; copy that of the training data there, or pass it as --tokenizer with the folder (bytes "
         "if the data was text)";
}

/// Opens a tokenizer. Its encoding throws a `StoppedError` soon after an `InterruptGuard` received
/// a signal. Prints to standard error which settings of its file are ignored.
/// @param name  "bytes", or a file: tokenizer.json or tokenizer.model
/// @throws IoError      if the file is not a valid tokenizer
/// @throws ConfigError  for a file, if the program was built without PCRE2
inline std::unique_ptr<octavo::Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<octavo::ByteTokenizer>();
#if defined(OCTAVO_WITH_PCRE2)
  require_file("--tokenizer " + name, name, "pass bytes, a tokenizer.json or a tokenizer.model");
  std::error_code error;
  octavo::require<octavo::IoError>(std::filesystem::file_size(name, error) != 0, "--tokenizer ",
                                   name, ": is empty; download the file again");
#if defined(OCTAVO_WITH_UTF8PROC)
  const octavo::NormalizeText normalize = octavo::normalize_by_utf8proc;
#else
  const octavo::NormalizeText normalize = nullptr;
#endif
  auto tokenizer =
      std::make_unique<octavo::BytePairTokenizer>(octavo::load_tokenizer(name, normalize));
  tokenizer->stop_if([] { return octavo::InterruptGuard::received() != 0; });
  if (!tokenizer->ignored().empty()) {
    print_stderr("{}: ignores {}, because the program determines the length of sequences\n",
                 visible(name), fmt::join(tokenizer->ignored(), " and "));
  }
  return tokenizer;
#else
  throw octavo::ConfigError(
      "this program was built without PCRE2 and supports only --tokenizer bytes; install "
      "libpcre2-dev and build it again");
#endif
}

}  // namespace programs
