/// @file
/// A tree of the texts of tokens.
#pragma once

#include <octavo/data/pair_merges.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Finds all tokens with which a text begins.
class TextTrie {
 public:
  TextTrie() = default;
  /// @param texts  different texts that are not empty, and their tokens
  explicit TextTrie(std::vector<std::pair<std::string_view, std::int32_t>> texts) {
    std::size_t bytes = 0;
    for (const auto& [text, token] : texts) bytes += text.size();
    children_ = PairMerges(bytes);
    std::sort(texts.begin(), texts.end());  // a text precedes its continuations
    std::int32_t nodes = 1;
    for (const auto& [text, token] : texts) {
      std::int32_t node = 0;
      for (std::size_t i = 0; i < text.size(); ++i) {
        const bool is_end = i + 1 == text.size();
        const PairMerge child = children_.find(node, byte_of(text[i]));
        if (child.exists()) {
          node = child.token;
        } else {
          children_.add(node, byte_of(text[i]), {is_end ? token : none, nodes});
          node = nodes++;
        }
      }
    }
  }

  /// Calls `body(length, token)` for each token with which the text begins, shortest first.
  template <class Body>
  void each(std::string_view text, const Body& body) const {
    std::int32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const PairMerge child = children_.find(node, byte_of(text[i]));
      if (!child.exists()) return;
      if (child.rank != none) body(i + 1, child.rank);
      node = child.token;
    }
  }

 private:
  static constexpr std::int32_t none = -1;

  static std::int32_t byte_of(char byte) { return static_cast<std::uint8_t>(byte); }

  PairMerges children_;  ///< by node and byte: `token` is the child, `rank` its token
};

}  // namespace octavo OCTAVO_ABI::detail
