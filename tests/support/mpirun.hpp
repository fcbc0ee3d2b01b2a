// Programs of several ranks under mpirun.
#pragma once

#include "child_process.hpp"

#include <map>
#include <string>
#include <vector>

/// Runs a program as so many ranks; whoever tests as root, and on fewer processors than ranks, may.
/// @param options  of mpirun
inline ChildResult run_mpirun(int ranks, const std::vector<std::string>& program,
                              const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{OCTAVO_TEST_MPIRUN, "-n", std::to_string(ranks)};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), program.begin(), program.end());
  return run_child(command,
                   {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                    {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                    {"OMPI_MCA_mpi_yield_when_idle", "1"},
                    {"OMPI_MCA_btl_base_warn_component_unused", "0"},
                    {"OMP_NUM_THREADS", "1"},
                    {"ASAN_OPTIONS", "detect_leaks=0"}},
                   150);
}
