// The algorithms of a run's GEMMs, as it leaves them to the next.
#pragma once

#include <common/text.hpp>
#include <octavo/core/error.hpp>
#include <octavo/train/gemm_plan_file.hpp>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

namespace trainer {

/// Adds them to the file of --gemm-plans. A run that cannot do so trains with them all the same:
/// one line says why.
/// @param program       for messages
/// @param comm_timeout  seconds after which other ranks, which wait in an exchange, give this one
///                      up: other runs that store are waited for no longer than half of it
inline void keep_gemm_plans(const std::string& file, std::span<const octavo::GemmPlanRecord> plans,
                            const char* program, int comm_timeout) {
  try {
    octavo::store_gemm_plans(file, plans, std::min(60, comm_timeout / 2));
  } catch (const octavo::IoError& error) {
    programs::tell(
        "{}: warning: {}. The run goes on with its GEMM plans, and its checkpoints have "
        "them; the next run has to choose its own\n",
        program, programs::text_of(error));
  }
}

}  // namespace trainer
