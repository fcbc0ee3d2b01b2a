/// @file
/// Ranks, operations and times in messages.
#pragma once

#include <octavo/core/error.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace octavo::inline OCTAVO_ABI::detail {

/// "rank 2", "ranks 2 and 3", "ranks 0, 2 and 3".
[[nodiscard]] inline std::string rank_names(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) names += i + 1 == ranks.size() ? " and " : ", ";
    names += std::to_string(ranks[i]);
  }
  return names;
}

/// "has" of one rank, "have" of several.
[[nodiscard]] inline const char* has_or_have(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? "has" : "have";
}

/// "30 s".
[[nodiscard]] inline std::string seconds_text(std::chrono::milliseconds time) {
  return message(static_cast<double>(time.count()) / 1000.0, " s");
}

/// "the all-gather 'weights'".
[[nodiscard]] inline std::string operation_text(const char* kind, const char* what) {
  return message("the ", kind, " '", what, "'");
}

/// What every message says that names ranks which do not answer.
[[nodiscard]] inline std::string no_answer_text(const std::vector<int>& ranks,
                                                std::chrono::milliseconds time,
                                                const std::string& operation) {
  return message(rank_names(ranks), " ", has_or_have(ranks), " not answered for ",
                 seconds_text(time), " in ", operation);
}

}  // namespace octavo::inline OCTAVO_ABI::detail
