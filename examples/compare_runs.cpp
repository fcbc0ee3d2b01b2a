/// @file
/// Compares training runs: one table on the terminal and, with --html, one self-contained report.
///
///     compare_runs RUN_FOLDER... [--html report.html] [--baseline RUN_FOLDER] [--watch 10]
///
/// Exit codes: 0 success, 1 the output could not be written, 2 the input cannot be compared or a
/// run is damaged. A damaged run is named, and the other runs are compared.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <octavo/core/error.hpp>
#include <octavo/core/version.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/run/interrupt.hpp>

#include <common/flags.hpp>
#include <common/paths.hpp>
#include <common/text.hpp>
#include "compare_runs/comparison.hpp"
#include "compare_runs/report.hpp"
#include "compare_runs/run.hpp"

namespace {

using namespace compare_runs;

constexpr int output_failed = 1;
constexpr int bad_input = 2;

std::string aligned_table(const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const Cells& line : lines)
    for (std::size_t c = 0; c < line.size(); ++c)
      widths[c] = std::max(widths[c], code_points(line[c]));

  std::string out;
  for (const Cells& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      const std::string padding(widths[c] - code_points(line[c]), ' ');
      out += c == 0 ? line[c] + padding : "  " + padding + line[c];
    }
    out += '\n';
    if (&line != &lines.front()) continue;
    for (std::size_t c = 0; c < widths.size(); ++c)
      out += (c == 0 ? "" : "  ") + std::string(widths[c], '-');
    out += '\n';
  }
  return out;
}

/// Returns the tables of losses and of speed.
std::string tables(const Comparison& comparison) {
  std::vector<Cells> results{table_head(comparison)}, speeds{speed_head};
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    results.push_back(table_cells(comparison, i));
    speeds.push_back(speed_row(comparison, i));
  }
  return aligned_table(results) + '\n' + aligned_table(speeds);
}

std::string terminal_text(const Comparison& comparison) {
  std::string out = tables(comparison);
  if (!comparison.notes.empty()) out += '\n';
  for (const std::string& note : comparison.notes) out += "note: " + note + '\n';
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const auto& summary = comparison.runs[i].summary;
    out += fmt::format("\nsample of {}\n{}\n", comparison.rows[i].label,
                       summary ? visible(summary->sample, LineBreaks::mark_and_keep, sample_length)
                               : "(none: the run wrote no summary)");
  }
  return out;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  programs::flush_output();
}

/// Reads the runs and compares those that are not damaged.
/// @throws InputError  if all are damaged, or they cannot be compared
Comparison read_and_compare(const std::vector<std::string>& folders, const std::string& baseline,
                            bool is_watched = false) {
  std::vector<Run> runs;
  std::vector<std::string> damaged;
  for (const std::string& folder : folders) {
    try {
      runs.push_back(read_run(folder));
    } catch (const DamagedRun& error) {
      damaged.emplace_back(error.what());
      continue;
    }
    for (std::size_t i = 0; i + 1 < runs.size(); ++i)
      if (std::filesystem::equivalent(runs[i].folder, folder))
        throw InputError(fmt::format("{}: the same folder is named twice", visible(folder)));
  }
  if (runs.empty()) throw InputError(fmt::format("{}", fmt::join(damaged, "; ")));
  try {
    Comparison comparison = compare(std::move(runs), baseline, is_watched);
    comparison.damaged = std::move(damaged);
    return comparison;
  } catch (const InputError& error) {
    damaged.emplace_back(error.what());
    throw InputError(fmt::format("{}", fmt::join(damaged, "; ")));
  }
}

/// The damaged runs, a line for each.
std::string damage_text(const Comparison& comparison) {
  std::string out;
  for (const std::string& reason : comparison.damaged)
    out += fmt::format("{}; this run is left out\n", reason);
  return out;
}

int exit_code(const Comparison& comparison) { return comparison.damaged.empty() ? 0 : bad_input; }

/// Whether all runs recorded their end; a killed run does not.
bool have_ended(const Comparison& comparison) {
  return std::ranges::all_of(comparison.runs,
                             [](const Run& run) { return run.summary.has_value(); });
}

/// Waits; returns whether a signal arrived before the time was over.
bool is_interrupted_within(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (octavo::InterruptGuard::received() != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

/// Repeats the comparison at an interval, until all runs have ended or a signal arrives. Waits for
/// runs that have not begun.
/// @param html_path  path of the report, or ""
/// @return the exit code
int watch(const std::vector<std::string>& folders, const std::string& baseline,
          const std::string& html_path, double seconds) {
  const octavo::InterruptGuard interrupts;
  const std::string clear = ::isatty(STDOUT_FILENO) != 0 ? "\x1b[H\x1b[2J" : "";
  const std::string what_next = fmt::format(
      "\nreading again every {} s until all runs have ended; Ctrl-C ends it\n", seconds);
  const auto print_until_next = [&](const std::string& text) { print(clear + text + what_next); };
  for (;;) {
    try {
      const Comparison comparison = read_and_compare(folders, baseline, true);
      const auto write = [&](int refresh) {
        if (html_path.empty()) return;
        octavo::write_file_atomically(html_path,
                                      report(comparison, octavo::version_string, refresh));
      };
      if (have_ended(comparison)) {
        write(0);
        print(clear + terminal_text(comparison) + damage_text(comparison));
        return exit_code(comparison);
      }
      write(std::max(1, static_cast<int>(seconds)));
      print_until_next(tables(comparison) + damage_text(comparison));
      if (!is_interrupted_within(seconds)) continue;
      write(0);
      return 0;
    } catch (const RunNotFound& error) {
      print_until_next(fmt::format("not yet: {}\n", visible(error.what())));
    }
    if (is_interrupted_within(seconds)) return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> folders;
  std::string html_path;
  std::string baseline;
  double seconds = 0;
  CLI::App app("Compares training runs: a table, and with --html a report with charts.",
               "compare_runs");
  app.add_option("RUN_FOLDER", folders, "folders of runs (--out of the trainer)")->required();
  app.add_option("--html", html_path, "write a self-contained HTML report to this file");
  app.add_option("--baseline", baseline,
                 "folder or precision of the run with which the others are compared; by default a "
                 "run in bf16, otherwise the first run");
  app.add_option("--watch", seconds,
                 "repeat at this interval in seconds until all runs have ended; the report reloads "
                 "itself in a browser")
      ->check(programs::finite_number("is not a number of seconds from 0.1 to 86400",
                                      [](double v) { return v >= 0.1 && v <= 86400; }));
  if (const auto code = programs::parse(app, argc, argv)) return *code;

  try {
    programs::require_own_output("--html " + html_path, html_path, "<!DOCTYPE html>");
    if (app.count("--watch") != 0) return watch(folders, baseline, html_path, seconds);
    const Comparison comparison = read_and_compare(folders, baseline);
    print(terminal_text(comparison));
    for (const std::string& reason : comparison.damaged)
      programs::print_stderr("compare_runs: {}; this run is left out\n", visible(reason));
    if (html_path.empty()) return exit_code(comparison);
    octavo::write_file_atomically(html_path, report(comparison, octavo::version_string, 0));
    print(fmt::format("\nreport written to {}\n", visible(html_path)));
    return exit_code(comparison);
  } catch (const InputError& error) {
    programs::print_stderr("compare_runs: {}\n", visible(error.what()));
    return bad_input;
  } catch (const octavo::ConfigError& error) {
    programs::print_stderr("compare_runs: {}\n", visible(error.what()));
    return bad_input;
  } catch (const std::exception& error) {
    programs::print_stderr("compare_runs: {}\n", visible(error.what()));
    return output_failed;
  }
}
