// Reads HellaSwag files: llm.c's format and JSON Lines.
#pragma once

#include <common/text.hpp>
#include <evaluate/choices.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/data/tokenizer.hpp>
#include <octavo/octavo.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace evaluate {

namespace detail {

inline constexpr std::int32_t hellaswag_magic = 20240522;

/// Reads an llm.c HellaSwag file: 16-bit numbers after a header of 1024 bytes. Each example
/// contains 65535, its size in bytes, its index, the label, the number of endings, the number of
/// context tokens, these tokens, and for each ending the number of its tokens and these tokens.
/// Source: llm.c, dev/data/data_common.py
class HellaSwagFile {
 public:
  HellaSwagFile(const std::filesystem::path& path, Index vocabulary)
      : path_(path), vocabulary_(vocabulary) {
    const octavo::detail::OpenFile file(path);
    constexpr std::uint64_t header_bytes = 1024;
    if (file.size() < header_bytes) {
      refuse(0, octavo::message("the file has ", file.size(), " bytes, but llm.c's header has ",
                                header_bytes));
    }
    std::array<std::int32_t, 3> header{};
    file.read_at(0, std::as_writable_bytes(std::span(header)));
    if (header[0] != hellaswag_magic)
      refuse(0, octavo::message("the file begins with ", header[0], ", but must begin with ",
                                hellaswag_magic));
    if (header[1] != 1)
      refuse(4, octavo::message("the version is ", header[1], "; only version 1 is supported"));
    if (header[2] <= 0) refuse(8, octavo::message("there are ", header[2], " examples"));
    if (file.size() % 2 != 0) refuse(file.size() - 1, "the file ends with half of a 16-bit number");
    count_ = static_cast<std::size_t>(header[2]);
    numbers_.resize((file.size() - header_bytes) / 2);
    file.read_at(header_bytes, std::as_writable_bytes(std::span(numbers_)));
  }

  std::vector<Choice> read() {
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < count_; ++i) choices.push_back(example(i));
    if (at_ != numbers_.size())
      refuse(place(), octavo::message("the file continues after ", count_, " examples"));
    return choices;
  }

 private:
  [[noreturn]] void refuse(std::uint64_t byte, const std::string& what) const {
    throw octavo::IoError(octavo::message(
        path_.string(), ": at byte ", byte, ": ", what,
        "; pass a file written by llm.c's hellaswag.py, or JSON Lines in a file named .jsonl"));
  }
  [[nodiscard]] std::uint64_t place() const { return 1024 + 2 * std::uint64_t{at_}; }

  std::uint16_t next(const char* what) {
    if (at_ == numbers_.size()) refuse(place(), octavo::message("the file ends before ", what));
    return numbers_[at_++];
  }
  void expect(std::uint16_t number, const char* what) {
    const std::uint16_t found = next(what);
    if (found == number) return;
    --at_;
    refuse(place(), octavo::message(what, " is ", found, ", but must be ", number));
  }

  std::vector<std::int32_t> tokens(const char* what) {
    const std::size_t count = next(what);
    if (count == 0 || count > numbers_.size() - at_) {
      --at_;
      refuse(place(), octavo::message("the number of tokens of ", what, " is ", count));
    }
    std::vector<std::int32_t> result;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t token = next(what);
      if (token >= vocabulary_) {
        --at_;
        refuse(place(), octavo::message("the token ", token,
                                        " is outside the model's vocabulary of ", vocabulary_));
      }
      result.push_back(token);
    }
    return result;
  }

  Choice example(std::size_t number) {
    const std::size_t begin = at_;
    Choice choice;
    choice.place = octavo::message(path_.string(), ": example ", number, ", at byte ", place());
    expect(0xffff, "the start of an example");
    const std::uint16_t bytes = next("the size of an example");
    expect(static_cast<std::uint16_t>(number), "the index of an example");
    choice.label = next("a label");
    const std::uint16_t endings = next("the number of endings");
    if (choice.label >= endings) {
      at_ -= 2;
      refuse(place(), octavo::message("the label is ", choice.label, " and the number of endings ",
                                      endings, "; the label must be smaller"));
    }
    choice.context = tokens("a context");
    for (std::uint16_t i = 0; i < endings; ++i) choice.endings.push_back({tokens("an ending")});
    if (2 * (at_ - begin) != bytes) {
      const std::size_t found = 2 * (at_ - begin);
      at_ = begin + 1;
      refuse(place(), octavo::message("the size of an example is ", bytes, ", but it has ", found,
                                      " bytes"));
    }
    return choice;
  }

  std::filesystem::path path_;
  Index vocabulary_;
  std::size_t count_ = 0;
  std::vector<std::uint16_t> numbers_;
  std::size_t at_ = 0;
};

/// Texts of one line.
struct ChoiceTexts {
  std::string context;
  std::vector<std::string> endings;
  std::size_t label = 0;
};

/// @param place  position of the line, for messages
inline ChoiceTexts texts_of_line(std::string_view line, const std::string& place) {
  octavo::JsonReader json(line, place, 0, "correct the line, or leave it out");
  std::optional<std::string> context;
  std::optional<std::int64_t> label;
  ChoiceTexts texts;
  json.object([&](const std::string& key) {
    if (key == "ctx") {
      context = json.string();
    } else if (key == "endings") {
      json.array([&] { texts.endings.push_back(json.string()); });
    } else if (key == "label") {
      // Some copies store it as a string.
      if (json.peek() == octavo::JsonReader::Kind::string) {
        const std::string digit = json.string();
        if (digit.size() != 1 || digit[0] < '0' || digit[0] > '9')
          json.fail(octavo::message("the label '", digit, "' is not a number"));
        label = digit[0] - '0';
      } else {
        label = json.natural();
      }
    } else {
      json.skip();
    }
  });
  json.end();
  if (!context.has_value() || !label.has_value())
    json.fail("the object lacks 'ctx', 'endings' or 'label'");
  if (texts.endings.size() < 2 || *label >= static_cast<std::int64_t>(texts.endings.size()))
    json.fail(octavo::message("the label is ", *label, " and the number of endings ",
                              texts.endings.size(),
                              "; there must be at least two, and the label must be smaller"));
  texts.context = std::move(*context);
  texts.label = static_cast<std::size_t>(*label);
  return texts;
}

/// Returns the tokens of a question. A space separates context and ending.
inline Choice encoded(const ChoiceTexts& texts, const octavo::Tokenizer& tokenizer,
                      Index vocabulary, std::string place) {
  Choice choice;
  choice.place = std::move(place);
  choice.label = texts.label;
  // Spaces belong to the following words.
  const std::size_t end = texts.context.find_last_not_of(' ') + 1;
  const std::string space = texts.context.substr(end) + ' ';
  const auto encode = [&](const std::string& text, octavo::TextPosition before) {
    std::vector<std::int32_t> tokens = tokenizer.encode(text, {}, before);
    const auto wrong =
        std::ranges::find_if(tokens, [&](auto token) { return token >= vocabulary; });
    octavo::require<octavo::ConfigError>(
        wrong == tokens.end(), choice.place, ": the tokenizer's token ",
        wrong == tokens.end() ? 0 : *wrong, " is outside the model's vocabulary of ", vocabulary,
        "; pass the tokenizer that the model was trained with");
    return tokens;
  };
  choice.context = encode(texts.context.substr(0, end), octavo::TextPosition::start);
  octavo::require<octavo::ConfigError>(!choice.context.empty(), choice.place,
                                       ": the context must not be empty");
  for (const std::string& ending : texts.endings) {
    octavo::require<octavo::ConfigError>(!ending.empty(), choice.place,
                                         ": an ending must not be empty");
    choice.endings.push_back({encode(space + ending, octavo::TextPosition::after_text),
                              static_cast<Index>(programs::code_points(ending))});
  }
  return choice;
}

}  // namespace detail

/// Reads the questions of a file in llm.c's format.
/// @throws IoError  naming the file and byte of invalid content, or of a token outside the
///                  vocabulary
inline std::vector<Choice> read_hellaswag(const std::filesystem::path& path, Index vocabulary) {
  return detail::HellaSwagFile(path, vocabulary).read();
}

/// Reads the questions of a JSON Lines file. Each line is an object with the string `ctx`, the
/// array of strings `endings`, and `label`, the index of the correct ending.
/// @throws IoError      naming the file, line and byte of an invalid object
/// @throws ConfigError  naming the line of a text that cannot be used
inline std::vector<Choice> read_hellaswag_lines(const std::filesystem::path& path,
                                                const octavo::Tokenizer& tokenizer,
                                                Index vocabulary) {
  const std::string text = octavo::read_text_file(path, std::size_t{1} << 30);
  std::vector<Choice> choices;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::string place = octavo::message(path.string(), ": line ", ++number);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      choices.push_back(
          detail::encoded(detail::texts_of_line(line, place), tokenizer, vocabulary, place));
    }
    begin = end + 1;
  }
  octavo::require<octavo::IoError>(!choices.empty(), path.string(), ": contains no question");
  return choices;
}

}  // namespace evaluate
