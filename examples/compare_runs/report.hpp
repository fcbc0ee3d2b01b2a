/// @file
/// The comparison as one HTML file that needs nothing beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <common/text.hpp>
#include "chart.hpp"
#include "comparison.hpp"
#include "page.hpp"

namespace compare_runs {
namespace detail {

/// CSS classes of each run's colour: neutral for the baseline, then the palette in order. When it
/// has been used up the lines are dashed.
inline std::vector<std::string> styles(const Comparison& comparison) {
  constexpr std::size_t colours = 7;
  std::vector<std::string> styles;
  std::size_t next = 0;
  for (std::size_t run = 0; run < comparison.runs.size(); ++run) {
    if (run == comparison.baseline) {
      styles.push_back("s0");
      continue;
    }
    styles.push_back(fmt::format("s{}{}", 1 + next % colours, next < colours ? "" : " again"));
    ++next;
  }
  return styles;
}

inline std::string key(std::size_t run, const std::vector<std::string>& styles) {
  return fmt::format("<span class=\"key {}\">{}</span>", styles[run], run + 1);
}

template <class Projection>
Chart step_chart(const Comparison& comparison, const std::vector<std::string>& styles,
                 std::string id, std::string title, Projection projection) {
  Chart chart;
  chart.id = std::move(id);
  chart.title = std::move(title);
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const Run& run = comparison.runs[i];
    Series series;
    series.label = comparison.rows[i].label;
    series.style = styles[i];
    const std::vector<double> values = column(run, projection);
    const std::vector<double> means = running_mean(values, comparison.window);
    for (std::size_t s = 0; s < values.size(); ++s) {
      const auto step = static_cast<double>(run.steps[s].step);
      series.raw.push_back({step, values[s]});
      series.smooth.push_back({step, means[s]});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

inline Chart loss_chart(const Comparison& comparison, const std::vector<std::string>& styles) {
  Chart chart = step_chart(comparison, styles, "loss", "Loss", &Step::loss);
  double highest_start = 0;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    Series& series = chart.series[i];
    for (const Evaluation& evaluation : comparison.runs[i].evaluations)
      series.dots.push_back({static_cast<double>(evaluation.step), evaluation.loss});
    for (const Step& step : comparison.runs[i].steps)
      if (step.skipped || !std::isfinite(step.loss))
        series.marks.push_back({static_cast<double>(step.step), 0});
    if (!series.raw.empty() && std::isfinite(series.raw.front().y))
      highest_start = std::max(highest_start, series.raw.front().y);
  }
  // A run that diverges must not press the others flat.
  if (highest_start > 0) chart.cut_above = 1.25 * highest_start;
  return chart;
}

/// The validation losses' gap to the baseline's in %, wherever both were evaluated.
inline Chart gap_chart(const Comparison& comparison, const std::vector<std::string>& styles) {
  std::map<std::uint64_t, double> reference;
  for (const Evaluation& evaluation : comparison.runs[comparison.baseline].evaluations)
    reference[evaluation.step] = evaluation.loss;
  Chart chart;
  chart.id = "gap";
  chart.title =
      fmt::format("Gap to {} in validation loss, %", comparison.rows[comparison.baseline].label);
  chart.with_zero = true;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    Series series;
    series.label = comparison.rows[i].label;
    series.style = styles[i];
    for (const Evaluation& evaluation : comparison.runs[i].evaluations) {
      const auto found = reference.find(evaluation.step);
      if (i == comparison.baseline || found == reference.end()) continue;
      series.smooth.push_back({static_cast<double>(evaluation.step),
                               100 * (evaluation.loss - found->second) / found->second});
    }
    series.dots = series.smooth;
    chart.series.push_back(std::move(series));
  }
  return chart;
}

inline std::string panel(const Chart& chart, std::string_view css_class = "") {
  return fmt::format("<div class=\"panel {}\">{}<div class=\"tip\"></div></div>\n", css_class,
                     svg(chart));
}

inline std::string figure(const std::string& title, const std::string& caption,
                          const std::string& panels) {
  return fmt::format("<figure><h2>{}</h2>\n<figcaption>{}</figcaption>\n{}</figure>\n", html(title),
                     caption, panels);
}

/// What the script shows under the pointer: [step, running mean] for each chart and run.
inline nlohmann::json values_of(const Chart& chart) {
  nlohmann::json runs = nlohmann::json::array();
  for (const Series& series : chart.series) {
    nlohmann::json points = nlohmann::json::array();
    const std::size_t stride = 1 + series.smooth.size() / 600;
    for (std::size_t i = 0; i < series.smooth.size(); i += stride) {
      const auto& [step, value] = series.smooth[i];
      // A NaN is written as null.
      points.push_back({static_cast<std::uint64_t>(step), value});
    }
    runs.push_back(std::move(points));
  }
  return runs;
}

/// JSON that cannot end the script element it stands in.
inline std::string script_data(const nlohmann::json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', true)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

inline std::string results_table(const Comparison& comparison,
                                 const std::vector<std::string>& styles) {
  const Cells head = table_head(comparison);
  std::string out = "<div class=\"scroll\"><table class=\"results\"><thead><tr>";
  for (const std::string& name : head) out += fmt::format("<th>{}</th>", html(name));
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    out += i == comparison.baseline ? "<tr class=\"baseline\">" : "<tr>";
    const Cells cells = table_cells(comparison, i);
    for (std::size_t c = 0; c < cells.size(); ++c)
      out += fmt::format("<td data-name=\"{}\">{}{}</td>", html(head[c]),
                         c == 0 ? key(i, styles) : "", html(cells[c]));
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  if (comparison.notes.empty()) return out;
  out += "<ul class=\"notes\">\n";
  for (const std::string& note : comparison.notes) out += fmt::format("<li>{}</li>\n", html(note));
  return out + "</ul>\n";
}

inline std::string controls(const Comparison& comparison, const std::vector<std::string>& styles) {
  std::string out = "<style>\n";
  for (std::size_t i = 0; i < comparison.rows.size(); ++i)
    out += fmt::format("body:has(#show-{0}:not(:checked)) svg .run-{0} {{ display: none }}\n", i);
  out += "</style>\n<div class=\"controls\">\n";
  for (std::size_t i = 0; i < comparison.rows.size(); ++i)
    out += fmt::format(
        "<label class=\"{}\"><input type=\"checkbox\" id=\"show-{}\" checked>{}{}</label>\n",
        styles[i], i, key(i, styles), html(comparison.rows[i].label));
  return out + "</div>\n";
}

inline std::string charts(const Comparison& comparison, const std::vector<std::string>& styles) {
  const Chart loss = loss_chart(comparison, styles);
  const Chart gap = gap_chart(comparison, styles);
  Chart norm = step_chart(comparison, styles, "norm", "Gradient norm", &Step::gradient_norm);
  Chart rate =
      step_chart(comparison, styles, "rate", "Throughput, tokens/s", &Step::tokens_per_second);
  rate.with_zero = true;
  Chart logarithmic_norm = norm;
  logarithmic_norm.id = "norm-logarithmic";
  logarithmic_norm.scale = Scale::logarithmic;

  const std::string mean =
      comparison.window < 2
          ? std::string("Line: each step.")
          : fmt::format("Line: running mean over {} steps; faint: each step.", comparison.window);
  std::string out = controls(comparison, styles);
  out += figure(loss.title,
                mean +
                    " Circles: validation. Crosses: steps that were skipped or whose loss was "
                    "not finite.",
                panel(loss));
  out += figure(gap.title, "Above zero is worse than the baseline.", panel(gap));
  out += figure(norm.title,
                mean + " <label><input type=\"checkbox\" id=\"logarithmic\">logarithmic</label>",
                panel(norm, "when-linear") + panel(logarithmic_norm, "when-logarithmic"));
  out += figure(rate.title, mean, panel(rate));

  nlohmann::json data = {{"styles", styles}};
  for (const Row& row : comparison.rows) data["labels"].push_back(row.label);
  for (const Chart* chart :
       std::initializer_list<const Chart*>{&loss, &gap, &norm, &logarithmic_norm, &rate})
    data["charts"][chart->id] = values_of(*chart);
  return out + "<script type=\"application/json\" id=\"data\">" + script_data(data) + "</script>\n";
}

inline std::string operand_row(const OperandHistory& o) {
  const auto worst = [](double share, std::uint64_t step) {
    return share == 0 ? std::string("0") : fmt::format("{} ({})", percentage(share), step);
  };
  return fmt::format(
      "<tr><td class=\"text name\">{}</td><td class=\"text\">{}</td><td>{} to "
      "{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
      html(visible(o.name)), html(visible(o.format)), compact(o.smallest_amax),
      compact(o.largest_amax), compact(o.last_scale), percentage(o.mean_saturated),
      worst(o.worst_saturated, o.worst_saturated_step), percentage(o.mean_flushed),
      worst(o.worst_flushed, o.worst_flushed_step));
}

inline std::string operand_table(const std::string& rows) {
  return fmt::format(
      "<div class=\"scroll\"><table class=\"operands\"><thead><tr><th class=\"text\">operand</th>"
      "<th class=\"text\">format</th><th>amax</th><th>last scale</th><th>saturated, mean</th>"
      "<th>worst (step)</th><th>flushed, mean</th><th>worst (step)</th></tr></thead><tbody>\n"
      "{}</tbody></table></div>\n",
      rows);
}

/// The operands with the largest shares over the run: two by saturation, two by flushing.
inline std::set<std::size_t> worst_operands(const std::vector<OperandHistory>& histories) {
  constexpr std::size_t kept = 2;
  std::set<std::size_t> worst;
  for (const auto share : {&OperandHistory::mean_saturated, &OperandHistory::mean_flushed}) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < histories.size(); ++i)
      if (histories[i].*share > 0) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return histories[a].*share > histories[b].*share;
    });
    for (std::size_t i = 0; i < std::min(order.size(), kept); ++i) worst.insert(order[i]);
  }
  return worst;
}

inline std::string operands(const Comparison& comparison, const std::vector<std::string>& styles) {
  std::string worst_rows, all;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const std::vector<OperandHistory> histories = operand_histories(comparison.runs[i]);
    if (histories.empty()) continue;
    const std::string label = key(i, styles) + html(comparison.rows[i].label);
    const std::set<std::size_t> worst = worst_operands(histories);
    if (!worst.empty())
      worst_rows += fmt::format("<tr class=\"heading\"><td colspan=\"8\">{}</td></tr>\n", label);
    for (const std::size_t index : worst) worst_rows += operand_row(histories[index]);
    std::string rows;
    for (const OperandHistory& history : histories) rows += operand_row(history);
    all += fmt::format("<details><summary>{}: all {} operands</summary>\n{}</details>\n", label,
                       histories.size(), operand_table(rows));
  }
  if (all.empty()) return "";
  std::string out =
      "<h2>FP8 operands</h2>\n<p class=\"muted\">Of each run, the two operands of which most was "
      "saturated (clamped to the format's largest value) and the two of which most was flushed to "
      "zero, over the steps where it was counted.</p>\n";
  out +=
      worst_rows.empty() ? "<p>Nothing was saturated or flushed.</p>\n" : operand_table(worst_rows);
  return out + all;
}

inline std::string samples(const Comparison& comparison, const std::vector<std::string>& styles) {
  std::string out = "<h2>Samples</h2>\n";
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    out += fmt::format("<h3>{}{}</h3>\n", key(i, styles), html(comparison.rows[i].label));
    const auto& summary = comparison.runs[i].summary;
    out += summary ? fmt::format(
                         "<pre class=\"{}\">{}</pre>\n", styles[i],
                         html(visible(summary->sample, LineBreaks::mark_and_keep, sample_length)))
                   : "<p class=\"muted\">none: the run wrote no summary</p>\n";
  }
  return out;
}

inline std::string origin(const Comparison& comparison, const std::vector<std::string>& styles,
                          std::string_view version) {
  std::string out = fmt::format(
      "<h2>How this report was made</h2>\n<p class=\"muted\">By compare_runs of Octavo {} from "
      "each "
      "run's metrics.jsonl. The gap is the difference of the validation losses as a percentage of "
      "the baseline's. FP8 GEMMs are those that one training micro-batch executes. Running means "
      "are over {} steps.</p>\n<div class=\"scroll\"><table><thead><tr>",
      html(version), comparison.window);
  for (const char* name : {"recipe", "folder", "precision", "model", "device"})
    out += fmt::format("<th class=\"text\">{}</th>", name);
  for (const char* name : {"parameters", "seed", "steps", "batch", "sequence length",
                           "micro-batches", "seconds", "peak MB"})
    out += fmt::format("<th>{}</th>", name);
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const Run& run = comparison.runs[i];
    const Configuration& c = run.configuration;
    out += fmt::format("<tr><td>{}{}</td>", key(i, styles), html(comparison.rows[i].label));
    for (const std::string& cell : {run.folder.string(), c.precision, c.model, c.device})
      out += fmt::format("<td class=\"text\">{}</td>", html(visible(cell)));
    out += fmt::format("<td>{}</td><td>{}</td><td>{} of {}</td>", grouped(c.parameters), c.seed,
                       run.steps.empty() ? 0 : run.steps.back().step, c.steps);
    for (const std::uint64_t value : {c.batch, c.sequence_length, c.micro_batches})
      out += fmt::format("<td>{}</td>", value);
    out += run.summary ? fmt::format("<td>{:.1f}</td><td>{:.1f}</td></tr>\n", run.summary->seconds,
                                     static_cast<double>(run.summary->peak_bytes) / 1e6)
                       : "<td>-</td><td>-</td></tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

inline std::string subtitle(const Comparison& comparison) {
  const Configuration& c = comparison.runs[comparison.baseline].configuration;
  return fmt::format(
      "{} runs; the baseline is {}: {} with {} parameters on {}, {} steps of {} "
      "tokens, seed {}.",
      comparison.runs.size(), comparison.rows[comparison.baseline].label, visible(c.model),
      grouped(c.parameters), visible(c.device), grouped(c.steps),
      grouped(c.batch * c.sequence_length * c.micro_batches), c.seed);
}

}  // namespace detail

/// @param version  of Octavo, for the section that says how the report was made
inline std::string report(const Comparison& comparison, std::string_view version) {
  const std::vector<std::string> styles = detail::styles(comparison);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Octavo: training "
      "runs compared</title>\n<style>";
  out += style_sheet;
  out += "</style>\n</head>\n<body>\n<h1>Training runs compared</h1>\n<p class=\"muted\">" +
         html(detail::subtitle(comparison)) + "</p>\n";
  out += detail::results_table(comparison, styles);
  out += detail::charts(comparison, styles);
  out += detail::operands(comparison, styles);
  out += detail::samples(comparison, styles);
  out += detail::origin(comparison, styles, version);
  out += "<script>";
  out += script;
  return out + "</script>\n</body>\n</html>\n";
}

}  // namespace compare_runs
