// Stores the algorithms of a run's GEMMs for later runs.
#pragma once

#include <common/text.hpp>
#include <octavo/core/error.hpp>
#include <octavo/run/gemm_plan_file.hpp>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

namespace trainer {

/// Adds them to the file of --gemm-plans. If this fails, prints a warning, and the run trains
/// normally.
/// @param program       name for messages
/// @param comm_timeout  seconds after which other ranks, which wait in an exchange, give up; waits
///                      at most half of it for other runs that write the file
inline void keep_gemm_plans(const std::string& file, std::span<const octavo::GemmPlanRecord> plans,
                            const char* program, int comm_timeout) {
  try {
    octavo::store_gemm_plans(file, plans, std::min(60, comm_timeout / 2));
  } catch (const octavo::IoError& error) {
    programs::print_stderr(
        "{}: warning: {}. The run continues with its GEMM plans, and its checkpoints contain them, "
        "but the next run must choose its own\n",
        program, programs::text_of(error));
  }
}

}  // namespace trainer
