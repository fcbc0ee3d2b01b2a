/// @file
/// Line charts as inline SVG.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <common/text.hpp>
#include "axis.hpp"

namespace compare_runs {

using namespace programs;

/// y is NaN if the value was not finite; lines are interrupted there.
struct Point {
  double x = 0, y = 0;
};
using Points = std::vector<Point>;

/// One run in a chart. Its index in Chart::series is the run's index.
struct Series {
  std::string label;
  std::string style;      ///< CSS classes for colour and dashes
  std::size_t shape = 0;  ///< shape of its markers
  Points raw;             ///< faint
  Points smooth;          ///< the line
  Points dots;            ///< single measurements
  Points marks;           ///< crosses at the bottom; y is not used
};

struct Chart {
  std::string id, title;
  Scale scale = Scale::linear;
  Scale x_scale = Scale::linear;
  double first_step = 0;   ///< earlier steps are not shown
  bool with_zero = false;  ///< the y axis reaches zero
  double cut_above = std::numeric_limits<double>::infinity();
  double cut_below = -std::numeric_limits<double>::infinity();
  std::vector<Series> series;
};

inline constexpr std::size_t marker_shapes = 6;

/// Returns a marker's outline around (x, y), `size` wide: circle, square, triangle, diamond,
/// inverted triangle, cross.
inline std::string marker(std::size_t shape, double x, double y, double size) {
  const double r = size / 2;
  switch (shape % marker_shapes) {
    case 0:
      return fmt::format(
          "M{0:.1f} {1:.1f}a{2:.1f} {2:.1f} 0 1 0 {3:.1f} 0a{2:.1f} {2:.1f} 0 1 0 -{3:.1f} 0z",
          x - r, y, r, size);
    case 1:
      return fmt::format("M{0:.1f} {1:.1f}h{2:.1f}v{2:.1f}h-{2:.1f}z", x - r, y - r, size);
    case 2:
      return fmt::format("M{:.1f} {:.1f}h{:.1f}l-{:.1f} -{:.1f}z", x - r, y + r, size, r, size);
    case 3:
      return fmt::format("M{0:.1f} {1:.1f}l{2:.1f} {2:.1f}l-{2:.1f} {2:.1f}l-{2:.1f} -{2:.1f}z", x,
                         y - 1.2 * r, 1.2 * r);
    case 4:
      return fmt::format("M{:.1f} {:.1f}h{:.1f}l-{:.1f} {:.1f}z", x - r, y - r, size, r, size);
    default:
      return fmt::format("M{0:.1f} {1:.1f}l{2:.1f} {2:.1f}m0 -{2:.1f}l-{2:.1f} {2:.1f}", x - r,
                         y - r, size);
  }
}

/// Sizes in SVG units. The browser scales them to the page's width.
struct ChartLayout {
  std::string_view css_class;
  double width, height, left, right, top, bottom;
  double line_height;   ///< of the labels at the ends of lines
  std::size_t columns;  ///< horizontal resolution of the lines
  bool full_labels;     ///< if false, the indexes of runs
  int x_ticks, y_ticks;

  double plot_right() const { return width - right; }
  double plot_bottom() const { return height - bottom; }
};

inline constexpr ChartLayout wide_layout{"wide", 960, 380, 58, 206, 14, 46, 17, 480, true, 8, 6};
inline constexpr ChartLayout narrow_layout{"narrow", 380, 300, 40,    22, 12,
                                           40,       14,  240, false, 4,  5};

namespace detail {

/// Returns at most two points per column, the lowest and the highest, so that thinning hides no
/// spike. Keeps non-finite values as interruptions.
inline Points thin(const Points& points, std::size_t columns) {
  if (points.size() <= 2 * columns) return points;
  Points out;
  for (std::size_t column = 0; column < columns; ++column) {
    const auto at = [&](std::size_t c) {
      return points.begin() + static_cast<std::ptrdiff_t>(c * points.size() / columns);
    };
    const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
    const auto nonfinite = std::find_if(at(column), at(column + 1),
                                        [](const Point& point) { return !std::isfinite(point.y); });
    auto [low, high] = std::minmax_element(at(column), nonfinite, by_y);
    if (nonfinite != at(column)) {
      if (high < low) std::swap(low, high);
      out.push_back(*low);
      if (high != low) out.push_back(*high);
    }
    if (nonfinite != at(column + 1)) out.push_back(*nonfinite);
  }
  return out;
}

class ChartWriter {
 public:
  ChartWriter(const Chart& chart, const ChartLayout& layout) : chart_(chart), layout_(layout) {
    fit_axes();
  }

  std::string svg() {
    out_ = fmt::format(
        "<svg class=\"chart {}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" "
        "data-chart=\"{}\" data-left=\"{}\" data-right=\"{}\" data-first=\"{:.17g}\" "
        "data-last=\"{:.17g}\" data-scale=\"{}\">\n",
        layout_.css_class, layout_.width, layout_.height, html(chart_.title), chart_.id,
        layout_.left, layout_.plot_right(), x_.low, x_.high,
        x_.scale == Scale::linear ? "linear" : "logarithmic");
    if (!has_values_) {
      out_ += fmt::format("<text x=\"{}\" y=\"{}\">no finite values were recorded</text></svg>\n",
                          layout_.left, layout_.height / 2);
      return std::move(out_);
    }
    write_grid();
    const std::string clip =
        fmt::format("clip-{}-{}-{}-{}-{:.0f}", chart_.id, layout_.css_class,
                    static_cast<int>(x_.scale), static_cast<int>(y_.scale), chart_.first_step);
    out_ += fmt::format(
        "<clipPath id=\"{}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n"
        "<g clip-path=\"url(#{})\">\n",
        clip, layout_.left - 5, layout_.top - 5, layout_.plot_right() - layout_.left + 10,
        layout_.plot_bottom() - layout_.top + 5, clip);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) write_faint(i);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) write_strong(i);
    out_ += fmt::format("</g>\n<line class=\"cursor\" y1=\"{}\" y2=\"{}\"/>\n", layout_.top,
                        layout_.plot_bottom());
    write_labels();
    out_ += "</svg>\n";
    return std::move(out_);
  }

  /// Returns what lies outside the chart, by run: "bf16: 3 values, up to 1758 at step 12".
  [[nodiscard]] std::string outliers_text() const {
    std::string text;
    for (const Series& series : chart_.series) {
      std::size_t count = 0;
      Point farthest;
      for (const Points* points : {&series.raw, &series.smooth, &series.dots})
        for (const Point& point : *points) {
          if (point.x < x_.low || !std::isfinite(point.y) || is_within(point)) continue;
          // The line and its single values have the same steps.
          if (points != &series.smooth || series.raw.empty()) ++count;
          if (farthest.x == 0 || std::abs(point.y) > std::abs(farthest.y)) farthest = point;
        }
      if (count == 0) continue;
      text +=
          fmt::format("{}{}: {} {}, as far as {:.4g} at step {:.0f}", text.empty() ? "" : "; ",
                      series.label, count, count == 1 ? "value" : "values", farthest.y, farthest.x);
    }
    return text;
  }

 private:
  void fit_axes() {
    double low = std::numeric_limits<double>::infinity(), high = -low, last = chart_.first_step + 1;
    x_.scale = chart_.x_scale;
    y_.scale = chart_.scale;
    for (const Series& series : chart_.series)
      for (const Points* points : {&series.raw, &series.smooth, &series.dots})
        for (const Point& point : *points) {
          last = std::max(last, point.x);
          if (point.x < chart_.first_step || !y_.can_show(point.y)) continue;
          low = std::min(low, point.y);
          high = std::max(high, point.y);
        }
    has_values_ = low <= high;
    if (!has_values_) return;
    x_.low = std::max(chart_.first_step, x_.scale == Scale::logarithmic ? 1.0 : 0.0);
    x_.high = std::max(last, x_.low + 1);
    high = std::max(std::min(high, chart_.cut_above), low);
    low = std::min(std::max(low, chart_.cut_below), high);
    if (chart_.with_zero) {
      low = std::min(low, 0.0);
      high = std::max(high, 0.0);
    }
    if (chart_.scale == Scale::logarithmic) {
      const double margin = std::pow(high / low, 0.05) * 1.02;
      y_.low = low / margin;
      y_.high = high * margin;
    } else {
      const double margin =
          high > low ? 0.06 * (high - low) : (high != 0 ? 0.05 * std::abs(high) : 1);
      y_.low = chart_.with_zero && low == 0 && high > 0 ? 0 : low - margin;
      y_.high = chart_.with_zero && high == 0 && low < 0 ? 0 : high + margin;
    }
  }

  double x(double value) const {
    return layout_.left + x_.position(value) * (layout_.plot_right() - layout_.left);
  }

  /// Values far outside are drawn just outside, where they are clipped.
  double y(double value) const {
    return layout_.plot_bottom() -
           std::clamp(y_.position(value), -0.2, 1.2) * (layout_.plot_bottom() - layout_.top);
  }

  void write_grid() {
    for (const double tick : ticks(y_, layout_.y_ticks))
      out_ += fmt::format(
          "<line class=\"{5}\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
          "<text class=\"tick\" x=\"{3}\" y=\"{2:.1f}\" dy=\".35em\" "
          "text-anchor=\"end\">{4}</text>\n",
          layout_.left, layout_.plot_right(), y(tick), layout_.left - 8, tick_text(tick),
          tick == 0 ? "axis" : "grid");
    const double foot = layout_.plot_bottom();
    out_ += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>\n",
                        layout_.left, layout_.plot_right(), foot);
    for (const double tick : ticks(x_, layout_.x_ticks)) {
      if (tick != std::floor(tick)) continue;
      out_ += fmt::format(
          "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
          "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
          x(tick), foot, foot + 4, foot + 18, tick_text(tick));
    }
    out_ += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">step</text>\n",
                        layout_.plot_right(), foot + 34);
  }

  [[nodiscard]] Points shown_part(const Points& points) const {
    Points part;
    for (const Point& point : points)
      if (point.x >= x_.low) part.push_back(point);
    return part;
  }

  void write_marker(std::size_t run, const Point& point, double size, const char* css_class) {
    const Series& series = chart_.series[run];
    out_ += fmt::format(
        "<path class=\"{}\" d=\"{}\"><title>{}, step {:.0f}: {:.4f}</title></path>\n", css_class,
        marker(series.shape, x(point.x), y(point.y), size), html(series.label), point.x, point.y);
  }

  /// Each run has its markers at different positions, so that coinciding lines remain
  /// distinguishable.
  void write_line_markers(std::size_t run) {
    constexpr int count = 6;
    const Points points = shown_part(chart_.series[run].smooth);
    if (points.size() < 2 * count) return;
    const double width = layout_.plot_right() - layout_.left;
    for (int i = 0; i < count; ++i) {
      const double share =
          (static_cast<double>(run) + 0.5) / static_cast<double>(chart_.series.size());
      const double wanted = layout_.left + width * (i + share) / count;
      const auto at = std::find_if(points.begin(), points.end(),
                                   [&](const Point& point) { return x(point.x) >= wanted; });
      if (at != points.end() && is_within(*at)) write_marker(run, *at, 7, "line-marker");
    }
  }

  [[nodiscard]] bool is_within(const Point& point) const {
    return y_.can_show(point.y) && point.y <= y_.high && point.y >= y_.low;
  }

  void write_path(const Points& points, const char* css_class) {
    std::string path;
    bool drawing = false;
    for (const Point& point : thin(shown_part(points), layout_.columns)) {
      const bool shown = y_.can_show(point.y);
      if (shown)
        path += fmt::format("{}{:.1f} {:.1f}", drawing ? 'L' : 'M', x(point.x), y(point.y));
      drawing = shown;
    }
    if (!path.empty()) out_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", css_class, path);
  }

  void open_group(std::size_t run) {
    out_ += fmt::format("<g class=\"run-{} {}\">", run, chart_.series[run].style);
  }

  void write_faint(std::size_t run) {
    open_group(run);
    write_path(chart_.series[run].raw, "raw");
    out_ += "</g>\n";
  }

  void write_strong(std::size_t run) {
    const Series& series = chart_.series[run];
    open_group(run);
    write_path(series.smooth, "smooth");
    write_line_markers(run);
    for (const Point& dot : series.dots)
      if (dot.x >= x_.low && y_.can_show(dot.y)) write_marker(run, dot, 9, "dot");
    for (const Point& mark : shown_part(series.marks))
      out_ += fmt::format("<path class=\"mark\" d=\"M{0:.1f} {1}l6 6m0 -6l-6 6\"/>\n",
                          x(mark.x) - 3, layout_.plot_bottom() - 9);
    out_ += "</g>\n";
  }

  /// Name of a line; the text starts at x and y.
  struct Label {
    std::size_t run;
    std::string text;
    bool in_plot;  ///< whether it is in the plot rather than in the margin
    double end_y;  ///< y of the end of the line
    double x, y;
  };

  /// Moves overlapping neighbours apart by the same distance until none overlap.
  void move_apart(std::vector<Label>& labels) const {
    for (int round = 0; round < 200 && !labels.empty(); ++round) {
      for (std::size_t i = 0; i + 1 < labels.size(); ++i) {
        const double overlap = layout_.line_height - (labels[i + 1].y - labels[i].y);
        if (overlap <= 0) continue;
        labels[i].y -= overlap / 2;
        labels[i + 1].y += overlap / 2;
      }
      labels.front().y = std::max(labels.front().y, layout_.top);
      labels.back().y = std::min(labels.back().y, layout_.plot_bottom());
    }
  }

  /// Returns the x position of labels in the margin.
  [[nodiscard]] double margin_start() const {
    return layout_.plot_right() + (layout_.full_labels ? 22 : 12);
  }

  [[nodiscard]] std::string label_text(std::size_t run) const {
    return layout_.full_labels ? visible(chart_.series[run].label, LineBreaks::mark, 22)
                               : std::to_string(run + 1);
  }

  /// Returns a label for each line: next to its last point if the run ended early and the text fits
  /// there, otherwise in the margin.
  [[nodiscard]] std::vector<Label> line_ends() const {
    constexpr double character = 8, gap = 8;
    std::vector<Label> labels;
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      const Points& points = chart_.series[i].smooth;
      const auto end = std::find_if(points.rbegin(), points.rend(),
                                    [&](const Point& point) { return y_.can_show(point.y); });
      if (end == points.rend() || end->x < x_.low) continue;
      const double end_x = x(end->x);
      const double end_y = std::clamp(y(end->y), layout_.top, layout_.plot_bottom());
      const std::string text = label_text(i);
      const double width = character * static_cast<double>(code_points(text));
      const bool fits = end_x + gap + width < layout_.plot_right();
      labels.push_back({i, text, fits, end_y, fits ? end_x + gap : margin_start(), end_y});
    }
    std::stable_sort(labels.begin(), labels.end(),
                     [](const Label& a, const Label& b) { return a.y < b.y; });
    return labels;
  }

  void write_labels() {
    std::vector<Label> in_plot, margin;
    for (const Label& label : line_ends()) (label.in_plot ? in_plot : margin).push_back(label);
    move_apart(in_plot);
    for (const Label& label : in_plot) write_label(label);
    move_apart(margin);
    for (const Label& label : margin) {
      write_leader(label);
      write_label(label);
    }
  }

  /// Draws a line from the plot's edge to a label in the margin; inside the plot it would look like
  /// data.
  void write_leader(const Label& label) {
    open_group(label.run);
    out_ += fmt::format("<path class=\"leader\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/></g>\n",
                        layout_.plot_right() + 3, label.end_y, label.x - 3, label.y);
  }

  void write_label(const Label& label) {
    open_group(label.run);
    out_ +=
        fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" dy=\".35em\">{}</text></g>\n",
                    label.x, label.y, html(label.text));
  }

  const Chart& chart_;
  const ChartLayout& layout_;
  Axis x_, y_;
  bool has_values_ = false;
  std::string out_;
};

}  // namespace detail

/// Returns the chart in a wide and a narrow version, one of which the style sheet shows, and a list
/// of values outside it.
inline std::string svg(const Chart& chart) {
  detail::ChartWriter wide(chart, wide_layout);
  const std::string off = wide.outliers_text();
  return wide.svg() + detail::ChartWriter(chart, narrow_layout).svg() +
         (off.empty() ? "" : "<p class=\"muted off\">Off this chart: " + html(off) + ".</p>\n");
}

}  // namespace compare_runs
