/// @file
/// The charts of the report, their views, and the legend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <common/text.hpp>
#include <nlohmann/json.hpp>

#include "chart.hpp"
#include "comparison.hpp"

namespace compare_runs::detail {

/// Returns the CSS classes for each run's colour and dashes: neutral and solid for the baseline,
/// then the palette in order. Dashes and colours repeat after different numbers of runs.
inline std::vector<std::string> styles(const Comparison& comparison) {
  constexpr std::size_t colours = 7, dashes = 4;
  std::vector<std::string> styles;
  std::size_t next = 0;
  for (std::size_t run = 0; run < comparison.runs.size(); ++run) {
    if (run == comparison.baseline) {
      styles.emplace_back("s0");
      continue;
    }
    styles.push_back(fmt::format("s{} d{}", 1 + next % colours, 1 + next % dashes));
    ++next;
  }
  return styles;
}

/// Returns the shape of each run's markers: a circle for the baseline.
inline std::size_t shape_of(const Comparison& comparison, std::size_t run) {
  if (run == comparison.baseline) return 0;
  return 1 + (run - (run > comparison.baseline ? 1 : 0)) % (marker_shapes - 1);
}

inline std::string key(std::size_t run, const std::vector<std::string>& styles) {
  return fmt::format("<span class=\"key {}\">{}</span>", styles[run], run + 1);
}

/// Keeps a single value far above all running means from flattening them.
inline double cut_above_lines(const Chart& chart) {
  double highest = 0;
  for (const Series& series : chart.series)
    for (const Point& point : series.smooth)
      if (std::isfinite(point.y)) highest = std::max(highest, point.y);
  return highest > 0 ? 2 * highest : std::numeric_limits<double>::infinity();
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
    series.shape = shape_of(comparison, i);
    const std::vector<double> values = column(run, projection);
    const std::vector<double> means = running_mean(values, comparison.window);
    for (std::size_t s = 0; s < values.size(); ++s) {
      const auto step = static_cast<double>(run.steps[s].step);
      series.raw.push_back({step, values[s]});
      series.smooth.push_back({step, means[s]});
    }
    chart.series.push_back(std::move(series));
  }
  chart.cut_above = cut_above_lines(chart);
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
  // Keeps a diverging run from flattening the others.
  chart.cut_above =
      highest_start > 0 ? 1.25 * highest_start : std::numeric_limits<double>::infinity();
  return chart;
}

/// Keeps a diverging run from flattening the others: limits the chart to four times the distance
/// from zero that the median run reaches in its second half.
inline void cut_outliers(Chart& chart) {
  std::vector<double> reaches;
  for (const Series& series : chart.series) {
    double reach = 0;
    for (std::size_t i = series.smooth.size() / 2; i < series.smooth.size(); ++i)
      if (std::isfinite(series.smooth[i].y)) reach = std::max(reach, std::abs(series.smooth[i].y));
    if (reach > 0) reaches.push_back(reach);
  }
  if (reaches.empty()) return;
  const auto middle = reaches.begin() + static_cast<std::ptrdiff_t>((reaches.size() - 1) / 2);
  std::nth_element(reaches.begin(), middle, reaches.end());
  chart.cut_above = 4 * *middle;
  chart.cut_below = -chart.cut_above;
}

/// Returns the gap of validation losses to the baseline in %, at each step at which both were
/// evaluated.
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
    series.shape = shape_of(comparison, i);
    for (const Evaluation& evaluation : comparison.runs[i].evaluations) {
      const auto found = reference.find(evaluation.step);
      if (i == comparison.baseline || found == reference.end()) continue;
      series.smooth.push_back({static_cast<double>(evaluation.step),
                               100 * (evaluation.loss - found->second) / found->second});
    }
    series.dots = series.smooth;
    chart.series.push_back(std::move(series));
  }
  cut_outliers(chart);
  return chart;
}

/// Returns the difference of the running means of training losses to the baseline's in %, at each
/// step of both: lines that coincide in the chart of losses are apart here.
inline Chart difference_chart(const Comparison& comparison, const Chart& loss) {
  std::map<double, double> reference;
  for (const Point& point : loss.series[comparison.baseline].smooth) reference[point.x] = point.y;
  Chart chart;
  chart.id = "difference";
  chart.title = fmt::format("Difference to {} in training loss, %",
                            comparison.rows[comparison.baseline].label);
  chart.with_zero = true;
  for (std::size_t i = 0; i < loss.series.size(); ++i) {
    Series series;
    series.label = loss.series[i].label;
    series.style = loss.series[i].style;
    series.shape = loss.series[i].shape;
    for (const Point& point : loss.series[i].smooth) {
      const auto found = reference.find(point.x);
      if (i == comparison.baseline || found == reference.end()) continue;
      series.smooth.push_back({point.x, 100 * (point.y - found->second) / found->second});
    }
    chart.series.push_back(std::move(series));
  }
  cut_outliers(chart);
  return chart;
}

/// One view of a chart.
struct View {
  std::string name;
  Chart chart;
};

/// Returns a linear view, one with a logarithmic value axis, and more for losses.
inline std::vector<View> views_of(const Chart& chart, bool with_steps) {
  Chart values = chart, steps = chart, both = chart, end = chart;
  values.scale = both.scale = Scale::logarithmic;
  steps.x_scale = both.x_scale = Scale::logarithmic;
  double last = 0;
  for (const Series& series : chart.series)
    if (!series.smooth.empty()) last = std::max(last, series.smooth.back().x);
  end.first_step = std::floor(0.75 * last);
  std::vector<View> views{{"linear", chart}, {"log values", values}};
  if (!with_steps) return views;
  views.push_back({"log steps", steps});
  views.push_back({"log both", both});
  if (last >= 8) views.push_back({"last quarter", end});
  return views;
}

inline std::string panel(const Chart& chart, std::string_view css_class = "") {
  return fmt::format("<div class=\"panel {}\">{}<div class=\"tip\"></div></div>\n", css_class,
                     svg(chart));
}

/// Returns a panel for each view, of which the style sheet shows the selected one.
inline std::string panels(const std::vector<View>& views) {
  const std::string& id = views.front().chart.id;
  std::string rules = "<style>\n", choices, out;
  for (std::size_t i = 0; i < views.size(); ++i) {
    rules += fmt::format(
        "body:has(#{0}-view-{1}:not(:checked)) .{0}-view-{1} {{ display: none }}\n", id, i);
    choices += fmt::format(
        "<label><input type=\"radio\" name=\"{0}-view\" id=\"{0}-view-{1}\"{2}>{3}</label>\n", id,
        i, i == 0 ? " checked" : "", views[i].name);
    out += panel(views[i].chart, fmt::format("{}-view-{}", id, i));
  }
  return rules + "</style>\n<div class=\"views\">" + choices + "</div>\n" + out;
}

inline std::string figure(const std::string& title, const std::string& caption,
                          const std::string& content) {
  return fmt::format("<figure><h2>{}</h2>\n<figcaption>{}</figcaption>\n{}</figure>\n", html(title),
                     caption, content);
}

/// Returns the values that the script shows under the pointer: [step, running mean] for each chart
/// and run.
inline nlohmann::json values_of(const Chart& chart) {
  nlohmann::json runs = nlohmann::json::array();
  for (const Series& series : chart.series) {
    nlohmann::json points = nlohmann::json::array();
    const std::size_t stride = 1 + series.smooth.size() / 600;
    for (std::size_t i = 0; i < series.smooth.size(); i += stride) {
      const auto& [step, value] = series.smooth[i];
      // NaN is written as null.
      points.push_back({static_cast<std::uint64_t>(step), value});
    }
    runs.push_back(std::move(points));
  }
  return runs;
}

/// Escapes JSON so that it cannot end its script element.
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

inline std::string controls(const Comparison& comparison, const std::vector<std::string>& styles) {
  std::string out = "<style>\n";
  for (std::size_t i = 0; i < comparison.rows.size(); ++i)
    out += fmt::format("body:has(#show-{0}:not(:checked)) svg .run-{0} {{ display: none }}\n", i);
  out += "</style>\n<div class=\"controls\">\n";
  for (std::size_t i = 0; i < comparison.rows.size(); ++i)
    out += fmt::format(
        "<label class=\"{}\"><input type=\"checkbox\" id=\"show-{}\" checked>{}<svg "
        "class=\"swatch\" "
        "viewBox=\"0 0 40 12\" aria-hidden=\"true\"><path class=\"smooth\" d=\"M0 6h40\"/><path "
        "class=\"line-marker\" d=\"{}\"/></svg>{}</label>\n",
        styles[i], i, key(i, styles), marker(shape_of(comparison, i), 20, 6, 8),
        html(comparison.rows[i].label));
  return out + "</div>\n";
}

inline std::string charts(const Comparison& comparison, const std::vector<std::string>& styles) {
  const Chart loss = loss_chart(comparison, styles);
  const Chart gap = gap_chart(comparison, styles);
  const Chart difference = difference_chart(comparison, loss);
  const Chart norm = step_chart(comparison, styles, "norm", "Gradient norm", &Step::gradient_norm);
  Chart rate =
      step_chart(comparison, styles, "rate", "Throughput, tokens/s", &Step::tokens_per_second);
  rate.with_zero = true;

  const std::string mean =
      comparison.window < 2
          ? std::string("Line: each step.")
          : fmt::format("Line: running mean over {} steps; faint: each step.", comparison.window);
  std::string out = controls(comparison, styles);
  out += figure(loss.title,
                mean +
                    " Each run has a colour, dashes and filled markers at different positions. "
                    "Hollow markers: validation. Crosses at the bottom: steps that were skipped or "
                    "whose loss was not finite.",
                panels(views_of(loss, true)));
  out += figure(difference.title,
                (comparison.window < 2
                     ? std::string("Of each step.")
                     : fmt::format("Of the running means over {} steps.", comparison.window)) +
                    " Values above zero are worse than the baseline.",
                panel(difference));
  out += figure(gap.title, "Values above zero are worse than the baseline.", panel(gap));
  out += figure(norm.title, mean, panels(views_of(norm, false)));
  out += figure(rate.title, mean, panel(rate));

  nlohmann::json data = {{"styles", styles}};
  for (const Row& row : comparison.rows) data["labels"].push_back(row.label);
  for (const Chart* chart :
       std::initializer_list<const Chart*>{&loss, &difference, &gap, &norm, &rate})
    data["charts"][chart->id] = values_of(*chart);
  return out + "<script type=\"application/json\" id=\"data\">" + script_data(data) + "</script>\n";
}

}  // namespace compare_runs::detail
