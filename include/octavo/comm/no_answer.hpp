/// @file
/// Texts of messages about ranks that do not respond.
#pragma once

#include <octavo/comm/rank_names.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// "30 s".
[[nodiscard]] inline std::string seconds_text(std::chrono::milliseconds time) {
  return message(static_cast<double>(time.count()) / 1000.0, " s");
}

/// Returns the message about ranks that do not respond.
[[nodiscard]] inline std::string timeout_message(const std::vector<int>& ranks,
                                                 std::chrono::milliseconds time,
                                                 const std::string& operation) {
  return message(rank_names(ranks), " ", has_or_have(ranks), " not answered for ",
                 seconds_text(time), " in ", operation);
}

/// Returns the message of a rank that has waited for others.
/// @param absent  rank 0's report about them; empty: all participate; none: rank 0 does not respond
[[nodiscard]] inline std::string absent_text(const std::optional<std::string>& absent) {
  if (!absent.has_value())
    return "rank 0, which monitors all ranks, does not respond; check that it still runs";
  return absent->empty() ? "all of them have reached it; check their GPUs" : *absent;
}

}  // namespace octavo OCTAVO_ABI::detail
