// The flags that replace training by another task.
#pragma once

#include <common/needs.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <vector>

namespace trainer {

/// Throws if --list-checkpoints, --export-hf or --replay-step was set together with another of
/// them, or with a flag that only another task uses. Flags of a file that the command line makes
/// ineffective count as not set.
/// @throws ConfigError  with advice
inline void require_one_task(CLI::App& app, const Options& options) {
  const bool exports = !options.export_hf.empty();
  const std::vector<programs::FlagNeed> needs{
      {{"--export-hf", "--replay-step", "--replays", "--resume", "--convert", "--save-hf",
        "--save-adapters", "--load-adapters", "--timeline"},
       !options.list_checkpoints,
       "--list-checkpoints",
       ""},
      {{"--replay-step", "--replays", "--convert", "--save-hf", "--save-adapters",
        "--load-adapters", "--timeline"},
       !exports,
       "--export-hf",
       ""},
      {{"--checkpoint-every", "--save-hf", "--save-adapters", "--timeline", "--hellaswag",
        "--sample-each", "--max-time"},
       options.replay_step == 0,
       "--replay-step",
       ""}};
  programs::require_effects(app, needs);
}

}  // namespace trainer
