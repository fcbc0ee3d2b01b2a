/// @file
/// Compares several runs: the rows of the table, the notes below it, the worst operands.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <common/text.hpp>
#include "baseline.hpp"
#include "run.hpp"
#include "speed.hpp"

namespace compare_runs {

inline constexpr std::size_t sample_length = 200;

/// A run's row of the table. A missing number was not recorded; NaN was not finite.
struct Row {
  std::string label;
  std::optional<double> train_loss, validation_loss, gap_percent, tokens_per_second;
  std::optional<double> min_train_loss;  ///< of a single step
  std::optional<double> min_validation_loss;
  std::uint64_t gap_step = 0;  ///< last step at which both this run and the baseline were evaluated
  GemmCount gemms;
  std::uint64_t skipped = 0;
};

struct Comparison {
  std::vector<Run> runs;
  std::vector<Row> rows;  ///< one for each run
  std::size_t baseline = 0;
  std::size_t window = 1;  ///< steps in the running means
  std::vector<std::string> notes;
  std::vector<std::string> damaged;  ///< runs that are left out: file, line and reason
  bool is_watched = false;           ///< runs without a summary may still be running
};

/// Returns the mean of the finite values in values[begin, end); NaN if there are none.
inline double finite_mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double sum = 0, count = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (!std::isfinite(values[i])) continue;
    sum += values[i];
    ++count;
  }
  return sum / count;
}

/// Returns means over about `window` values around each position, over fewer at both ends, so that
/// the curve starts at the first value and does not lag. Non-finite values remain and do not enter
/// means.
inline std::vector<double> running_mean(const std::vector<double>& values, std::size_t window) {
  std::vector<double> means;
  means.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t half = std::min(window / 2, i);
    const std::size_t end = std::min(i + half + 1, values.size());
    means.push_back(std::isfinite(values[i]) ? finite_mean(values, i - half, end) : values[i]);
  }
  return means;
}

template <class Projection>
std::vector<double> column(const Run& run, Projection projection) {
  std::vector<double> values;
  values.reserve(run.steps.size());
  for (const Step& step : run.steps) values.push_back(std::invoke(projection, step));
  return values;
}

namespace detail {

/// Whether a recipe has several parts, which make a poor label; the precision names such a run.
inline bool has_parts(const Configuration& configuration) {
  return configuration.recipe.find(", ") != std::string::npos;
}

/// Returns what a run trained in, in one word or a few: its precision if that is a name, such as
/// "fp8-delayed", or has several parts, otherwise the recipe of its C++ type.
inline std::string trained_in(const Run& run) {
  const Configuration& configuration = run.configuration;
  const bool is_name =
      !configuration.precision.empty() &&
      std::all_of(configuration.precision.begin(), configuration.precision.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
      });
  return is_name || has_parts(configuration) ? configuration.precision : configuration.recipe;
}

/// Returns labels: precisions, made unique by the folder's name or path if two runs share one.
inline std::vector<std::string> labels(const std::vector<Run>& runs) {
  const auto base = [](const Run& run) {
    return run.folder.has_filename() ? run.folder.filename() : run.folder.parent_path().filename();
  };
  std::vector<std::string> labels;
  for (const Run& run : runs) {
    const auto shares = [&](auto key) {
      return std::count_if(runs.begin(), runs.end(),
                           [&](const Run& other) { return key(other) == key(run); }) > 1;
    };
    std::string label = trained_in(run);
    if (shares(trained_in)) {
      const bool same_name =
          shares([&](const Run& r) { return std::pair(trained_in(r), base(r)); });
      label += fmt::format(" ({})", (same_name ? run.folder : base(run)).string());
    }
    labels.push_back(visible(label));
  }
  return labels;
}

/// Returns tokens/s of the steps that count, without the first of each process if there are others:
/// the rule of the trainer's summary.
inline std::optional<double> mean_speed(const Run& run) {
  double tokens = 0, seconds = 0;
  const bool all_are_first =
      std::all_of(run.steps.begin(), run.steps.end(), std::mem_fn(&Step::is_first));
  for (const Step& step : run.steps) {
    if (step.is_first && !all_are_first) continue;
    tokens += step.tokens_per_second * step.milliseconds / 1000;
    seconds += step.milliseconds / 1000;
  }
  if (!(seconds > 0)) return {};
  return tokens / seconds;
}

/// Fills in the figures of a run without a summary, from its records.
inline void fill_from_steps(const Run& run, std::size_t window, Row& row) {
  if (!run.evaluations.empty()) row.validation_loss = run.evaluations.back().loss;
  if (run.steps.empty()) return;
  const std::size_t count = run.steps.size();
  row.train_loss = finite_mean(column(run, &Step::loss), count - std::min(window, count), count);
  for (const Step& step : run.steps) row.skipped += step.skipped ? 1 : 0;
  row.tokens_per_second = mean_speed(run);
}

inline void update_min(double loss, std::optional<double>& least) {
  if (!least || loss < *least || std::isnan(*least)) least = loss;
}

inline Row make_row(const Run& run, std::string label, std::size_t window) {
  Row row;
  row.label = std::move(label);
  row.gemms = run.configuration.gemms;
  for (const Evaluation& evaluation : run.evaluations) {
    update_min(evaluation.loss, row.min_validation_loss);
  }
  for (const Step& step : run.steps) {
    if (!step.skipped) update_min(step.loss, row.min_train_loss);
  }
  if (!run.summary) {
    fill_from_steps(run, window, row);
    return row;
  }
  const Summary& summary = *run.summary;
  row.train_loss = summary.train_loss;
  if (!run.evaluations.empty() || std::isfinite(summary.validation_loss))
    row.validation_loss = summary.validation_loss;
  row.tokens_per_second = run.was_resumed ? mean_speed(run) : summary.tokens_per_second;
  if (summary.gemms.total > 0) row.gemms = summary.gemms;  // 0: nothing was left to train
  row.skipped = summary.skipped;
  return row;
}

/// Fills in the gap at the last step at which both were evaluated: losses after different numbers
/// of steps are not comparable.
inline void fill_gap(const Run& run, const Run& baseline, Row& row) {
  for (const Evaluation& evaluation : run.evaluations) {
    const auto same =
        std::find_if(baseline.evaluations.begin(), baseline.evaluations.end(),
                     [&](const Evaluation& other) { return other.step == evaluation.step; });
    if (same == baseline.evaluations.end() || !(same->loss > 0)) continue;
    const double gap = 100 * (evaluation.loss - same->loss) / same->loss;
    if (!std::isfinite(gap)) continue;
    row.gap_percent = gap;
    row.gap_step = evaluation.step;
  }
}

/// Returns a note such as "Different seed: 2 (mxfp8); 1 (the others)." if runs differ.
template <class Projection>
void note_difference(Comparison& comparison, const char* what, Projection value_of) {
  struct Holders {
    std::size_t count = 0;
    std::string labels;
  };
  std::map<std::string, Holders> holders_of;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const std::string value = visible(value_of(comparison.runs[i]));
    if (value.empty()) continue;
    Holders& holders = holders_of[value];
    holders.labels += (holders.count++ == 0 ? "" : ", ") + comparison.rows[i].label;
  }
  if (holders_of.size() < 2) return;
  const auto common = std::max_element(
      holders_of.begin(), holders_of.end(),
      [](const auto& a, const auto& b) { return a.second.count < b.second.count; });
  std::string values;
  for (const auto& [value, holders] : holders_of)
    if (value != common->first) values += fmt::format("{} ({}); ", value, holders.labels);
  comparison.notes.push_back(
      fmt::format("Different {}: {}{} ({}).", what, values, common->first,
                  common->second.count > 1 ? "the others" : common->second.labels));
}

inline void note_differences(Comparison& comparison) {
  const auto setting = [&](const char* what, auto member) {
    note_difference(comparison, what, [member](const Run& run) {
      return fmt::format("{}", std::invoke(member, run.configuration));
    });
  };
  setting("model", &Configuration::model);
  setting("parameters", &Configuration::parameters);
  setting("seed", &Configuration::seed);
  setting("steps", &Configuration::steps);
  setting("batch", &Configuration::batch);
  setting("sequence length", &Configuration::sequence_length);
  setting("micro-batches", &Configuration::micro_batches);
  setting("device", &Configuration::device);
  note_difference(comparison, "validation tokens", [](const Run& run) {
    return run.evaluations.empty() ? "" : std::to_string(run.evaluations.back().tokens);
  });
  if (!comparison.notes.empty())
    comparison.notes.emplace_back(
        "The recipe is therefore not the only difference between these runs.");
}

/// Returns "done after 30 steps", or where and why the run stopped.
inline std::string end_of(const Run& run, bool is_watched) {
  const std::uint64_t wanted = run.configuration.steps;
  if (is_watched && !run.summary)
    return fmt::format("at step {} of {}", grouped(run.last_step()), grouped(wanted));
  if (run.summary && run.finished())
    return fmt::format("done after {}", counted(run.summary->steps, "step"));
  return fmt::format("STOPPED at step {} of {}: {}", grouped(run.last_step()), grouped(wanted),
                     run.summary ? visible(run.summary->end) : "no summary");
}

/// Whether both runs recorded the same losses at the same steps. NaN equals NaN.
inline bool have_equal_losses(const Run& a, const Run& b) {
  const auto equal = [](const auto& x, const auto& y) {
    return x.step == y.step && (x.loss == y.loss || (std::isnan(x.loss) && std::isnan(y.loss)));
  };
  return !a.steps.empty() && std::ranges::equal(a.steps, b.steps, equal) &&
         std::ranges::equal(a.evaluations, b.evaluations, equal);
}

/// Notes each run whose losses equal those of an earlier one: their lines coincide in the charts.
inline void note_equal_runs(Comparison& comparison) {
  for (std::size_t i = 1; i < comparison.runs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!have_equal_losses(comparison.runs[i], comparison.runs[j])) continue;
      comparison.notes.push_back(fmt::format("{} and {} are equal: the same losses in {}.",
                                             comparison.rows[j].label, comparison.rows[i].label,
                                             counted(comparison.runs[i].steps.size(), "step")));
      break;
    }
  }
}

inline void note_gap(const Comparison& comparison, std::size_t index,
                     std::vector<std::string>& notes) {
  const Run& run = comparison.runs[index];
  const Run& baseline = comparison.runs[comparison.baseline];
  const Row& row = comparison.rows[index];
  const std::string& reference = comparison.rows[comparison.baseline].label;
  if (index == comparison.baseline || run.evaluations.empty() || baseline.evaluations.empty())
    return;
  const std::uint64_t last = run.evaluations.back().step;
  const std::uint64_t last_of_baseline = baseline.evaluations.back().step;
  if (!row.gap_percent) {
    notes.push_back(
        fmt::format("{}: no gap: there is no step at which both it and {} have a finite validation "
                    "loss.",
                    row.label, reference));
  } else if (row.gap_step != last || row.gap_step != last_of_baseline) {
    notes.push_back(
        fmt::format("{}: the gap is that after step {}, the last at which both were evaluated; "
                    "{} was evaluated until step {}, {} until step {}.",
                    row.label, row.gap_step, row.label, last, reference, last_of_baseline));
  }
}

/// Returns the source of the losses of a run without a summary.
inline std::string source_of_figures(const Run& run, std::size_t window) {
  const std::size_t count = std::min(window, run.steps.size());
  if (count == 0) return "It has no step yet";
  return (count == 1 ? std::string("Its train loss is that of its last step")
                     : fmt::format("Its train loss is the mean of its last {} steps", count)) +
         (run.evaluations.empty() ? "" : ", its validation loss that of its last evaluation");
}

inline void note_run(const Run& run, const Row& row, std::size_t window,
                     std::vector<std::string>& notes) {
  for (const std::string& remark : run.remarks)
    notes.push_back(fmt::format("{}: {}.", row.label, remark));
  for (const Conversion& one : run.conversions)
    notes.push_back(
        fmt::format("{}: converted after step {} from {}, {}, which computed the steps until then.",
                    row.label, one.step, visible(one.recipe), visible(one.optimizer)));
  const Configuration& c = run.configuration;
  if (has_parts(c)) notes.push_back(fmt::format("{}: {}.", row.label, visible(c.recipe)));
  if (!run.finished()) notes.push_back(fmt::format("{} {}.", row.label, end_of(run, false)));
  if (!run.summary) {
    notes.push_back(fmt::format("{}: no summary: it was killed, or is still running. {}.",
                                row.label, source_of_figures(run, window)));
  } else if (row.gemms != c.gemms) {
    notes.push_back(fmt::format("{} expected {} of {} GEMMs in FP8, but ran {} of {}.", row.label,
                                c.gemms.fp8, c.gemms.total, row.gemms.fp8, row.gemms.total));
  }
}

inline void note_baseline(Comparison& comparison) {
  const std::string& precision = comparison.runs[comparison.baseline].configuration.precision;
  const auto same = [&](const Run& run) { return run.configuration.precision == precision; };
  const Row& baseline = comparison.rows[comparison.baseline];
  if (std::count_if(comparison.runs.begin(), comparison.runs.end(), same) > 1)
    comparison.notes.push_back(
        fmt::format("Several runs have the precision {}; the gap is measured against {}.",
                    visible(precision), baseline.label));
  if (!baseline.gap_percent)
    comparison.notes.push_back(
        fmt::format("{} has no finite validation loss, so no gap can be given.", baseline.label));
}

}  // namespace detail

/// @param baseline  folder or precision of the baseline, or "": see detail::find_baseline
/// @throws InputError  if `baseline` names none of the runs
inline Comparison compare(std::vector<Run> runs, const std::string& baseline,
                          bool is_watched = false) {
  Comparison comparison;
  comparison.is_watched = is_watched;
  comparison.runs = std::move(runs);
  comparison.baseline = detail::find_baseline(comparison.runs, baseline);
  std::size_t longest = 0;
  for (const Run& run : comparison.runs) longest = std::max(longest, run.steps.size());
  // Odd, so that both sides of a step have the same number.
  comparison.window = std::clamp<std::size_t>(longest / 30, 1, 200) | 1;

  const std::vector<std::string> labels = detail::labels(comparison.runs);
  for (std::size_t i = 0; i < labels.size(); ++i)
    comparison.rows.push_back(detail::make_row(comparison.runs[i], labels[i], comparison.window));
  for (std::size_t i = 0; i < labels.size(); ++i)
    detail::fill_gap(comparison.runs[i], comparison.runs[comparison.baseline], comparison.rows[i]);

  detail::note_differences(comparison);
  detail::note_baseline(comparison);
  detail::note_equal_runs(comparison);
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (!is_watched || comparison.runs[i].summary)
      detail::note_run(comparison.runs[i], comparison.rows[i], comparison.window, comparison.notes);
  for (std::size_t i = 0; i < labels.size(); ++i) detail::note_gap(comparison, i, comparison.notes);
  return comparison;
}

/// The header and cells of the table as text, for the terminal and the report.
using Cells = std::vector<std::string>;

inline Cells table_head(const Comparison& comparison) {
  const Run& baseline = comparison.runs[comparison.baseline];
  return {"run",
          "train loss",
          "min train loss",
          "validation loss",
          "min validation loss",
          "gap to " + visible(baseline.configuration.precision),
          "tokens/s",
          "FP8 GEMMs",
          "skipped steps",
          "end"};
}

inline Cells table_cells(const Comparison& comparison, std::size_t index) {
  const Row& row = comparison.rows[index];
  const auto gap = [](double value) { return fmt::format("{:+.2f} %", value); };
  return {row.label,
          number_cell(row.train_loss, loss_text),
          number_cell(row.min_train_loss, loss_text),
          number_cell(row.validation_loss, loss_text),
          number_cell(row.min_validation_loss, loss_text),
          index == comparison.baseline ? "baseline" : number_cell(row.gap_percent, gap),
          number_cell(row.tokens_per_second, rate_text),
          fmt::format("{} of {}", row.gemms.fp8, row.gemms.total),
          grouped(row.skipped),
          detail::end_of(comparison.runs[index], comparison.is_watched)};
}

/// Returns the cells about speed, for both outputs; `speed_head` returns their header.
inline Cells speed_row(const Comparison& comparison, std::size_t index) {
  return speed_cells(comparison.rows[index].label, speed_of(comparison.runs[index]),
                     speed_of(comparison.runs.front()));
}

/// History of one operand of one run over the steps that recorded operands.
struct OperandHistory {
  std::string name, format, granularity;
  std::size_t samples = 0;
  double smallest_amax = std::numeric_limits<double>::infinity();
  double largest_amax = -std::numeric_limits<double>::infinity();
  double last_scale = 0;
  std::uint64_t nonfinite_step = 0;  ///< last step at which it contained an Inf or NaN; 0 if none
  double mean_saturated = 0, worst_saturated = 0, mean_flushed = 0, worst_flushed = 0;
  std::uint64_t worst_saturated_step = 0, worst_flushed_step = 0;
};

/// Returns the histories in the order in which the run first names the operands.
inline std::vector<OperandHistory> operand_histories(const Run& run) {
  std::vector<OperandHistory> histories;
  std::map<std::string, std::size_t> index_of;
  const auto follow = [](double share, std::uint64_t step, double& sum, double& worst,
                         std::uint64_t& worst_step) {
    sum += share;
    if (worst_step != 0 && !(share > worst)) return;
    worst = share;
    worst_step = step;
  };
  for (const OperandSample& sample : run.operands) {
    const auto [place, added] = index_of.try_emplace(sample.name, histories.size());
    if (added)
      histories.push_back(
          {.name = sample.name, .format = sample.format, .granularity = sample.granularity});
    OperandHistory& history = histories[place->second];
    ++history.samples;
    if (std::isfinite(sample.amax)) {
      history.smallest_amax = std::min(history.smallest_amax, sample.amax);
      history.largest_amax = std::max(history.largest_amax, sample.amax);
    } else {
      history.nonfinite_step = sample.step;
    }
    history.last_scale = sample.scale;
    follow(sample.saturated, sample.step, history.mean_saturated, history.worst_saturated,
           history.worst_saturated_step);
    follow(sample.flushed, sample.step, history.mean_flushed, history.worst_flushed,
           history.worst_flushed_step);
  }
  for (OperandHistory& history : histories) {
    history.mean_saturated /= static_cast<double>(history.samples);
    history.mean_flushed /= static_cast<double>(history.samples);
  }
  return histories;
}

}  // namespace compare_runs
