/// @file
/// Tokens that are found in a text as they stand, before it is cut into words.
#pragma once

#include <octavo/core/version.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// A token with a text of its own.
struct AddedToken {
  std::string text;  ///< not empty
  std::int32_t token = 0;
  bool is_special = true;     ///< found only where it is allowed
  bool is_normalised = true;  ///< looked for in what those that are not have left
};

/// Finds the first of some tokens in a text; of several that begin at one place, the longest.
class AddedTokens {
 public:
  struct Found {
    std::size_t begin = 0;  ///< the text's size: there is none
    const AddedToken* token = nullptr;
  };

  /// @param token  outlives this
  void add(const AddedToken& token) {
    const auto place = std::find_if(tokens_.begin(), tokens_.end(), [&](const AddedToken* other) {
      return other->text.size() < token.text.size();
    });
    tokens_.insert(place, &token);
    begins_[static_cast<std::uint8_t>(token.text.front())] = true;
  }

  [[nodiscard]] Found find(std::string_view text, std::size_t from) const {
    for (std::size_t at = tokens_.empty() ? text.size() : from; at < text.size(); ++at) {
      if (!begins_[static_cast<std::uint8_t>(text[at])]) continue;
      for (const AddedToken* token : tokens_) {
        if (text.substr(at).starts_with(token->text)) return {at, token};
      }
    }
    return {text.size(), nullptr};
  }

 private:
  std::vector<const AddedToken*> tokens_;  ///< the longest first
  std::array<bool, 256> begins_{};
};

}  // namespace detail

}  // namespace octavo
