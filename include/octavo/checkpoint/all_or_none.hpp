/// @file
/// Collective work that succeeds on all ranks or on none.
#pragma once

#include <octavo/session/training_session.hpp>

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Runs a part of collective work on each rank. If it throws on one rank, all ranks throw.
/// @param part  of this rank; returns a text for the others
/// @return      the texts of all ranks, in rank order
/// @throws      the exception of `part`; ConfigError, naming the rank, if `part` threw only on
///                  another rank
inline std::vector<std::string> all_or_none(TrainingSession& session, const char* what,
                                            const std::function<std::string()>& part) {
  std::string text;
  std::exception_ptr own;
  try {
    text = '+' + part();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    text = std::string("-") + error.what();
    own = std::current_exception();
  }
  std::vector<std::string> texts = session.ranks().texts(text, what);
  if (own != nullptr) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const bool succeeded = texts[rank].starts_with('+');
    texts[rank].erase(0, 1);
    require<ConfigError>(succeeded, "rank ", rank, ": ", texts[rank]);
  }
  return texts;
}

}  // namespace octavo OCTAVO_ABI::detail
