/// @file
/// Tokens whose texts are searched for before a text is split into words.
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

/// A token with a fixed text.
struct AddedToken {
  std::string text;  ///< not empty
  std::int32_t token = 0;
  bool is_special = true;     ///< found only if the caller allows it
  bool is_normalised = true;  ///< searched for after the text was normalised
  bool strips_left = false;   ///< removes the white space before it
  bool strips_right = false;  ///< removes the white space after it
  std::string normalised{};   ///< the text to search for, if it is not `text`

  [[nodiscard]] std::string_view searched() const {
    return normalised.empty() ? std::string_view(text) : std::string_view(normalised);
  }
};

/// Finds the first of several tokens in a text. If several begin at the same position, it finds the
/// longest.
class AddedTokens {
 public:
  struct Found {
    std::size_t begin = 0;  ///< the size of the text if none was found
    const AddedToken* token = nullptr;
  };

  /// @param token  outlives this object
  void add(const AddedToken& token) {
    const auto place = std::find_if(tokens_.begin(), tokens_.end(), [&](const AddedToken* other) {
      return other->searched().size() < token.searched().size();
    });
    tokens_.insert(place, &token);
    begins_[static_cast<std::uint8_t>(token.searched().front())] = true;
  }

  [[nodiscard]] Found find(std::string_view text, std::size_t from) const {
    for (std::size_t at = tokens_.empty() ? text.size() : from; at < text.size(); ++at) {
      if (!begins_[static_cast<std::uint8_t>(text[at])]) continue;
      for (const AddedToken* token : tokens_) {
        if (text.substr(at).starts_with(token->searched())) return {at, token};
      }
    }
    return {text.size(), nullptr};
  }

 private:
  std::vector<const AddedToken*> tokens_;  ///< longest first
  std::array<bool, 256> begins_{};
};

}  // namespace detail

}  // namespace octavo
