/// @file
/// The run with which the others are compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <common/text.hpp>
#include "run.hpp"

namespace compare_runs::detail {

/// Returns the best baseline among the eligible runs: the first that is done and has a validation
/// loss, otherwise the first with a validation loss, otherwise the first; runs.size() if no run is
/// eligible.
template <class IsEligible>
std::size_t best_baseline(const std::vector<Run>& runs, const IsEligible& is_eligible) {
  const auto first = [&](auto is_good) {
    const auto found = std::find_if(
        runs.begin(), runs.end(), [&](const Run& run) { return is_eligible(run) && is_good(run); });
    return static_cast<std::size_t>(found - runs.begin());
  };
  const auto has_loss = [](const Run& run) {
    return std::any_of(run.evaluations.begin(), run.evaluations.end(),
                       [](const Evaluation& e) { return std::isfinite(e.loss); });
  };
  for (const std::size_t index :
       {first([&](const Run& run) { return run.finished() && has_loss(run); }), first(has_loss)}) {
    if (index < runs.size()) return index;
  }
  return first([](const Run&) { return true; });
}

/// Returns the run that --baseline names by its folder, otherwise by its precision. Without
/// --baseline, returns a run in BF16, otherwise the first run.
inline std::size_t find_baseline(const std::vector<Run>& runs, const std::string& named) {
  const auto has_precision = [&](const char* precision) {
    return [precision](const Run& run) { return run.configuration.precision == precision; };
  };
  if (named.empty()) {
    const std::size_t bf16 = best_baseline(runs, has_precision("bf16"));
    return bf16 < runs.size() ? bf16 : 0;
  }
  const auto is_there = [&](const Run& run) {
    std::error_code error;
    return std::filesystem::equivalent(run.folder, named, error) && !error;
  };
  const std::size_t folder = best_baseline(runs, is_there);
  if (folder < runs.size()) return folder;
  const std::size_t index = best_baseline(runs, has_precision(named.c_str()));
  if (index < runs.size()) return index;
  std::set<std::string> precisions;
  for (const Run& run : runs) precisions.insert(visible(run.configuration.precision));
  std::string present;
  for (const std::string& one : precisions) present += (present.empty() ? "" : ", ") + one;
  throw InputError(
      fmt::format("--baseline must be the folder or the precision of one of the runs, but is "
                  "\"{}\"; add that run's folder, or pass one of these: {}",
                  visible(named), present));
}

}  // namespace compare_runs::detail
