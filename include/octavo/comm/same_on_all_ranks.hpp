/// @file
/// Comparison of facts that must be equal on all ranks.
#pragma once

#include <octavo/comm/all_gather_texts.hpp>
#include <octavo/comm/packed_text.hpp>
#include <octavo/comm/rank_names.hpp>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A fact that must be equal on all ranks, such as {"model", "llama3_8b"}. Values may be long:
/// errors show where they differ. For a file, use its digest.
struct RankFact {
  std::string name;
  std::string value;
};

namespace detail {

/// Returns an excerpt of a value that starts where the values differ.
inline std::string difference_text(const std::string& value, std::size_t common) {
  constexpr std::size_t before = 20;
  constexpr std::size_t most = 100;
  const std::size_t begin = common > before ? common - before : 0;
  const std::string shown = value.substr(begin, most);
  return message("'", begin > 0 ? "..." : "", shown,
                 begin + shown.size() < value.size() ? "..." : "", "'");
}

/// "rank 2 has '8', ranks 0 and 1 have '4'".
/// @param values  the ranks that have each value; a template, so that only programs with several
///                ranks compile it
template <class RanksOfValues>
std::string values_text(const RanksOfValues& values) {
  // Values are sorted: the common prefix of the first and the last is that of all.
  const auto& first = values.begin()->first;
  const auto& last = values.rbegin()->first;
  const auto [differs, there] = std::mismatch(first.begin(), first.end(), last.begin(), last.end());
  const auto common = static_cast<std::size_t>(differs - first.begin());
  std::vector<std::pair<typename RanksOfValues::mapped_type, std::string>> fewest_first;
  fewest_first.reserve(values.size());
  for (const auto& [value, ranks] : values) {
    fewest_first.emplace_back(ranks, difference_text(value, common));
  }
  std::stable_sort(fewest_first.begin(), fewest_first.end(),
                   [](const auto& a, const auto& b) { return a.first.size() < b.first.size(); });
  std::string text;
  for (const auto& [ranks, value] : fewest_first) {
    text +=
        message(text.empty() ? "" : ", ", rank_names(ranks), " ", has_or_have(ranks), " ", value);
  }
  return text;
}

}  // namespace detail

/// Requires that facts are equal on all ranks. All ranks call it together. Waits for them.
/// @tparam Ranks  a `Communicator`, or a type with its `size` and `all_gather_host_sync`
/// @param facts   of this rank, with unique names
/// @throws CommError  on every rank, if facts differ, with each differing fact, its values and the
///                    ranks that have them. A missing fact counts as ''
template <class Ranks>
void require_same_on_all_ranks(Ranks& communicator, const std::vector<RankFact>& facts) {
  std::string packed;
  for (const RankFact& fact : facts) {
    detail::append_text(packed, fact.name);
    detail::append_text(packed, fact.value);
  }
  const std::vector<std::string> all =
      all_gather_texts(communicator, packed, "comparison of all ranks");
  std::map<std::string, std::vector<std::string>> values_of;  // by name, then by rank
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::string_view rest = all[rank]; !rest.empty();) {
      std::vector<std::string>& values = values_of[std::string(detail::take_text(rest))];
      values.resize(all.size());
      values[rank] = detail::take_text(rest);
    }
  }
  std::string differences;
  for (const auto& [name, values] : values_of) {
    std::map<std::string, std::vector<int>> ranks;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      ranks[values[rank]].push_back(static_cast<int>(rank));
    }
    if (ranks.size() > 1)
      differences +=
          message(differences.empty() ? "" : "; ", "in ", name, ": ", detail::values_text(ranks));
  }
  require<CommError>(differences.empty(), "the ranks differ ", differences,
                     "; start all with the same program, flags and files");
}

}  // namespace octavo
