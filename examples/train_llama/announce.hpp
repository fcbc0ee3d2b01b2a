// What is said before the first step.
#pragma once

#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <string>

namespace trainer {

/// Prints what is going to run: the memory and every GEMM.
inline void announce(const octavo::TrainingSession& session, const Options& options) {
  const std::string note = octavo::run_shape_note(options.sequence_length, session.run_shape());
  if (!note.empty()) fmt::print("batch | {}\n", note);
  const octavo::MemoryPlan& memory = session.memory();
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    fmt::print("memory | {:<17} | {:>10.2f} MiB\n",
               octavo::name_of(static_cast<octavo::MemoryKind>(kind)),
               static_cast<double>(memory.by_kind[kind]) / (1024.0 * 1024.0));
  }
  fmt::print("memory | {:<17} | {:>10.2f} MiB, allocated once\n", "peak",
             static_cast<double>(memory.peak) / (1024.0 * 1024.0));
  if (memory.host > 0) {
    fmt::print("memory | {:<17} | {:>10.2f} MiB, beside\n", "of the host",
               static_cast<double>(memory.host) / (1024.0 * 1024.0));
  }
  fmt::print("{}", session.manifest().text());
  const std::string plans = session.gemm_plan_summary().text();
  if (!plans.empty()) fmt::print("gemm plans: {}\n", plans);
  programs::flush_output();
}

/// Says that the rate is still rising when the run ends.
inline void warn_of_warmup(const Options& options) {
  if (options.warmup <= options.steps) return;
  fmt::print(
      stderr,
      "{}: warning: --warmup {} is beyond --steps {}: the learning rate never reaches {:g}\n",
      program().name, options.warmup, options.steps, options.learning_rate);
}

}  // namespace trainer
