/// @file
/// One training run, read from its folder's metrics.jsonl.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <octavo/core/error.hpp>
#include <octavo/data/text_stream.hpp>

#include <common/text.hpp>

namespace compare_runs {

using namespace programs;

/// The input cannot be compared. The message contains the file, the line if there is one, and
/// advice.
struct InputError : octavo::IoError {
  using octavo::IoError::IoError;
};

/// The run has not begun: its folder or first line does not exist.
struct RunNotFound : InputError {
  using InputError::InputError;
};

/// A metrics file that cannot be read or is not as documented. The other runs can still be
/// compared.
struct DamagedRun : InputError {
  using InputError::InputError;
};

/// GEMMs that one training micro-batch executes: all of them, and those with FP8 operands.
struct GemmCount {
  std::uint64_t fp8 = 0;
  std::uint64_t total = 0;
  bool operator==(const GemmCount&) const = default;
};

struct Configuration {
  std::string model, precision, recipe, device;
  std::uint64_t parameters = 0, seed = 0, batch = 0, sequence_length = 0, micro_batches = 0;
  std::uint64_t steps = 0;
  GemmCount gemms;
  std::string card;            ///< the GPU's name; "" on the Cpu device, and in older files
  std::uint64_t ranks = 1;     ///< one per GPU
  double flops_per_token = 0;  ///< floating-point operations of training; 0 in older files
};

/// Numbers that were not finite are NaN.
struct Step {
  std::uint64_t step = 0;
  double loss = 0, gradient_norm = 0, milliseconds = 0, tokens_per_second = 0;
  bool skipped = false;
  bool is_first = false;  ///< first of its process, which includes preparation
};

struct Evaluation {
  std::uint64_t step = 0;
  double loss = 0;
  std::uint64_t tokens = 0;
};

/// One quantised GEMM operand at one step; saturated and flushed are fractions of its elements. The
/// scale is NaN if each block has a separate one.
struct OperandSample {
  std::uint64_t step = 0;
  std::string name, format, granularity;
  double amax = 0, scale = 0, saturated = 0, flushed = 0;
};

struct Summary {
  double train_loss = 0, validation_loss = 0, tokens_per_second = 0, seconds = 0;
  std::uint64_t skipped = 0, peak_bytes = 0;
  std::uint64_t steps = 0;
  GemmCount gemms;
  std::string end;  ///< "done", or why the run stopped before
  std::string sample;
};

/// The checkpoint of another recipe or optimizer from which a run resumed with --convert.
struct Conversion {
  std::uint64_t step = 0;         ///< last step before it
  std::string recipe, optimizer;  ///< those of the checkpoint
};

struct Run {
  std::filesystem::path folder;
  Configuration configuration;
  std::vector<Step> steps;
  std::vector<Evaluation> evaluations;
  std::vector<OperandSample> operands;
  std::optional<Summary> summary;  ///< empty if the run did not reach its end
  std::vector<std::string> remarks;
  std::vector<Conversion> conversions;
  std::string second_run;        ///< error if a step follows without a "resumed" event
  bool was_resumed = false;      ///< its summary has the speed of its last process only
  bool begins = true;            ///< the next step is the first of a process
  bool has_other_ranks = false;  ///< resumed on other ranks or cards: steps are not comparable

  [[nodiscard]] std::uint64_t last_step() const { return steps.empty() ? 0 : steps.back().step; }
  [[nodiscard]] bool finished() const { return summary && summary->end == "done"; }
};

namespace detail {

using Json = nlohmann::json;

inline const Json& member(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw InputError(fmt::format("\"{}\" is missing", name));
  return *found;
}

[[noreturn]] inline void wrong_type(const char* name, const char* expected, const Json& value) {
  throw InputError(fmt::format("\"{}\" must be {}, but is a value of type {}", name, expected,
                               value.type_name()));
}

inline std::string text(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_string()) wrong_type(name, "a string", value);
  return value.get<std::string>();
}

/// Returns a text that older files do not contain.
inline std::string text_or(const Json& object, const char* name, const std::string& otherwise) {
  return object.contains(name) ? text(object, name) : otherwise;
}

inline std::uint64_t count(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_number_unsigned()) wrong_type(name, "an integer of at least 0", value);
  return value.get<std::uint64_t>();
}

inline double number(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) wrong_type(name, "a number or null", value);
  return value.get<double>();
}

inline bool flag(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_boolean()) wrong_type(name, "true or false", value);
  return value.get<bool>();
}

inline GemmCount gemms(const Json& event) {
  const GemmCount gemms{count(event, "gemms_fp8"), count(event, "gemms_total")};
  if (gemms.fp8 > gemms.total)
    throw InputError(fmt::format("\"gemms_fp8\" is {}, more than \"gemms_total\", which is {}",
                                 gemms.fp8, gemms.total));
  return gemms;
}

inline void read_configuration(const Json& event, Run& run) {
  const bool resumed = !run.configuration.model.empty();
  Configuration c{.model = text(event, "model"),
                  .precision = text(event, "precision"),
                  .recipe = text(event, "recipe"),
                  .device = text(event, "device"),
                  .parameters = count(event, "parameters"),
                  .seed = count(event, "seed"),
                  .batch = count(event, "batch"),
                  .sequence_length = count(event, "sequence_length"),
                  .micro_batches = count(event, "micro_batches"),
                  .steps = count(event, "steps"),
                  .gemms = gemms(event),
                  .card = text_or(event, "card", "")};
  if (event.contains("ranks")) c.ranks = std::max<std::uint64_t>(1, count(event, "ranks"));
  if (event.contains("flops_per_token")) c.flops_per_token = number(event, "flops_per_token");
  if (c.model.empty()) throw InputError("\"model\" is empty");
  const std::string second =
      fmt::format("a second run ({}, {}) begins in the file of another ({}, {})", c.model,
                  c.precision, run.configuration.model, run.configuration.precision);
  if (resumed && c.model != run.configuration.model) throw InputError(second);
  if (resumed && c.precision != run.configuration.precision) run.second_run = second;
  run.was_resumed |= resumed;
  run.begins = true;
  run.has_other_ranks |=
      resumed && (c.ranks != run.configuration.ranks || c.card != run.configuration.card);
  run.configuration = std::move(c);
  run.summary.reset();
}

/// A resumed run repeats the steps since its checkpoint: the last record of a step counts.
inline void forget_from(std::uint64_t step, Run& run) {
  const auto repeated = [step](const auto& record) { return record.step >= step; };
  std::erase_if(run.steps, repeated);
  std::erase_if(run.evaluations, repeated);
  std::erase_if(run.operands, repeated);
  run.remarks.push_back(
      fmt::format("resumed; the records from step {} on replace earlier ones", step));
}

inline void read_step(const Json& event, Run& run) {
  const Step step{.step = count(event, "step"),
                  .loss = number(event, "loss"),
                  .gradient_norm = number(event, "gradient_norm"),
                  .milliseconds = number(event, "milliseconds"),
                  .tokens_per_second = number(event, "tokens_per_second"),
                  .skipped = flag(event, "skipped"),
                  .is_first = std::exchange(run.begins, false)};
  if (!run.steps.empty() && step.step <= run.steps.back().step) forget_from(step.step, run);
  run.steps.push_back(step);
  const auto operands = event.find("operands");
  if (operands == event.end()) return;
  if (!operands->is_array()) wrong_type("operands", "an array", *operands);
  for (const Json& operand : *operands) {
    if (!operand.is_object()) wrong_type("operands", "an array of objects", operand);
    run.operands.push_back({.step = step.step,
                            .name = text(operand, "name"),
                            .format = text(operand, "format"),
                            .granularity = text_or(operand, "granularity", "tensor"),
                            .amax = number(operand, "amax"),
                            .scale = number(operand, "scale"),
                            .saturated = number(operand, "saturated"),
                            .flushed = number(operand, "flushed")});
  }
}

/// Reads which checkpoint the run resumed from; with --convert it may have another precision.
inline void read_resumed(const Json& event, Run& run) {
  const std::uint64_t step = count(event, "step");
  run.second_run.clear();
  std::erase_if(run.conversions, [step](const Conversion& one) { return one.step >= step; });
  const auto converted = event.find("converted");
  if (converted == event.end()) return;
  if (!converted->is_object()) wrong_type("converted", "an object", *converted);
  run.conversions.push_back({.step = step,
                             .recipe = text(*converted, "recipe"),
                             .optimizer = text(*converted, "optimizer")});
}

inline void read_summary(const Json& event, Run& run) {
  const std::uint64_t steps = count(event, "steps");
  const char* guess = steps < run.configuration.steps ? "stopped" : "done";
  run.summary = Summary{.train_loss = number(event, "train_loss"),
                        .validation_loss = number(event, "validation_loss"),
                        .tokens_per_second = number(event, "tokens_per_second"),
                        .seconds = number(event, "seconds"),
                        .skipped = count(event, "skipped"),
                        .peak_bytes = count(event, "peak_bytes"),
                        .steps = steps,
                        .gemms = gemms(event),
                        .end = text_or(event, "end", guess),
                        .sample = text(event, "sample")};
}

/// Ignores events with other names.
inline void read_event(const Json& event, Run& run) {
  if (!event.is_object()) throw InputError("a JSON object is expected on each line");
  const std::string name = text(event, "event");
  if (name != "run" && run.configuration.model.empty())
    throw InputError("the \"run\" event must come first");
  const bool is_of_steps = name == "step" || name == "evaluation" || name == "summary";
  if (is_of_steps && !run.second_run.empty()) throw InputError(run.second_run);
  if (name == "run") {
    read_configuration(event, run);
  } else if (name == "resumed") {
    read_resumed(event, run);
  } else if (name == "step") {
    read_step(event, run);
  } else if (name == "evaluation") {
    run.evaluations.push_back({.step = count(event, "step"),
                               .loss = number(event, "loss"),
                               .tokens = count(event, "tokens")});
  } else if (name == "summary") {
    read_summary(event, run);
  }
}

/// Returns the folders in a folder that contain metrics, with a count of further ones: "a, b".
inline std::string runs_in(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr std::size_t most = 8;
  std::vector<std::string> runs;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (fs::exists(entry->path() / "metrics.jsonl", unreadable))
      runs.push_back(visible(entry->path().string()));
  }
  std::sort(runs.begin(), runs.end());
  std::string names;
  for (std::size_t i = 0; i < std::min(most, runs.size()); ++i)
    names += (i == 0 ? "" : ", ") + runs[i];
  return runs.size() > most ? fmt::format("{} and {} more", names, runs.size() - most) : names;
}

/// Returns the path of the folder's metrics file.
/// @throws RunNotFound  if the folder or the file does not exist
inline std::filesystem::path metrics_of(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found)
    throw RunNotFound(fmt::format("{}: no such folder", visible(folder.string())));
  if (!fs::is_directory(status))
    throw InputError(fmt::format("{}: {}", visible(folder.string()),
                                 error ? error.message() : "not a folder; pass the run's folder"));
  const fs::path file = folder / "metrics.jsonl";
  if (fs::status(file, error).type() == fs::file_type::not_found) {
    const std::string runs = runs_in(folder);
    throw RunNotFound(fmt::format(
        "{}: no metrics.jsonl in this folder; pass {}", visible(folder.string()),
        runs.empty() ? "a folder of a run (--out of the trainer)" : "runs in it: " + runs));
  }
  return file;
}

}  // namespace detail

/// Reads `folder`/metrics.jsonl. Drops an incomplete last line, which a killed run can leave, with
/// a note.
/// @throws RunNotFound  if the file is missing or empty
/// @throws DamagedRun  if it cannot be read, or a line is invalid
inline Run read_run(const std::filesystem::path& folder) {
  const std::filesystem::path file = detail::metrics_of(folder);
  const std::string name = visible(file.string());
  Run run;
  run.folder = folder;
  std::string line;
  std::optional<octavo::FileLines> lines;
  const auto next = [&] {
    try {
      if (!lines) lines.emplace(file);
      return lines->next(line);
    } catch (const octavo::IoError& error) {
      throw DamagedRun(visible(error.what()));
    }
  };
  while (next()) {
    const std::uint64_t number = lines->number();
    try {
      detail::read_event(detail::Json::parse(line), run);
    } catch (const nlohmann::json::exception& error) {
      if (lines->is_whole())
        throw DamagedRun(fmt::format("{}:{}: not valid JSON: {}", name, number,
                                     visible(error.what(), LineBreaks::mark, 200)));
      run.remarks.push_back(
          fmt::format("line {} of its metrics.jsonl is truncated and was ignored", number));
    } catch (const InputError& error) {
      throw DamagedRun(fmt::format("{}:{}: {}", name, number, visible(error.what())));
    }
  }
  if (run.configuration.model.empty())
    throw RunNotFound(fmt::format("{}: no \"run\" event; the file is empty or truncated", name));
  return run;
}

}  // namespace compare_runs
