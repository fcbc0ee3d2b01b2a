#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace plain_merges {

/// Byte-pair encoding as in the paper, by a plain search: an oracle.
class PlainMerges {
 public:
  /// @param model  `model` of a tokenizer.json
  explicit PlainMerges(const nlohmann::ordered_json& model)
      : vocabulary_(model["vocab"].get<std::map<std::string, std::int32_t>>()) {
    for (const auto& pair : model["merges"])
      ranks_.emplace(std::pair<std::string, std::string>(pair[0], pair[1]), ranks_.size());
  }

  /// Merges the pair of the lowest rank until no pair has a rank, and returns the tokens.
  /// @param parts  the letters of a text
  [[nodiscard]] std::vector<std::int32_t> tokens(std::vector<std::string> parts) const {
    for (;;) {
      std::size_t best = 0;
      int rank = -1;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks_.find({parts[i], parts[i + 1]});
        if (found == ranks_.end() || (rank >= 0 && found->second >= rank)) continue;
        rank = found->second;
        best = i;
      }
      if (rank < 0) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<std::int32_t> result;
    for (const std::string& part : parts) result.push_back(vocabulary_.at(part));
    return result;
  }

 private:
  std::map<std::string, std::int32_t> vocabulary_;
  std::map<std::pair<std::string, std::string>, int> ranks_;
};

}  // namespace plain_merges
