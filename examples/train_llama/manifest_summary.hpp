// The manifest of a run in a few lines.
#pragma once

#include <octavo/gemm/manifest.hpp>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace trainer {

namespace detail {

/// The cells of a line between bars, without the spaces that align them.
inline std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream all(line);
  for (std::string cell; std::getline(all, cell, '|');) {
    const std::size_t begin = cell.find_first_not_of(' ');
    const std::size_t end = cell.find_last_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

/// Adds a word to a list with commas, once.
inline void add_once(std::vector<std::string>& words, const std::string& word) {
  if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
}

inline std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// GEMMs or attentions of the same blocks and precision.
struct ManifestGroup {
  std::string kind, place, precision;
  std::vector<std::string> layers, kernels;
};

}  // namespace detail

/// Whether the forward of attention runs in 8 bits on keys with biases.
inline bool rounds_biased_keys(const octavo::Manifest& manifest) {
  const auto& gemms = manifest.entries();
  const auto& attentions = manifest.attentions();
  return std::any_of(gemms.begin(), gemms.end(),
                     [](const octavo::GemmEntry& entry) {
                       return entry.bias && entry.layer.ends_with(".qkv");
                     }) &&
         std::any_of(attentions.begin(), attentions.end(), [](const octavo::AttentionEntry& entry) {
           return entry.expected.ends_with("8-bit");
         });
}

/// One line for each kind of block and precision: "gemm | blocks.0-3: qkv, output | fp8-delayed |
/// cuBLASLt".
/// @param folded  the manifest's lines, where blocks that are alike are one
inline std::string manifest_summary(const std::string& folded) {
  std::vector<detail::ManifestGroup> groups;
  std::istringstream lines(folded);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = detail::cells_of(line);
    if (cells.size() < 5) continue;
    // "blocks.0-3.qkv forward" is a place, a layer and a pass; "head forward" has no blocks.
    const std::string name = cells[1].substr(0, cells[1].find(' '));
    const std::size_t dot = name.rfind('.');
    const std::string place = dot == std::string::npos ? name : name.substr(0, dot);
    const std::string layer = dot == std::string::npos ? "" : name.substr(dot + 1);
    const std::string& precision = cells[cells.size() - 2];
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.kind == cells[0] && group.place == place && group.precision == precision;
    });
    detail::ManifestGroup& group =
        same != groups.end()
            ? *same
            : groups.emplace_back(detail::ManifestGroup{cells[0], place, precision, {}, {}});
    if (!layer.empty() && layer != group.kind) detail::add_once(group.layers, layer);
    detail::add_once(group.kernels, cells.back());
  }
  std::string text;
  for (const detail::ManifestGroup& group : groups) {
    const std::string layers = detail::joined(group.layers);
    text += group.kind + " | " + group.place + (layers.empty() ? "" : ": " + layers) + " | " +
            group.precision + " | " + detail::joined(group.kernels) + '\n';
  }
  return text;
}

}  // namespace trainer
