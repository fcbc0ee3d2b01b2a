/// @file
/// Ensures that all ranks multiply with the same libraries and the same algorithms.
#pragma once

#include <octavo/comm/all_gather_texts.hpp>
#include <octavo/comm/same_on_all_ranks.hpp>
#include <octavo/gemm/gemm_plans.hpp>

#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Makes all ranks use the algorithms of rank 0; all call it together. Waits for them.
/// @tparam Ranks     a `Communicator`, or a type with its `rank`, `size` and `all_gather_host_sync`
/// @param libraries  of this rank: see `libraries_text`
/// @param plans      called without arguments, returns this rank's algorithms: see `gemm_plans`
/// @param take       called with records, uses them from now on: see `take_gemm_plans`
/// @throws CommError  on every rank, if libraries differ, or if algorithms still differ after all
/// ranks have set those of rank 0, because a rank has other records or rejects some
template <class Ranks, class Plans, class Take>
void share_gemm_plans_sync(Ranks& ranks, const std::string& libraries, const Plans& plans,
                           const Take& take) {
  if (ranks.size() == 1) return;
  require_same_on_all_ranks(ranks, {{"libraries", libraries}});
  const std::vector<std::string> all =
      all_gather_texts(ranks, gemm_plans_text(plans()), "algorithms of GEMMs");
  if (ranks.rank() != 0) take(read_gemm_plans(all.front(), "algorithms of rank 0's GEMMs"));
  require_same_on_all_ranks(ranks, {{"algorithms of GEMMs", gemm_plans_text(plans())}});
}

}  // namespace octavo::detail
