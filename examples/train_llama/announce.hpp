// Output before the first step.
#pragma once

#include <common/flags.hpp>
#include <common/folded.hpp>
#include <common/text.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/kept.hpp>
#include <train_llama/manifest_summary.hpp>
#include <train_llama/options.hpp>
#include <train_llama/pace.hpp>
#include <train_llama/program.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

namespace trainer {

/// Warns about flags that have no effect on a single rank.
inline void warn_of_single_rank(const Options& options) {
  if (options.ranks * options.tensor_parallel > 1) return;
  std::vector<std::string> flags = programs::flags_of_several_ranks(options);
  if (!options.exchange.empty()) flags.push_back("--exchange " + options.exchange);
  if (options.check_replicas != 0) {
    flags.push_back(octavo::message("--check-replicas ", options.check_replicas));
  }
  if (flags.empty()) return;
  programs::print_stderr("{}: warning: {}; start several ranks, for example with mpirun -n 2\n",
                         program().name, programs::no_effect_on_one_rank(flags));
}

namespace detail {

/// Converts bytes to MiB.
inline double mebibytes(std::size_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

/// Returns one line for each kind of memory.
inline std::string memory_table(const octavo::MemoryPlan& memory) {
  std::string text;
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    text += fmt::format("memory | {:<17} | {:>10.2f} MiB\n",
                        octavo::name_of(static_cast<octavo::MemoryKind>(kind)),
                        mebibytes(memory.by_kind[kind]));
  }
  text += fmt::format("memory | {:<17} | {:>10.2f} MiB, allocated once\n", "peak",
                      mebibytes(memory.peak));
  if (memory.host > 0) {
    text += fmt::format("memory | {:<17} | {:>10.2f} MiB in addition\n", "host memory",
                        mebibytes(memory.host));
  }
  return text;
}

/// Returns the same in one line.
inline std::string memory_line(const octavo::MemoryPlan& memory) {
  std::string kinds;
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    if (memory.by_kind[kind] == 0) continue;
    kinds += fmt::format("{}{} {:.2f}", kinds.empty() ? "" : ", ",
                         octavo::name_of(static_cast<octavo::MemoryKind>(kind)),
                         mebibytes(memory.by_kind[kind]));
  }
  return fmt::format(
      "memory | peak {:.2f} MiB ({}){}\n", mebibytes(memory.peak), kinds,
      memory.host == 0 ? "" : fmt::format(", host memory {:.2f} MiB", mebibytes(memory.host)));
}

}  // namespace detail

/// Prints the model, its precision, device and optimizer.
inline void announce_model(const octavo::TrainingSession& session, const Instance& instance) {
  const auto& facts = session.facts();
  fmt::print("octavo {} | {} | {} on {} | {} parameters{} | {}\n", octavo::version_string,
             instance.model, instance.precision, instance.device, facts.parameters,
             facts.frozen == 0 ? "" : fmt::format(", {} of them trained", facts.trained()),
             facts.optimizer);
}

/// Prints the flags that were set, or all of them with --verbose.
/// @param chosen         lines of TOML: flags of the command line and of --config
/// @param configuration  lines of TOML: all flags
inline void announce_flags(const Options& options, const std::string& chosen,
                           const std::string& configuration) {
  if (options.verbose) {
    fmt::print("{}", configuration);
    return;
  }
  constexpr std::size_t width = 100;
  std::istringstream lines(chosen);
  std::string text;
  for (std::string flag; std::getline(lines, flag);) {
    if (flag.empty()) continue;
    if (!text.empty() && text.size() + flag.size() + 2 > width) {
      fmt::print("flags | {},\n", text);
      text.clear();
    }
    text += (text.empty() ? "" : ", ") + flag;
  }
  if (!text.empty()) fmt::print("flags | {}\n", text);
}

/// Prints the adapters, and how ranks divide and exchange their data.
inline void announce_exchanges(const octavo::TrainingSession& session, const Options& options,
                               int ranks) {
  const auto& facts = session.facts();
  if (facts.lora) fmt::print("adapters | {}\n", facts.lora->text());
  if (options.tensor_parallel > 1) {
    fmt::print("ranks | {}, of which {} share each layer, ZeRO-{}\n", ranks,
               options.tensor_parallel, options.zero);
  } else if (ranks > 1) {
    fmt::print("ranks | {}, ZeRO-{}\n", ranks, options.zero);
  }
  if (ranks > 1 && options.reduce != "stored") {
    fmt::print("reduce | {}\n", options.reduce == "fp32" ? "gradients are summed and kept in FP32"
                                                         : "gradients are reduced in E4M3");
  }
  if (!facts.transport.empty()) fmt::print("exchange | {}\n", facts.transport);
  if (options.gather == "fp8") {
    fmt::print("gather | {} of {} parameters in FP8, all others in the storage format\n",
               facts.parameters_gathered_in_fp8, facts.parameters);
  }
}

/// Prints memory and GEMMs in a few lines, or in full with --verbose, and writes the full text to
/// manifest.txt in the run's folder.
/// @param folder  the run's folder; empty writes no file
/// @throws IoError  if manifest.txt cannot be written
inline void announce(const octavo::TrainingSession& session, const Options& options,
                     const std::filesystem::path& folder) {
  const std::string note =
      octavo::run_shape_note(options.sequence_length, session.facts().run_shape);
  if (!note.empty()) fmt::print("batch | {}\n", note);
  const std::string memory = detail::memory_table(session.facts().memory);
  const std::string manifest = programs::folded(session.manifest().text());
  if (options.verbose) {
    fmt::print("{}{}", memory, manifest);
  } else {
    fmt::print("{}{}", detail::memory_line(session.facts().memory), manifest_summary(manifest));
  }
  if (!folder.empty()) octavo::write_file_atomically(folder / "manifest.txt", memory + manifest);
  if (rounds_biased_keys(session.manifest())) {
    programs::print_stderr(
        "{}: warning: attention in 8 bits rounds keys with biases, which cost GPT-2 124M 2.5 % of "
        "its loss; choose a precision without ForAttention, such as fp8-delayed-fast\n",
        program().name);
  }
  const std::string plans = session.gemm_plan_summary().text();
  if (!plans.empty()) fmt::print("gemm plans: {}\n", plans);
  programs::flush_output();
}

/// Prints the length of the run, or that there is nothing to train, and if the trained weights are
/// not kept.
/// @param totals  of the steps that the run has taken before
inline void announce_steps(const Options& options, const octavo::RunTotals& totals) {
  const octavo::Index done = totals.steps();
  if (done >= options.steps) {
    fmt::print("run | nothing to train: the run is at step {}, {} is {}\n", done,
               options.chats.epochs == 0 ? "--steps" : "the last one of --epochs", options.steps);
  } else {
    const double tokens = tokens_of_step(options);
    const double all = totals.tokens() + tokens * static_cast<double>(options.steps - done);
    fmt::print(
        "run | steps {} to {} of {:.0f} tokens{}{}\n", done + 1, options.steps, tokens,
        std::isnan(all) ? "" : fmt::format(", {} tokens in all", programs::tokens_text(all)),
        options.max_time == 0 ? "" : ", for at most " + programs::duration_text(options.max_time));
    const std::string note = note_of_no_weights(options);
    if (!note.empty()) fmt::print("run | {}\n", note);
  }
  programs::flush_output();
}

/// Warns if the learning rate still rises at the end of the run.
inline void warn_of_warmup(const Options& options) {
  if (options.warmup <= options.steps) return;
  programs::print_stderr(
      "{}: warning: --warmup {} is beyond --steps {}: the learning rate never reaches {:g}\n",
      program().name, options.warmup, options.steps, options.learning_rate);
}

/// Warns if --keep-best has no checkpoints to compare, because no step before the last is both
/// evaluated and saved.
inline void warn_of_no_best(const Options& options) {
  if (!options.keep.best || options.checkpoint_every == 0) return;
  const octavo::Index both =
      options.evaluate_every == 0 ? 0 : std::lcm(options.checkpoint_every, options.evaluate_every);
  if (both != 0 && both < options.steps) return;
  programs::print_stderr(
      "{}: warning: --keep-best compares checkpoints of evaluated steps, but with "
      "--checkpoint-every {} and --evaluate-every {}, only the last step is both; pass the same "
      "number for both\n",
      program().name, options.checkpoint_every, options.evaluate_every);
}

}  // namespace trainer
