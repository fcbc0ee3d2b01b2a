// Suggestions for words that are not among the known ones.
#pragma once

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace programs {

inline std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Returns the number of single-character edits between two words; swapped neighbours count as one.
inline std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> edits(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, replaced});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  }
  return edits[a.size()][b.size()];
}

/// Returns the known word that `word` probably stands for, or "". Words match if they differ in
/// case, by at most one edit per three characters, or if one is a prefix of the other. "gpu"
/// matches "cuda".
inline std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const std::string lower = CLI::detail::to_lower(word);
  std::vector<std::pair<std::string, std::string>> candidates;  // spelling, name
  for (const std::string& name : known) {
    if (name == word) continue;
    candidates.emplace_back(name, name);
    if (name == "cuda") candidates.emplace_back("gpu", name);
  }
  std::string result;
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const auto& [written, name] : candidates) {
    const std::size_t distance = edit_distance(lower, written);
    if (distance >= best) continue;
    best = distance;
    result = name;
  }
  for (const auto& [written, name] : candidates) {
    const bool begins = (lower.size() > 1 && written.starts_with(lower)) ||
                        (written.size() > 2 && lower.starts_with(written));
    if (result.empty() && begins) result = name;
  }
  return result;
}

/// Returns "'bock' is not one of none, norms, block; did you mean 'block'?".
/// @param offered  words to choose from
/// @param known    words to suggest
inline std::string unknown_value_message(const std::string& word,
                                         const std::vector<std::string>& offered,
                                         const std::vector<std::string>& known) {
  const std::string meant = nearest(word, known);
  return "'" + word + "' is not one of " + joined(offered) +
         (meant.empty() ? "" : "; did you mean '" + meant + "'?");
}

}  // namespace programs
