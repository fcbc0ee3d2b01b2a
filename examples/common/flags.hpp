// Helpers for the programs' command lines: validators, and messages for unknown flags.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flag_group.hpp>
#include <common/foreign_flags.hpp>
#include <common/help.hpp>
#include <common/nearest.hpp>
#include <common/text.hpp>
#include <octavo/octavo.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace programs {

/// Accepts numbers that are finite in FP32 and satisfy `predicate`. CLI11's own validators accept
/// NaN.
template <class Predicate>
CLI::Validator finite_number(const std::string& rule, const Predicate& predicate) {
  return CLI::Validator(
      [rule, predicate](const std::string& text) {
        double value = 0;
        const auto fits = [&](const std::string& written) {
          return CLI::detail::lexical_cast(written, value) && predicate(value);
        };
        if (!fits(text)) {
          std::string with_point = text;
          std::replace(with_point.begin(), with_point.end(), ',', '.');
          // 1,000 is ambiguous.
          const bool is_meant = fits(with_point) && value != std::floor(value);
          return "'" + text + "' " + rule + (is_meant ? "; use " + with_point : "");
        }
        return std::isfinite(static_cast<float>(value))
                   ? std::string()
                   : "'" + text + "' is outside the range of FP32, which ends at 3.4e38";
      },
      "");
}

/// Accepts integers. The bound keeps products of counts within 64 bits; CLI11 truncates larger
/// numbers.
inline CLI::Validator integer_in_range(int least, int most = std::numeric_limits<int>::max()) {
  const CLI::Validator in_range =
      finite_number(octavo::message("is not a whole number from ", least, " to ", most),
                    [=](double v) { return v >= least && v <= most && v == std::floor(v); });
  return CLI::Validator(
      [in_range](const std::string& text) {
        if (std::string error = in_range(text); !error.empty()) return error;
        // CLI11 cannot convert 1e3, and reads 010 as octal and 0x10 as hexadecimal.
        double value = 0;
        CLI::detail::lexical_cast(text, value);
        const auto whole = static_cast<std::int64_t>(value);
        return text == std::to_string(whole)
                   ? std::string()
                   : octavo::message("'", text, "' is not in plain digits; use ", whole);
      },
      "");
}
inline CLI::Validator at_least_one() { return integer_in_range(1); }
inline CLI::Validator at_least_two() { return integer_in_range(2); }
inline CLI::Validator one_to_hundred() { return integer_in_range(1, 100); }
inline CLI::Validator non_negative_integer() { return integer_in_range(0); }
inline CLI::Validator above_zero() {
  return finite_number("is not a number above 0", [](double v) { return v > 0; });
}
inline CLI::Validator non_negative_number() {
  return finite_number("is not a number of at least 0", [](double v) { return v >= 0; });
}
/// The name of the validator of times, by which FlagsFile recognises flags whose values are times.
inline constexpr const char* time_name = "time";
/// Converts a time such as 90s, 30m, 11.5h or 2d to seconds. The longest is 10,000 days.
inline CLI::Validator seconds() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        constexpr double longest = 10'000.0 * 24 * 3600;
        const std::string units = "smhd";
        constexpr std::array unit_seconds{1.0, 60.0, 3600.0, 24.0 * 3600.0};
        const std::size_t unit = text.empty() ? std::string::npos : units.find(text.back());
        const bool has_unit = unit != std::string::npos;
        const std::string number = has_unit ? text.substr(0, text.size() - 1) : text;
        double value = 0;
        const bool is_number = !number.empty() && (std::isdigit(number.back()) != 0) &&
                               CLI::detail::lexical_cast(number, value);
        if (has_unit) value *= unit_seconds[unit];
        if (!is_number || !(value >= 0 && value <= longest)) {
          return "'" + text +
                 "' is not a time from 0 to 10000d; write one such as 90s, 30m or 11.5h";
        }
        text = fmt::format("{}", value);
        return {};
      },
      "", time_name);
}
inline CLI::Validator share() {
  return finite_number("is not a number from 0 to below 1",
                       [](double v) { return v >= 0 && v < 1; });
}
inline CLI::Validator share_above_zero() {
  return finite_number("is not a number above 0 and below 1",
                       [](double v) { return v > 0 && v < 1; });
}

inline const std::vector<std::string> recompute_names{"none", "norms", "swiglu", "ffn", "block"};
/// Formats of the optimizer's state.
inline const std::vector<std::string> master_choices{"auto", "fp32", "bf16"};
inline const std::vector<std::string> moment_choices{"auto", "fp32", "bf16", "8bit"};
inline const std::vector<std::string> optimizer_names{"adamw", "muon"};

/// Optimizer state and activations kept in host memory.
inline const std::vector<std::string> offload_names{"none", "optimizer", "activations", "both"};
inline octavo::Offload offload_named(const std::string& name) {
  octavo::Offload offload;
  offload.optimizer = name == "optimizer" || name == "both";
  offload.activations = name == "activations" || name == "both";
  return offload;
}

inline const std::vector<std::string> weight_copies_names{"kept", "remade"};

/// Formats of weights and gradients between ranks.
inline const std::vector<std::string> gather_names{"stored", "fp8"};
inline const std::vector<std::string> reduce_names{"stored", "fp32", "e4m3"};

inline octavo::WeightCopies weight_copies_named(const std::string& name) {
  return name == "remade" ? octavo::WeightCopies::remade : octavo::WeightCopies::kept;
}

/// Returns the policy with this name.
inline octavo::Recompute recompute_named(const std::string& name) {
  return static_cast<octavo::Recompute>(
      std::find(recompute_names.begin(), recompute_names.end(), name) - recompute_names.begin());
}

/// Returns the layers that --lora-targets names, in the form of octavo::set_lora_targets.
inline std::vector<std::string> lora_targets(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    const auto begin = word.find_first_not_of(' ');
    const auto end = word.find_last_not_of(' ');
    if (begin != std::string::npos) names.push_back(word.substr(begin, end - begin + 1));
  }
  if (names == std::vector<std::string>{"all"}) names = {"all-linear"};
  return names;
}

/// Returns "-DNAME=" with the entries of a CMake list and the wanted one: CMake replaces a list as
/// a whole.
inline std::string build_list(const std::string& name, std::vector<std::string> entries,
                              const std::string& wanted) {
  if (std::find(entries.begin(), entries.end(), wanted) == entries.end()) entries.push_back(wanted);
  std::string text;
  for (const std::string& entry : entries) text += (text.empty() ? "" : ";") + entry;
  const bool is_plain = text.find_first_of(";<> ()&|*'") == std::string::npos;
  return "-D" + name + (is_plain ? "=" + text : "=\"" + text + '"');
}

/// Accepts only these words.
inline CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](const std::string& word) {
        const bool known = std::find(words.begin(), words.end(), word) != words.end();
        return known ? std::string() : unknown_value_message(word, words, words);
      },
      "");
}

/// Declares --zero, --gather and --reduce: what ranks shard, and in which formats they communicate.
/// @param options  options with `zero`, `gather` and `reduce`
/// @param remark   end of the help text of --reduce
template <class Options>
void declare_sharing(const FlagGroup& group, Options& options, const std::string& remark = "") {
  group
      .add("--zero", options.zero,
           "ZeRO stage: 1 shards the optimizer state, 2 also the gradients, 3 also the weights")
      ->check(integer_in_range(1, 3));
  group
      .add("--gather", options.gather,
           "format of weights in all-gathers: stored keeps the storage format; fp8 sends weights "
           "of FP8 GEMMs as FP8 if they have one scale per tensor, with bitwise identical results")
      ->check(one_of(gather_names));
  group
      .add("--reduce", options.reduce,
           "format of gradients in reductions: stored sends the storage format and rounds sums to "
           "it; fp32 sends the storage format and keeps sums in FP32; e4m3 sends FP8 with a scale "
           "for each block of 128" +
               remark)
      ->check(one_of(reduce_names));
}

/// Returns the flags of `declare_sharing` that have no effect on one rank, such as "--zero 3" and
/// "--gather fp8". --reduce fp32 has an effect: sums are in FP32.
template <class Options>
std::vector<std::string> flags_of_several_ranks(const Options& options) {
  std::vector<std::string> flags;
  if (options.zero != 1) flags.push_back(octavo::message("--zero ", options.zero));
  if (options.gather != "stored") flags.push_back("--gather " + options.gather);
  if (options.reduce == "e4m3") flags.push_back("--reduce " + options.reduce);
  return flags;
}

/// Returns "--zero 3 has no effect on one rank".
inline std::string no_effect_on_one_rank(const std::vector<std::string>& flags) {
  return joined(flags) + (flags.size() == 1 ? " has" : " have") + " no effect on one rank";
}

/// Throws if adapters are combined with tensor parallelism or with --gather fp8.
/// @param options  options with `lora`, `tensor_parallel` and `gather`
/// @throws ConfigError  with advice
template <class Options>
void require_adapters_supported(const Options& options) {
  if (options.lora == 0) return;
  octavo::require<octavo::ConfigError>(
      options.tensor_parallel == 1, "--lora with --tensor-parallel ", options.tensor_parallel,
      ": tensor-parallel layers do not support adapters; leave one of them out");
  octavo::require<octavo::ConfigError>(
      options.gather != "fp8",
      "--lora with --gather fp8: frozen weights are not gathered in FP8; pass --gather stored");
}

/// Returns a word without its leading dashes.
inline std::string without_dashes(std::string word) {
  return word.erase(0, std::min(word.size(), word.find_first_not_of('-')));
}

/// Flags of one of the two trainers that the other does not have.
struct TrainerFlags {
  std::string program;
  std::vector<std::string> flags;
};
inline const std::array<TrainerFlags, 2> trainer_flags{
    {{"train_llama", {"data", "validation-data", "document-end", "most-documents"}},
     {"finetune_llama",
      {"chats", "validation-chats", "chat-template", "epochs", "long-chats", "last-turn-only",
       "most-chats"}}}};

/// Returns the message for a flag or key that does not exist.
inline std::string unknown_key(const CLI::App& app, std::string word) {
  word = without_dashes(word);
  word = word.substr(0, word.find('='));
  for (std::size_t i = 0; i < trainer_flags.size(); ++i) {
    const TrainerFlags& other = trainer_flags[1 - i];
    const bool is_of_other =
        std::find(other.flags.begin(), other.flags.end(), word) != other.flags.end();
    if (app.get_name() != trainer_flags[i].program || !is_of_other) continue;
    return "'" + word + "' is a flag of " + other.program + ", not of " + app.get_name();
  }
  if (const std::string advice = foreign_advice(app, word); !advice.empty()) {
    return "unknown option '" + word + "'" + advice + ". See --help";
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_single_name());
  const std::string meant = nearest(word, known);
  return "unknown option '" + word + (meant.empty() ? "'" : "'; did you mean '" + meant + "'?") +
         (meant.empty() ? "; see --help" : " See --help");
}

/// Throws if a flag follows a flag that needs a value. --FLAG=VALUE accepts values that look like
/// flags.
/// @throws ConfigError  naming both
inline void require_values(const CLI::App& app, const std::vector<std::string>& words) {
  const auto option_of = [&](const std::string& word) {
    return word.starts_with("--") ? app.get_option_no_throw(word) : nullptr;
  };
  for (std::size_t i = 0; i + 1 < words.size() && words[i] != "--"; ++i) {
    const CLI::Option* option = option_of(words[i]);
    const std::string next = words[i + 1].substr(0, words[i + 1].find('='));
    octavo::require<octavo::ConfigError>(
        option == nullptr || option->get_items_expected_min() == 0 || option_of(next) == nullptr,
        words[i], " needs a value, but ", next, " follows; add the value, or leave ", words[i],
        " out");
  }
}

/// Returns the flag that is probably missing before an argument, or "".
inline std::string flag_of_word(const CLI::App& app, const std::string& word) {
  std::error_code error;
  const bool is_run = std::filesystem::exists(std::filesystem::path(word) / "config.toml", error);
  if (is_run && app.get_option_no_throw("--checkpoint") != nullptr) return "--checkpoint";
  for (const char* flag : {"--data", "--chats", "--prompt", "--model", "--table"}) {
    if (app.get_option_no_throw(flag) != nullptr) return flag;
  }
  return {};
}

/// Throws if the command line contains words that are not flags.
/// @throws ConfigError  naming the first
inline void require_no_extra_arguments(const CLI::App& app) {
  for (const std::string& word : app.remaining()) {
    if (word == "--") continue;
    if (!word.starts_with('-')) {
      const std::string belongs = flag_of_word(app, word);
      throw octavo::ConfigError(
          octavo::message("unexpected argument '", word, "'; ",
                          belongs.empty() ? "see --help"
                                          : "pass " + belongs + ' ' + shell_word(word) +
                                                ", or quote a value that contains spaces"));
    }
    const std::string flag = "--" + without_dashes(word.substr(0, word.find('=')));
    octavo::require<octavo::ConfigError>(
        word.starts_with("--") || app.get_option_no_throw(flag) == nullptr, "'",
        word.substr(0, word.find('=')), "' has one dash; use ", flag);
    throw octavo::ConfigError(unknown_key(app, word));
  }
}

/// Throws if a flag for a single value was set more than once.
/// @throws ConfigError  naming the first
inline void require_no_repeats(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::size_t most =
        static_cast<std::size_t>(std::max(1, option->get_items_expected_max()));
    octavo::require<octavo::ConfigError>(option->count() <= most, option->get_name(), " is set ",
                                         option->count(), " times; set it once");
  }
}

/// Throws if one of `flags`, which are for `device`, is set with another device.
/// @param place_of  returns where a flag was set, the beginning of the message (see FlagsFile); may
///                  be null
/// @throws ConfigError  with advice
inline void require_device(const CLI::App& app, const std::string& chosen,
                           const std::string& device, const std::vector<const char*>& flags,
                           const std::function<std::string(const char*)>& place_of = nullptr) {
  if (chosen == device) return;
  for (const char* flag : flags) {
    if (app.count(flag) == 0) continue;
    throw octavo::ConfigError(octavo::message(
        place_of ? place_of(flag) : "", flag, " is for the ", device, " device, but --device is '",
        chosen, "'; pass --device ", device, ", or leave ", flag, " out"));
  }
}

/// Returns the message of a memory error without its advice, which is for training.
inline std::string memory_error_text(const octavo::MemoryError& error) {
  const std::string text = error.what();
  return text.substr(0, text.find(';'));
}

/// Returns why the file that --config names cannot be read.
inline std::string unreadable_configuration(const CLI::App& app) {
  const auto file = app.get_config_ptr()->as<std::string>();
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  const std::string what = "--config: '" + file + "' ";
  if (std::filesystem::is_directory(status)) return what + "is a folder; pass a TOML file";
  if (!std::filesystem::exists(status)) return what + "does not exist; pass a TOML file";
  return what + "cannot be read; check its permissions";
}

/// Throws if printing to standard output failed.
/// @throws IoError  with the system's reason
inline void flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw octavo::IoError(
      octavo::message("standard output: cannot be written: ", std::strerror(errno)));
}

/// Returns the message of an exception in one line. Adds the name of standard output, which {fmt}
/// does not report, and explains std::bad_alloc.
inline std::string text_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return "the system refuses memory, which may be limited (ulimit -v, or the job's limit); raise "
           "the limit, or process less at once";
  }
  const auto* reason = dynamic_cast<const std::system_error*>(&error);
  return reason != nullptr && std::ferror(stdout) != 0
             ? "standard output: cannot be written: " + reason->code().message()
             : visible(error.what());
}

/// Opens /dev/null in place of closed standard streams. Otherwise, a file that the program opens
/// could get the descriptor of such a stream and receive its output. Standard output is opened for
/// reading only, so that printing to it is an error; messages to standard error are dropped.
/// Ignores SIGPIPE and SIGXFSZ, which would end the program silently: a broken pipe or a file above
/// its size limit (ulimit -f) is an error of the write instead.
/// @throws IoError  if /dev/null cannot be opened
inline void occupy_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int mode = stream == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    // Before the call: its arguments are evaluated in any order, and the message reads errno.
    const bool is_open = ::open("/dev/null", mode) == stream;
    octavo::require<octavo::IoError>(is_open,
                                     "/dev/null: cannot be opened in place of a standard stream "
                                     "that is closed: ",
                                     std::strerror(errno));
  }
}

/// Prints the output of --help or --version.
/// @throws IoError  if printing fails
inline int print_help_or_version(const CLI::App& app, const CLI::Success& help_request) {
  const int code = app.exit(help_request);
  flush_output();
  return code;
}

/// Throws if a flag that accepts no value has one. CLI11 reports only "Could not convert: --all =
/// maybe".
/// @throws ConfigError  naming the flag
inline void require_no_value(const CLI::App& app, const std::string& text) {
  const std::size_t begin = text.find("--");
  if (begin == std::string::npos) return;
  const std::string flag = text.substr(begin, text.find(' ', begin) - begin);
  const CLI::Option* option = app.get_option_no_throw(flag);
  octavo::require<octavo::ConfigError>(option == nullptr || option->get_items_expected_max() > 0,
                                       flag, " accepts no value; pass it alone, or leave it out");
}

/// Parses the command line. Handles --help and --version, and prints one line on stderr for an
/// invalid command line.
/// @return the exit code if the program must end, otherwise nothing
inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", std::string("octavo ") + octavo::version_string);
  app.formatter(std::make_shared<Help>());
  app.allow_extras();
  try {
    occupy_standard_streams();
    try {
      require_values(app, {argv + 1, argv + argc});
      app.parse(argc, argv);
    } catch (const CLI::Success& help_request) {
      return print_help_or_version(app, help_request);
    } catch (const CLI::ConversionError& error) {
      require_no_value(app, error.what());
      throw;
    } catch (const CLI::ArgumentMismatch& error) {
      require_no_repeats(app);
      const std::string text = error.what();
      octavo::require<octavo::ConfigError>(!text.ends_with(" missing"),
                                           text.substr(0, text.find(':')), " needs a value");
      throw;
    } catch (const CLI::FileError&) {
      throw octavo::ConfigError(unreadable_configuration(app));
    }
    require_no_extra_arguments(app);
  } catch (const octavo::IoError& error) {
    print_stderr("{}: {}\n", app.get_name(), visible(error.what()));
    return 1;
  } catch (const std::exception& error) {
    print_stderr("{}: {}\n", app.get_name(), visible(error.what()));
    return 2;
  }
  return std::nullopt;
}

}  // namespace programs
