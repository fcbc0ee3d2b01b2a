// Checks of the flags that split a text into documents.
#pragma once

#include <octavo/data/data_files.hpp>
#include <octavo/octavo.hpp>

#include <cstdint>

namespace trainer {

/// Throws if --most-documents is less than the number of sequences or more than the tokens.
/// @throws ConfigError  with the valid range
inline void require_most_documents(octavo::BatchShape shape) {
  octavo::require<octavo::ConfigError>(
      shape.most_documents >= shape.sequences && shape.most_documents <= shape.rows(),
      "--most-documents must be from ", shape.sequences, " to ", shape.rows(), " with --batch ",
      shape.sequences, " --seq-len ", shape.tokens, ", but is ", shape.most_documents);
}

/// Throws if no token of the text can be --document-end, or --most-documents is out of range.
/// @param document_end  negative if each sequence is one document
/// @param vocabulary    size of the model's vocabulary, or of the text's if that is smaller
/// @throws ConfigError  with the valid range
inline void require_documents(std::int32_t document_end, octavo::BatchShape shape,
                              octavo::Index vocabulary) {
  if (document_end < 0) return;
  octavo::require<octavo::ConfigError>(document_end < vocabulary,
                                       "--document-end must be a token of the text, from 0 to ",
                                       vocabulary - 1, ", but is ", document_end);
  require_most_documents(shape);
}

/// Applies `require_documents` to data that was read, if it is text: its vocabulary can be smaller
/// than the model's.
/// @param tokens  size of the text's vocabulary
/// @throws ConfigError  with the valid range
inline void require_documents_of(const octavo::Data& data, std::int32_t document_end,
                                 octavo::BatchShape shape, octavo::Index tokens) {
  if (data.is_text) require_documents(document_end, shape, tokens);
}

/// Calls `part`, and names the flag in the error if a batch has too many documents.
template <class Part>
auto name_document_flags(const Part& part) {
  try {
    return part();
  } catch (const octavo::TooManyDocumentsError& error) {
    throw octavo::ConfigError(octavo::message(
        "a batch has ", error.count(),
        " documents, including those that begin with a sequence; pass --most-documents ",
        error.count(), " or more"));
  }
}

}  // namespace trainer
