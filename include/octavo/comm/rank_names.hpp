/// @file
/// Names of ranks and operations in messages.
#pragma once

#include <octavo/core/error.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// "rank 2", "ranks 2 and 3", "ranks 0, 2 and 3".
[[nodiscard]] inline std::string rank_names(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) names += i + 1 == ranks.size() ? " and " : ", ";
    names += std::to_string(ranks[i]);
  }
  return names;
}

/// Returns "has" for one rank, "have" for several.
[[nodiscard]] inline const char* has_or_have(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? "has" : "have";
}

/// "the all-gather 'weights'".
[[nodiscard]] inline std::string operation_text(const char* kind, const char* what) {
  return message("the ", kind, " '", what, "'");
}

}  // namespace octavo OCTAVO_ABI::detail
