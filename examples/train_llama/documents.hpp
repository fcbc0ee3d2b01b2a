// What is asked of the flags that part a text into documents.
#pragma once

#include <octavo/data/data_files.hpp>
#include <octavo/octavo.hpp>

#include <cstdint>

namespace trainer {

/// Throws unless a batch can have so many documents.
/// @throws ConfigError  naming the flag, and what it may be
inline void require_most_documents(octavo::BatchShape shape) {
  octavo::require<octavo::ConfigError>(
      shape.most_documents >= shape.sequences && shape.most_documents <= shape.rows(),
      "--most-documents ", shape.most_documents, ": --batch ", shape.sequences, " --seq-len ",
      shape.tokens, " are ", shape.sequences, " to ", shape.rows(),
      " documents; give a number of these");
}

/// Throws unless a token of the text can end its documents, and a batch can have so many of them.
/// @param document_end  of --document-end; below 0: each sequence is one document
/// @param vocabulary    of the model, or of the text's tokens where these are fewer
/// @throws ConfigError  naming the flag, and what it may be
inline void require_documents(std::int32_t document_end, octavo::BatchShape shape,
                              octavo::Index vocabulary) {
  if (document_end < 0) return;
  octavo::require<octavo::ConfigError>(document_end < vocabulary, "--document-end ", document_end,
                                       ": the text has no such token, and no document would end; "
                                       "give one from 0 to ",
                                       vocabulary - 1);
  require_most_documents(shape);
}

/// Throws unless a token of data that was read can end its documents, where that is text: its
/// tokens may be fewer than the model's.
/// @param tokens  that there are of text
/// @throws ConfigError  as above
inline void require_documents_of(const octavo::Data& data, std::int32_t document_end,
                                 octavo::BatchShape shape, octavo::Index tokens) {
  if (data.is_text) require_documents(document_end, shape, tokens);
}

/// Calls `part`, and names the flag where a batch of it has too many documents.
template <class Part>
auto name_document_flags(const Part& part) {
  try {
    return part();
  } catch (const octavo::TooManyDocumentsError& error) {
    throw octavo::ConfigError(octavo::message(
        "a batch has ", error.count(),
        " documents, those that begin with a sequence included; give --most-documents ",
        error.count(), " or more"));
  }
}

}  // namespace trainer
