// --replay-step: checks whether a step has bitwise identical results each time, and whether they
// equal the recorded ones.
#pragma once

#include <common/text.hpp>
#include <octavo/data/text_stream.hpp>
#include <octavo/run/run.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>
#include <train_llama/registry.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace trainer {

namespace detail {

/// The record of a step in a run's metrics.jsonl.
struct RecordedStep {
  std::optional<double> loss;  ///< empty if it was not finite
  std::optional<double> gradient_norm;
  bool skipped = false;
  std::string weights_hash;  ///< "": none was recorded

  [[nodiscard]] bool is(const octavo::StepRecord& record) const {
    const auto same = [](std::optional<double> recorded, double value) {
      return recorded.has_value() ? *recorded == value : !std::isfinite(value);
    };
    const bool has_both = !weights_hash.empty() && record.weights_hash.has_value();
    return same(loss, record.result.loss) && same(gradient_norm, record.result.gradient_norm) &&
           skipped == record.result.skipped &&
           (!has_both || weights_hash == programs::hash_text(*record.weights_hash));
  }
};

/// One line of a run's metrics.
struct RecordedLine {
  octavo::Index step = 0;
  RecordedStep recorded_step{};
  std::optional<octavo::Index> resumed_step{};  ///< set after a rollback
  std::string checkpoint{};                     ///< from which the run resumed, or ""
};

inline RecordedLine read_line(const std::string& text, const std::string& place) {
  octavo::JsonReader json(text, place);
  const auto number = [&]() -> std::optional<double> {
    if (json.peek() != octavo::JsonReader::Kind::null) return json.number();
    json.skip();
    return std::nullopt;
  };
  RecordedLine line;
  json.object([&](const std::string& key) {
    if (key == "step") {
      line.step = json.natural();
    } else if (key == "loss") {
      line.recorded_step.loss = number();
    } else if (key == "gradient_norm") {
      line.recorded_step.gradient_norm = number();
    } else if (key == "skipped") {
      line.recorded_step.skipped = json.boolean();
    } else if (key == "weights_hash") {
      line.recorded_step.weights_hash = json.string();
    } else if (key == "resumed_step") {
      line.resumed_step = json.natural();
    } else if (key == "checkpoint") {
      line.checkpoint = json.string();
    } else {
      json.skip();
    }
  });
  return line;
}

/// Returns the record that a run began with a checkpoint of another run; none if it did not.
/// @param own  the run's own checkpoints
inline std::optional<RecordedLine> begin_of_run(const std::filesystem::path& metrics,
                                                const std::filesystem::path& own) {
  if (!std::filesystem::exists(metrics)) return std::nullopt;
  octavo::FileLines lines(metrics);
  for (std::string text; lines.next(text) && lines.is_whole();) {
    if (text.starts_with("{\"event\":\"step\"")) break;
    if (!text.starts_with("{\"event\":\"resumed\"")) continue;
    RecordedLine line = read_line(text, metrics.string());
    const std::filesystem::path folder = absolute_path(line.checkpoint).parent_path();
    if (std::filesystem::weakly_canonical(folder) != std::filesystem::weakly_canonical(own)) {
      return line;
    }
  }
  return std::nullopt;
}

/// Returns the recorded steps that follow from a run's checkpoint after step `from`: the last
/// record of each, without steps that a rollback discarded.
inline std::map<octavo::Index, RecordedStep> recorded_steps(const std::filesystem::path& metrics,
                                                            octavo::Index from) {
  std::map<octavo::Index, RecordedStep> steps;
  if (!std::filesystem::exists(metrics)) return steps;
  octavo::FileLines lines(metrics);
  bool follows = true;
  for (std::string text; lines.next(text) && lines.is_whole();) {
    const auto is = [&](const char* event) {
      return text.starts_with(fmt::format("{{\"event\":\"{}\"", event));
    };
    if (!is("step") && !is("spike")) continue;
    const RecordedLine line = read_line(text, metrics.string());
    if (is("spike")) {
      if (!line.resumed_step) continue;
      // A checkpoint of a later step was saved after the rollback.
      follows = from > *line.resumed_step;
      if (follows) steps.clear();
    } else if (follows) {
      steps[line.step] = line.recorded_step;
    } else {
      steps.erase(line.step);
    }
  }
  return steps;
}

inline std::vector<std::string> replay_row(const std::string& name,
                                           const octavo::StepReplay& replay) {
  const octavo::StepRecord& record = replay.record;
  return {name, fmt::format("{}", record.result.loss),
          fmt::format("{}", record.result.gradient_norm), programs::hash_text(*record.weights_hash),
          programs::hash_text(replay.optimizer_hash)};
}

inline std::vector<std::string> recorded_row(const RecordedStep& step) {
  const auto text = [](std::optional<double> value) {
    return value.has_value() ? fmt::format("{}", *value) : "not finite";
  };
  return {"recorded", text(step.loss), text(step.gradient_norm),
          step.weights_hash.empty() ? "-" : step.weights_hash, "-"};
}

/// Returns the kernels of the session whose sums have no fixed order, or "".
inline std::string without_order(const octavo::TrainingSession& session) {
  for (const octavo::AttentionEntry& entry : session.manifest().attentions()) {
    if (entry.expected == "cudnn" && std::string_view(entry.pass) == "backward") {
      return "the attention backward of cuDNN";
    }
  }
  return {};
}

/// Prints how replays differ.
inline void print_difference(const std::vector<octavo::StepReplay>& replays,
                             const octavo::TrainingSession& session) {
  for (std::size_t number = 1; number < replays.size(); ++number) {
    for (std::size_t rank = 0; rank < replays[number].differs.size(); ++rank) {
      const std::string& name = replays[number].differs[rank];
      if (name.empty()) continue;
      fmt::print("replay {} | rank {}: {} differs from the first replay\n", number + 1, rank, name);
    }
  }
  const std::string kernels = without_order(session);
  if (kernels.empty()) {
    fmt::print(
        "differ: the step gave different results from the same state, although all kernels sum in "
        "a "
        "fixed order: the hardware is faulty (memory, processor, or a link between ranks)\n");
  } else {
    fmt::print(
        "differ: the step gave different results from the same state. {} has no fixed order of "
        "sums, so "
        "this proves nothing: replay with --deterministic\n",
        kernels);
  }
}

}  // namespace detail

/// Returns the checkpoint to start --replay-step from: the newest complete one before the step in
/// the run's folder, or else the one of another run that --resume names or with which the run
/// began, or "".
/// @throws ConfigError  if the run did not begin before the step, the checkpoint does not exist, or
///                      --resume names none before the step
inline std::filesystem::path checkpoint_to_replay_from(const Options& options,
                                                       const char* program) {
  namespace fs = std::filesystem;
  const fs::path own = fs::path(options.out) / detail::checkpoints_name;
  fs::path found;
  std::optional<detail::RecordedLine> begin;
  if (!options.out.empty()) {
    for (const octavo::ListedCheckpoint& one : octavo::list_checkpoints(own)) {  // newest last
      if (one.manifest.has_value() && one.step < options.replay_step) found = one.path;
    }
    begin = detail::begin_of_run(fs::path(options.out) / "metrics.jsonl", own);
  }
  if (!found.empty()) return found;
  const auto is_own = [&](const fs::path& checkpoint) {
    std::error_code error;
    return fs::equivalent(checkpoint.parent_path(), own, error);
  };
  const bool is_moved =
      !options.resume.empty() && detail::is_checkpoint(options.resume) && !is_own(options.resume);
  if (begin.has_value() && !is_moved) {
    octavo::require<octavo::ConfigError>(begin->step < options.replay_step,
                                         "--replay-step must be a step of the run in ", options.out,
                                         ", which began after step ", begin->step, ", but is ",
                                         options.replay_step, "; pass a later one");
    octavo::require<octavo::ConfigError>(
        detail::is_checkpoint(begin->checkpoint), "the run in ", options.out, " began with ",
        begin->checkpoint, detail::working_folder_text(begin->checkpoint),
        ", which is not a checkpoint any more; restore it, or pass its new place as --resume");
    return begin->checkpoint;
  }
  const bool is_named =
      !options.resume.empty() && options.resume != "latest" && options.resume != "auto";
  if (!is_named) return {};
  found = checkpoint_in(options.resume, program);
  octavo::require<octavo::ConfigError>(!found.empty(), "--resume ", options.resume,
                                       ": contains no complete checkpoint; pass another");
  if (is_own(found)) return {};  // the run resumed in its folder
  const octavo::Index step = octavo::detail::read_manifest(found).step;
  octavo::require<octavo::ConfigError>(
      step < options.replay_step, found.string(), " is of step ", step, ", and --replay-step ",
      options.replay_step,
      " needs one before it; pass an older one, or the run's folder with --out");
  return found;
}

/// Replays the step of --replay-step, and prints whether its results are bitwise identical. All
/// ranks must call it.
/// @param resumed_from  checkpoint that session, data and totals were restored from, or ""
/// @param resumed       manifest of that checkpoint
/// @return whether all replays are equal, and equal to the record of the run
inline bool replay(octavo::TrainingSession& session, RunData& data, octavo::RunTotals& totals,
                   const std::filesystem::path& resumed_from,
                   const octavo::CheckpointManifest& resumed, const Options& options,
                   const Instance& instance) {
  const octavo::Index from = totals.steps();
  fmt::print("replay | step {}, {} times, of {} in {} on {}, {}\n", options.replay_step,
             options.replays, instance.model, instance.precision, instance.device,
             resumed_from.empty()
                 ? "from the start of the run"
                 : fmt::format("from {}", programs::visible(resumed_from.string())));
  if (!resumed_from.empty()) print_notes("replay", resumed, session);
  programs::flush_output();
  std::map<octavo::Index, detail::RecordedStep> recorded;
  if (!options.out.empty()) {
    recorded = detail::recorded_steps(std::filesystem::path(options.out) / "metrics.jsonl", from);
  }
  octavo::Index first_difference = 0;  // first step that differs from its record
  const auto compare = [&](const octavo::StepRecord& record) {
    const auto found = recorded.find(record.step);
    const bool is_other = found != recorded.end() && !found->second.is(record);
    if (is_other && first_difference == 0) first_difference = record.step;
  };
  const std::vector<octavo::StepReplay> replays =
      octavo::replay_step(session, data, run_options(options), totals, options.replay_step,
                          options.replays, [&](const octavo::StepRecord& record) {
                            compare(record);
                            if (record.step % options.log_every != 0) return;
                            fmt::print("step {} | loss {:.4f} | norm {:.3f}\n", record.step,
                                       record.result.loss, record.result.gradient_norm);
                            programs::flush_output();
                          });
  compare(replays.front().record);

  std::vector<std::vector<std::string>> rows{
      {"replay", "loss", "gradient norm", "weights", "moments and master weights"}};
  const auto own = recorded.find(options.replay_step);
  if (own != recorded.end()) rows.push_back(detail::recorded_row(own->second));
  bool are_equal = true;
  for (std::size_t i = 0; i < replays.size(); ++i) {
    rows.push_back(detail::replay_row(std::to_string(i + 1), replays[i]));
    are_equal = are_equal && replays[i].equals(replays.front());
  }
  detail::print_table(rows);
  if (!are_equal) {
    detail::print_difference(replays, session);
    return false;
  }
  if (first_difference != 0) {
    const std::string kernels = detail::without_order(session);
    fmt::print(
        "equal: the step is repeatable, but from step {} on, the run recorded other results. {}\n",
        first_difference,
        kernels.empty() ? "If the run used this program, these flags, the same number of ranks and "
                          "the same kernels, the hardware was faulty then"
                        : kernels +
                              " does not sum in a fixed order, so this proves nothing; runs with "
                              "--deterministic can be compared");
    return false;
  }
  fmt::print("equal: the step is repeatable{}; the cause of its problem is in data or software\n",
             own == recorded.end() ? ", but there is no record to compare it with"
                                   : ", and equal to its record");
  return true;
}

}  // namespace trainer
