// A configuration file: TOML whose keys are the names of flags.
#pragma once

#include <common/flag_places.hpp>
#include <common/flags.hpp>
#include <octavo/data/file_kind.hpp>
#include <octavo/data/open_file.hpp>

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <istream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace programs {

/// Accepts everything except a named pipe: opening it would wait for a writer, which may never
/// come. The pipe of <(COMMAND), /dev/fd/63, has no name.
inline CLI::Validator no_named_pipe() {
  return CLI::Validator(
      [](const std::string& path) -> std::string {
        std::error_code error;
        const std::filesystem::path name = std::filesystem::canonical(path, error);
        if (error || !std::filesystem::is_fifo(name, error)) return {};
        return "'" + path +
               "' is a named pipe; pass a TOML file, or <(COMMAND) for a command's output";
      },
      "");
}

/// Reads and writes the values of an app's flags as TOML. Validates each value with the flag's
/// validators, so that an error can name the file and the line.
class FlagsFile : public CLI::Config, public FlagPlaces {
 public:
  explicit FlagsFile(CLI::App& app) : app_(app) {}

  /// @throws ConfigError  for invalid TOML, a section, an unknown key, or a value that the flag
  ///                      does not accept
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> values;
    // As a whole: toml++ seeks in streams, which a pipe does not support.
    std::string text;
    std::array<char, 4096> piece;
    while (text.size() <= octavo::max_file_bytes) {
      input.read(piece.data(), piece.size());
      text.append(piece.data(), static_cast<std::size_t>(input.gcount()));
      if (!input) break;
    }
    octavo::require<octavo::ConfigError>(text.size() <= octavo::max_file_bytes, path(),
                                         " must have at most ", octavo::max_file_bytes,
                                         " bytes, but has more; pass a TOML file");
    octavo::detail::require_text<octavo::ConfigError>(path(), text);
    require_shallow(text);
    try {
      const toml::table table = toml::parse(text, path());
      for (auto&& [key, node] : table) {
        values.push_back(item(std::string(std::string_view(key)), node));
        read_[{values.back().name, values.back().inputs.back()}] = place(node.source());
      }
    } catch (const toml::parse_error& error) {
      require_quotes(text, error.source());
      throw octavo::ConfigError(octavo::message(place(error.source()), error.description(),
                                                is_unterminated_string(error.description())
                                                    ? "; is a quote missing at the line's end?"
                                                    : "; a configuration is TOML: see "
                                                      "https://toml.io"));
    }
    return values;
  }

  /// Returns the configuration file if it sets `key` to this value, otherwise "".
  [[nodiscard]] std::string file_with(const std::string& key, const std::string& value) const {
    return place_of(key, value).empty() ? "" : path();
  }

  [[nodiscard]] std::string place_of(const std::string& key,
                                     const std::string& value) const override {
    const auto found = read_.find({key, value});
    return found == read_.end() ? "" : found->second;
  }

  /// Writes one line for each flag, in the order of declaration. Omits flags that were not set and
  /// have neither a default nor the type of a switch.
  std::string to_config(const CLI::App* app, bool default_also, bool, std::string) const override {
    std::string text;
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_configurable()) continue;
      const bool has_default = kind_of(*option) == Kind::flag || !option->get_default_str().empty();
      const bool shown = default_also && has_default;
      if (option->count() == 0 && !shown) continue;
      text += option->get_single_name() + " = " + value_text(*option) + '\n';
    }
    return text;
  }

 private:
  /// Throws if a key has too many dots: toml++ recurses for each of them.
  void require_shallow(std::string_view text) const {
    constexpr int max_dots = 256;
    int line = 1;
    int dots = 0;
    for (const char letter : text) {
      if (letter == '.') ++dots;
      if (std::string_view("=,#{}[]\n").find(letter) != std::string_view::npos) dots = 0;
      if (letter == '\n') ++line;
      octavo::require<octavo::ConfigError>(dots <= max_dots, path(), ':', line,
                                           ": a key must have at most ", max_dots,
                                           " dots; write the keys without sections");
    }
  }

  /// Whether toml++ reached the end of a line or of the file inside a string.
  static bool is_unterminated_string(std::string_view description) {
    const auto says = [&](std::string_view words) {
      return description.find(words) != std::string_view::npos;
    };
    return says("string") && (says("control characters") || says("end-of-file"));
  }

  enum class Kind { flag, whole, number, text };

  /// Determines the kind from the name that CLI11 gives to the type of the flag's value.
  static Kind kind_of(const CLI::Option& option) {
    if (option.get_items_expected_max() == 0) return Kind::flag;
    const std::string name = option.get_type_name();
    if (name.starts_with("INT") || name.starts_with("UINT")) return Kind::whole;
    return name.starts_with("FLOAT") ? Kind::number : Kind::text;
  }

  [[nodiscard]] std::string path() const { return app_.get_config_ptr()->as<std::string>(); }

  [[nodiscard]] std::string place(const toml::source_region& source) const {
    return octavo::message(path(), ':', source.begin.line, ": ");
  }

  static std::string trimmed(const std::string& text) {
    constexpr const char* blanks = " \t\r";
    const std::size_t begin = std::min(text.size(), text.find_first_not_of(blanks));
    return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
  }

  /// Throws if the invalid line sets a text flag to an unquoted word. toml++ reports only its
  /// guess from the first letter.
  /// @throws ConfigError  with the corrected line
  void require_quotes(const std::string& text, const toml::source_region& source) const {
    std::istringstream lines(text);
    std::string line;
    for (toml::source_index i = 0; i < source.begin.line; ++i) std::getline(lines, line);
    const std::size_t sign = line.find('=');
    if (sign == std::string::npos) return;
    const std::string key = trimmed(line.substr(0, sign));
    const std::string value = trimmed(line.substr(sign + 1, line.find('#', sign) - sign - 1));
    if (value.empty() || value.find_first_of("\"'[{=") != std::string::npos) return;
    const CLI::Option* option = app_.get_option_no_throw("--" + key);
    if (option == nullptr || kind_of(*option) != Kind::text) return;
    throw octavo::ConfigError(octavo::message(place(source), key, ": words must be quoted; write ",
                                              key, " = ", quoted(value)));
  }

  [[nodiscard]] CLI::ConfigItem item(const std::string& key, const toml::node& node) const {
    octavo::require<octavo::ConfigError>(!node.is_table() && !node.is_array_of_tables(),
                                         place(node.source()),
                                         "the file must not contain sections, but contains [", key,
                                         "]; write the keys without sections");
    CLI::Option* option = app_.get_option_no_throw("--" + key);
    const std::string bare = without_dashes(key);
    octavo::require<octavo::ConfigError>(
        bare == key || app_.get_option_no_throw("--" + bare) == nullptr, place(node.source()),
        "write the key without dashes: ", bare);
    if (option == nullptr || !option->get_configurable()) {
      throw octavo::ConfigError(place(node.source()) + unknown_key(app_, key));
    }
    CLI::ConfigItem result;
    result.name = key;
    if (const toml::array* array = node.as_array(); array != nullptr) {
      octavo::require<octavo::ConfigError>(option->get_items_expected_max() > 1,
                                           place(node.source()), key,
                                           " is an array; write one value");
      octavo::require<octavo::ConfigError>(
          !array->empty(), place(node.source()), key,
          " is an empty array; add at least one value, or leave it out");
      for (const toml::node& element : *array) {
        result.inputs.push_back(checked_value(*option, key, element));
      }
    } else {
      result.inputs.push_back(checked_value(*option, key, node));
    }
    return result;
  }

  /// Returns the value as it would be on the command line.
  [[nodiscard]] std::string checked_value(CLI::Option& option, const std::string& key,
                                          const toml::node& node) const {
    const Kind kind = is_time(option) && node.is_string() ? Kind::text : kind_of(option);
    std::string value = value_of(kind, key, node);
    octavo::require<octavo::ConfigError>(value.find('\0') == std::string::npos,
                                         place(node.source()), key,
                                         " must not contain the character U+0000; remove it");
    const auto validators = option.get_items_expected_max() == 0 ? 0 : validator_count(option);
    for (int i = 0; i < validators; ++i) {
      const std::string error = (*option.get_validator(i))(value);
      octavo::require<octavo::ConfigError>(error.empty(), place(node.source()), key, ": ", error);
    }
    return value;
  }

  /// Whether the value may have a unit; see `seconds`.
  static bool is_time(CLI::Option& option) {
    for (int i = 0; i < validator_count(option); ++i) {
      if (option.get_validator(i)->get_name() == time_name) return true;
    }
    return false;
  }

  static int validator_count(CLI::Option& option) {
    int count = 0;
    try {
      while (option.get_validator(count) != nullptr) ++count;
    } catch (const CLI::OptionNotFound&) {
    }
    return count;
  }

  [[nodiscard]] std::string value_of(Kind kind, const std::string& key,
                                     const toml::node& node) const {
    const double number = node.value<double>().value_or(std::nan(""));
    const auto truth = node.value_exact<bool>();
    const auto text = node.value_exact<std::string>();
    const auto whole = node.value_exact<std::int64_t>();
    if (kind == Kind::flag && truth) return *truth ? "true" : "false";
    if (kind == Kind::text && text) return *text;
    if (kind == Kind::number && node.is_number()) return fmt::format("{}", number);
    if (kind == Kind::whole && whole) return std::to_string(*whole);
    // 1e3 is also a whole number; the flag's validators reject other numbers.
    if (kind == Kind::whole && node.is_number()) return fmt::format("{:.17g}", number);
    constexpr std::array wanted{"true or false", "a whole number without quotes",
                                "a number without quotes", "a text in quotes"};
    throw octavo::ConfigError(octavo::message(place(node.source()), key, " is ",
                                              name_of(node.type()), "; write ",
                                              wanted[static_cast<std::size_t>(kind)]));
  }

  static const char* name_of(toml::node_type type) {
    switch (type) {
      case toml::node_type::string:
        return "a text";
      case toml::node_type::integer:
      case toml::node_type::floating_point:
        return "a number";
      case toml::node_type::boolean:
        return "true or false";
      case toml::node_type::array:
        return "an array";
      default:
        return "a date or a time";
    }
  }

  static std::string value_text(const CLI::Option& option) {
    const bool several = option.get_items_expected_max() > 1;
    std::string text;
    if (several && option.count() > 0) {
      for (const std::string& value : option.as<std::vector<std::string>>()) {
        text += (text.empty() ? "" : ", ") + quoted(value);
      }
      return "[" + text + "]";
    }
    if (several) return "[]";
    switch (kind_of(option)) {
      case Kind::flag:
        return option.count() > 0 && option.as<bool>() ? "true" : "false";
      case Kind::whole:
        return std::to_string(option.as<std::int64_t>());
      case Kind::number:
        return fmt::format("{}", option.as<double>());
      case Kind::text:
        break;
    }
    return quoted(option.as<std::string>());
  }

  /// Returns a TOML string.
  static std::string quoted(const std::string& value) {
    std::string text = "\"";
    for (const char character : value) {
      const auto code = static_cast<unsigned char>(character);
      if (code < 0x20 || code == 0x7f) {
        text += fmt::format("\\u{:04X}", code);
        continue;
      }
      if (character == '"' || character == '\\') text += '\\';
      text += character;
    }
    return text + '"';
  }

  CLI::App& app_;
  /// Places of keys and values. Mutable because CLI11 declares `from_config` const.
  mutable std::map<std::pair<std::string, std::string>, std::string> read_;
};

}  // namespace programs
