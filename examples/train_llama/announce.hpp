// What is said before the first step.
#pragma once

#include <common/folded.hpp>
#include <common/text.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/kept.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <string>

namespace trainer {

/// Prints which flags of ranks one rank alone makes nothing of: they tell of several that a
/// launcher was to start. Of --reduce fp32 it makes sums in FP32.
inline void announce_single_rank(const Options& options) {
  if (options.ranks * options.tensor_parallel > 1) return;
  std::string flags;
  const auto add = [&](bool is_given, const char* flag, const auto& value) {
    if (is_given) flags += octavo::message(flags.empty() ? "" : ", ", flag, ' ', value);
  };
  add(options.zero != 1, "--zero", options.zero);
  add(options.gather != "stored", "--gather", options.gather);
  add(options.reduce == "e4m3", "--reduce", options.reduce);
  add(options.check_replicas != 0, "--check-replicas", options.check_replicas);
  if (flags.empty()) return;
  fmt::print("ranks | 1: {} {} no effect\n", flags,
             flags.find(',') == std::string::npos ? "has" : "have");
}

/// Prints what is going to run: the memory and every GEMM, those of blocks that are alike as one.
inline void announce(const octavo::TrainingSession& session, const Options& options) {
  announce_single_rank(options);
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
  fmt::print("{}", programs::folded(session.manifest().text()));
  const std::string plans = session.gemm_plan_summary().text();
  if (!plans.empty()) fmt::print("gemm plans: {}\n", plans);
  programs::flush_output();
}

/// Says whether there are steps to take, and whether what they make of the weights is kept.
/// @param done  steps that the run has taken before
inline void announce_steps(const Options& options, octavo::Index done) {
  if (done >= options.steps) {
    fmt::print("run | nothing to train: the run is at step {}, {} is {}\n", done,
               options.chats.epochs == 0 ? "--steps" : "the last one of --epochs", options.steps);
  } else if (const std::string note = note_of_no_weights(options); !note.empty()) {
    fmt::print("run | {}\n", note);
  }
  programs::flush_output();
}

/// Says that the rate is still rising when the run ends.
inline void warn_of_warmup(const Options& options) {
  if (options.warmup <= options.steps) return;
  programs::tell(
      "{}: warning: --warmup {} is beyond --steps {}: the learning rate never reaches {:g}\n",
      program().name, options.warmup, options.steps, options.learning_rate);
}

}  // namespace trainer
