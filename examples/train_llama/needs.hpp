// Which of the trainer's flags have an effect only with other settings.
#pragma once

#include <common/needs.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <vector>

namespace trainer {

/// Throws if a flag was set that has no effect with the other settings.
/// @throws ConfigError  with advice
inline void require_effects(CLI::App& app, const Options& options) {
  const bool is_quantised = options.precision != "fp32" && options.precision != "bf16";
  const bool has_masters = options.precision != "fp32";
  const std::vector<programs::FlagNeed> needs{
      {{"--keep-last", "--keep-every", "--keep-best"},
       options.checkpoint_every != 0,
       "--checkpoint-every",
       "N"},
      {{"--convert"}, !options.resume.empty(), "--resume", "CHECKPOINT"},
      {{"--replays"}, options.replay_step != 0, "--replay-step", "N"},
      {{"--validation-fraction"}, options.validation_data.empty(), "--validation-data", ""},
      {{"--validation-fraction"}, options.chats.validation_files.empty(), "--validation-chats", ""},
      {{"--decay-fraction"}, options.schedule == "wsd", "--schedule", "wsd"},
      {{"--final-fraction"}, options.schedule != "constant", "--schedule", "cosine, linear or wsd"},
      {{"--muon-momentum", "--muon-nesterov", "--muon-iterations", "--muon-rate",
        "--muon-adamw-rate"},
       options.formats.optimizer == "muon",
       "--optimizer",
       "muon"},
      {{"--master-weights"},
       has_masters || options.formats.master_weights != "bf16",
       "--precision",
       "bf16 or fp8-…"},
      {{"--weight-copies"}, is_quantised, "--precision", "fp8-…"},
      {{"--lora-alpha", "--lora-targets", "--load-adapters", "--save-adapters"},
       options.lora != 0,
       "--lora",
       "RANK"},
      {{"--spike-threshold", "--spike-window"},
       options.on_spike != "off",
       "--on-spike",
       "stop, skip or rollback"},
      {{"--max-rollbacks"}, options.on_spike == "rollback", "--on-spike", "rollback"},
      {{"--sample-each", "--temperature"}, options.sample != 0, "--sample", "N"},
      {{"--sample-each"}, options.evaluate_every != 0, "--evaluate-every", "N"},
      {{"--hellaswag-questions"}, !options.hellaswag.empty(), "--hellaswag", "FILE"},
      {{"--hash-every"}, !options.no_out || options.hash_every == 0, "--no-out", ""},
      {{"--operands-every"}, !options.no_out, "--no-out", ""},
      {{"--timeline-steps"}, !options.timeline.empty(), "--timeline", "FILE"}};
  programs::require_effects(app, needs);
}

}  // namespace trainer
