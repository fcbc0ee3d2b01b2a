/// @file
/// The comparison as one self-contained HTML file.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <common/text.hpp>
#include "comparison.hpp"
#include "figures.hpp"
#include "page.hpp"
#include "speed.hpp"

namespace compare_runs {
namespace detail {

/// Returns a table with a row for each run, without the columns in which no run has a value.
/// @param css_class  of the table
template <class CellsOf>
std::string table_of_runs(const Comparison& comparison, const std::vector<std::string>& styles,
                          std::string_view css_class, const Cells& head, const CellsOf& cells_of) {
  std::vector<Cells> rows;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) rows.push_back(cells_of(i));
  const auto is_shown = [&](std::size_t c) {
    return std::ranges::any_of(rows, [c](const Cells& cells) { return cells[c] != "-"; });
  };
  std::string out =
      fmt::format("<div class=\"scroll\"><table class=\"{} cards\"><thead><tr>", css_class);
  for (std::size_t c = 0; c < head.size(); ++c)
    if (is_shown(c)) out += fmt::format("<th>{}</th>", html(head[c]));
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out += fmt::format(
        "<tr class=\"{}{}\">", i == comparison.baseline ? "baseline" : "",
        comparison.runs[i].finished() || (comparison.is_watched && !comparison.runs[i].summary)
            ? ""
            : " stopped");
    for (std::size_t c = 0; c < head.size(); ++c) {
      if (!is_shown(c)) continue;
      out += fmt::format("<td data-name=\"{}\">{}{}</td>", html(head[c]),
                         c == 0 ? key(i, styles) : "", html(rows[i][c]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

inline std::string results_table(const Comparison& comparison,
                                 const std::vector<std::string>& styles) {
  std::string out = table_of_runs(comparison, styles, "results ends", table_head(comparison),
                                  [&](std::size_t i) { return table_cells(comparison, i); });
  if (comparison.notes.empty() && comparison.damaged.empty()) return out;
  out += "<ul class=\"notes\">\n";
  for (const std::string& reason : comparison.damaged)
    out += fmt::format("<li>Damaged and left out: {}</li>\n", html(visible(reason)));
  for (const std::string& note : comparison.notes) out += fmt::format("<li>{}</li>\n", html(note));
  return out + "</ul>\n";
}

inline std::string speed_table(const Comparison& comparison,
                               const std::vector<std::string>& styles) {
  return "<h2>Speed</h2>\n<p class=\"muted\">Times are medians over steps; each step counts once. "
         "TFLOP/s are per card for the model's operations without recomputation; MFU is their "
         "share of the card's BF16 peak. The speed-up is relative to the first run.</p>\n" +
         table_of_runs(comparison, styles, "results", speed_head,
                       [&](std::size_t i) { return speed_row(comparison, i); });
}

inline constexpr std::array operand_columns{"operand",       "format",          "amax",
                                            "last scale",    "saturated, mean", "worst (step)",
                                            "flushed, mean", "worst (step)"};

inline std::string operand_row(const OperandHistory& o) {
  const auto worst = [](double share, std::uint64_t step) {
    return share == 0 ? std::string("0") : fmt::format("{} ({})", percentage(share), step);
  };
  std::string amax = std::isfinite(o.smallest_amax)
                         ? compact(o.smallest_amax) + " to " + compact(o.largest_amax)
                         : "";
  if (o.nonfinite_step != 0)
    amax += fmt::format("{}not finite ({})", amax.empty() ? "" : "; ", o.nonfinite_step);
  const bool one_scale = o.granularity == "tensor";
  const Cells cells{visible(o.name),
                    visible(o.format),
                    amax,
                    one_scale ? compact(o.last_scale) : "one for each " + visible(o.granularity),
                    percentage(o.mean_saturated),
                    worst(o.worst_saturated, o.worst_saturated_step),
                    percentage(o.mean_flushed),
                    worst(o.worst_flushed, o.worst_flushed_step)};
  std::string out = "<tr>";
  for (std::size_t c = 0; c < cells.size(); ++c)
    out += fmt::format("<td class=\"{}\" data-name=\"{}\">{}</td>",
                       c == 0   ? "text name"
                       : c == 1 ? "text"
                                : "",
                       operand_columns[c], html(cells[c]));
  return out + "</tr>\n";
}

inline std::string operand_table(const std::string& rows) {
  std::string head;
  for (std::size_t c = 0; c < operand_columns.size(); ++c)
    head += fmt::format("<th{}>{}</th>", c < 2 ? " class=\"text\"" : "", operand_columns[c]);
  return "<div class=\"scroll\"><table class=\"operands cards\"><thead><tr>" + head +
         "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n";
}

/// Returns the operands with the largest shares over the run: two by saturation, two by flushing.
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
      "<h2>FP8 operands</h2>\n<p class=\"muted\">For each run, the two operands with the largest "
      "saturated share (clamped to the format's largest value) and the two with the largest share "
      "flushed to zero, over the steps that recorded operands.</p>\n";
  out +=
      worst_rows.empty() ? "<p>Nothing was saturated or flushed.</p>\n" : operand_table(worst_rows);
  return out + all;
}

inline std::string samples(const Comparison& comparison, const std::vector<std::string>& styles) {
  std::string out = "<h2>Samples</h2>\n";
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    out += fmt::format("<h3>{}{}</h3>\n", key(i, styles), html(comparison.rows[i].label));
    const auto& summary = comparison.runs[i].summary;
    if (!summary || summary->sample.empty()) {
      out += fmt::format("<p class=\"muted\">none: the run {}</p>\n",
                         summary ? "made none" : "wrote no summary");
      continue;
    }
    out += fmt::format("<pre class=\"{}\">{}</pre>\n", styles[i],
                       html(visible(summary->sample, LineBreaks::mark_and_keep, sample_length)));
  }
  return out;
}

inline std::string origin(const Comparison& comparison, const std::vector<std::string>& styles,
                          std::string_view version) {
  std::string out = fmt::format(
      "<h2>How this report was made</h2>\n<p class=\"muted\">By compare_runs of Octavo {} from "
      "each run's metrics.jsonl. The gap is the difference of the validation losses as a "
      "percentage of the baseline's. FP8 GEMMs are those that one training micro-batch executes. "
      "Running means are over {}.</p>\n<div class=\"scroll\"><table class=\"origin "
      "cards\"><thead><tr>",
      html(version), counted(comparison.window, "step"));
  const Cells head{
      "run",     "folder",     "precision", "model", "device",          "ranks",
      "seed",    "parameters", "steps",     "batch", "sequence length", "micro-batches",
      "seconds", "peak MB"};
  for (const std::string& name : head) out += fmt::format("<th class=\"text\">{}</th>", name);
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const Run& run = comparison.runs[i];
    const Configuration& c = run.configuration;
    const Cells cells{
        comparison.rows[i].label,
        visible(run.folder.string()),
        visible(c.precision),
        visible(c.model),
        visible(c.device),
        std::to_string(c.ranks),
        std::to_string(c.seed),
        grouped(c.parameters),
        fmt::format("{} of {}", run.last_step(), c.steps),
        std::to_string(c.batch),
        std::to_string(c.sequence_length),
        std::to_string(c.micro_batches),
        run.summary ? fmt::format("{:.1f}", run.summary->seconds) : "-",
        run.summary ? fmt::format("{:.1f}", static_cast<double>(run.summary->peak_bytes) / 1e6)
                    : "-"};
    out += "<tr>";
    for (std::size_t k = 0; k < cells.size(); ++k)
      out += fmt::format("<td class=\"text\" data-name=\"{}\">{}{}</td>", head[k],
                         k == 0 ? key(i, styles) : "", html(cells[k]));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

inline std::string subtitle(const Comparison& comparison) {
  const Configuration& c = comparison.runs[comparison.baseline].configuration;
  return fmt::format(
      "{}; the baseline is {}: {} with {} parameters on {}, {} of {} tokens, seed {}.",
      counted(comparison.runs.size(), "run"), comparison.rows[comparison.baseline].label,
      visible(c.model), grouped(c.parameters), visible(c.device), counted(c.steps, "step"),
      grouped(c.batch * c.sequence_length * c.micro_batches), c.seed);
}

}  // namespace detail

/// @param version  version of Octavo, for the section about the report's origin
/// @param refresh  seconds after which a browser reloads the page; 0 disables this
inline std::string report(const Comparison& comparison, std::string_view version, int refresh) {
  const std::vector<std::string> styles = detail::styles(comparison);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Octavo: training "
      "runs compared</title>\n";
  if (refresh > 0) out += fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", refresh);
  out += "<style>";
  out += style_sheet;
  out += "</style>\n</head>\n<body>\n<h1>Training runs compared</h1>\n<p class=\"muted\">" +
         html(detail::subtitle(comparison)) + "</p>\n";
  out += detail::results_table(comparison, styles);
  out += detail::speed_table(comparison, styles);
  out += detail::charts(comparison, styles);
  out += detail::operands(comparison, styles);
  out += detail::samples(comparison, styles);
  out += detail::origin(comparison, styles, version);
  out += "<script>";
  out += script;
  return out + "</script>\n</body>\n</html>\n";
}

}  // namespace compare_runs
