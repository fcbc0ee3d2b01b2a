// What the programs' command lines share: checks of values, and the message for an unknown flag.
#pragma once

#include <CLI/CLI.hpp>
#include <common/text.hpp>
#include <octavo/octavo.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace programs {

/// Number of single-character edits between two words.
inline std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

/// Accepts numbers that are finite as FP32 and that `holds` accepts; CLI11's own checks let NaN
/// pass.
template <class Holds>
CLI::Validator finite_number(const std::string& rule, const Holds& holds) {
  return CLI::Validator(
      [rule, holds](const std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && std::isfinite(static_cast<float>(value)) && holds(value)
                   ? std::string()
                   : "'" + text + "' " + rule;
      },
      "");
}

/// The bound keeps products of counts within 64 bits; CLI11 itself cuts larger numbers off.
inline CLI::Validator whole_number(int least) {
  constexpr int most = std::numeric_limits<int>::max();
  return finite_number(octavo::message("is no whole number from ", least, " to ", most),
                       [least](double v) { return v >= least && v <= most && v == std::floor(v); });
}
inline CLI::Validator at_least_one() { return whole_number(1); }
inline CLI::Validator not_negative_whole() { return whole_number(0); }
inline CLI::Validator above_zero() {
  return finite_number("is no number above 0", [](double v) { return v > 0; });
}
inline CLI::Validator not_negative() {
  return finite_number("is no number from 0 on", [](double v) { return v >= 0; });
}
inline CLI::Validator share() {
  return finite_number("is no number between 0 and 1", [](double v) { return v >= 0 && v < 1; });
}

inline std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

inline const std::vector<std::string> recompute_names{"none", "norms", "swiglu", "ffn", "block"};
/// Formats of the optimizer's state.
inline const std::vector<std::string> state_choices{"auto", "fp32", "bf16"};

inline const std::vector<std::string> weight_copies_names{"kept", "remade"};

inline octavo::WeightCopies weight_copies_named(const std::string& name) {
  return name == "remade" ? octavo::WeightCopies::remade : octavo::WeightCopies::kept;
}

/// The policy of this name.
inline octavo::Recompute recompute_named(const std::string& name) {
  return static_cast<octavo::Recompute>(
      std::find(recompute_names.begin(), recompute_names.end(), name) - recompute_names.begin());
}

/// The known word that `word` is probably meant to be, or "". More edits than a third of its
/// characters make another word.
inline std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string result;
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best || distance == 0) continue;
    best = distance;
    result = candidate;
  }
  return result;
}

/// The message for a flag or key that does not exist.
inline std::string unknown_key(const CLI::App& app, std::string word) {
  word.erase(0, std::min(word.size(), word.find_first_not_of('-')));
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_single_name());
  const std::string meant = nearest(word, known);
  return "unknown option '" + word + (meant.empty() ? "'" : "'; did you mean '" + meant + "'?") +
         (meant.empty() ? "; see --help" : " See --help");
}

/// Throws if words of the command line are left that are no flags.
/// @throws ConfigError  naming the first
inline void require_no_rest(const CLI::App& app) {
  for (const std::string& word : app.remaining()) {
    if (word == "--") continue;
    octavo::require<octavo::ConfigError>(word.starts_with('-'), "unexpected word '", word,
                                         "'; see --help");
    throw octavo::ConfigError(unknown_key(app, word));
  }
}

/// Throws if a flag that takes one value was given more.
/// @throws ConfigError  naming the first
inline void require_no_repeats(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::size_t most =
        static_cast<std::size_t>(std::max(1, option->get_items_expected_max()));
    octavo::require<octavo::ConfigError>(option->count() <= most, option->get_name(), " is given ",
                                         option->count(), " times; give it once");
  }
}

/// Reads the command line. Prints what --help and --version ask for, and one line on stderr for
/// what cannot be understood.
/// @return  the exit code where the program ends with that
inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", std::string("octavo ") + octavo::version_string);
  app.allow_extras();
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ArgumentMismatch&) {
      require_no_repeats(app);
      throw;
    }
    require_no_rest(app);
  } catch (const CLI::Success& wish) {
    return app.exit(wish);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), visible(error.what()));
    return 2;
  }
  return std::nullopt;
}

}  // namespace programs
