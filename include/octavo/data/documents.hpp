/// @file
/// Finding the documents in consecutive tokens.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Finds the documents of sequences by the token that ends each, such as a tokenizer's end of text.
/// The target of that token becomes −1, which losses ignore, because the next token belongs to
/// another document.
/// @param tokens           consecutive sequences; the last may be shorter
/// @param targets          target of each token; modified
/// @param sequence_length  tokens per sequence
/// @param document_end     the last token of each document
/// @param begins           written: indices in `tokens` at which documents begin, ascending, except
///                         the beginning of each sequence, which always begins a document
/// @throws ShapeError  if the numbers of tokens and targets differ, or sequence_length is 0
inline void find_documents(std::span<const std::int32_t> tokens, std::span<std::int32_t> targets,
                           Index sequence_length, std::int32_t document_end,
                           std::vector<Index>& begins) {
  require<ShapeError>(targets.size() == tokens.size(),
                      "find_documents: there must be one target for each of ", tokens.size(),
                      " tokens, but there are ", targets.size());
  const auto length = static_cast<std::size_t>(sequence_length);
  require<ShapeError>(sequence_length > 0,
                      "find_documents: sequence length must be at least 1, but is ",
                      sequence_length);
  begins.clear();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != document_end) continue;
    targets[i] = -1;
    if ((i + 1) % length != 0 && i + 1 != tokens.size())
      begins.push_back(static_cast<Index>(i + 1));
  }
}

/// Returns the maximum number of documents in any `sequence_length` consecutive tokens.
/// @param document_end  the last token of each document
template <class Token>
Index most_documents_in(std::span<const Token> tokens, Index sequence_length, Token document_end) {
  const auto inner = static_cast<std::size_t>(sequence_length - 1);  // whose end begins another
  Index ends = 0;
  Index most = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {  // no document begins after the last token
    if (tokens[i] == document_end) ++ends;
    if (i >= inner && tokens[i - inner] == document_end) --ends;
    most = std::max(most, ends);
  }
  return most + 1;
}

}  // namespace octavo
