// The values of the trainers' flags, and the requests that they make.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flags_file.hpp>
#include <octavo/checkpoint/checkpoint_folder.hpp>
#include <octavo/octavo.hpp>
#include <octavo/run/gemm_plan_file.hpp>
#include <octavo/run/run_totals.hpp>
#include <octavo/run/spikes.hpp>
#include <octavo/run/training_run.hpp>
#include <train_llama/model_choice.hpp>
#include <train_llama/optimizer.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

namespace detail {

/// The flags that control how a run is saved.
inline constexpr std::array save_flags{"checkpoint-every", "keep-last", "keep-every", "keep-best"};

}  // namespace detail

inline constexpr const char* data_group = "Data";

/// Options for training on chats.
struct ChatOptions {
  std::vector<std::string> files;
  std::vector<std::string> validation_files;
  std::string chat_template;
  std::string tokenizer;  ///< empty: tokenizer.json in the folder of --model hf:FOLDER
  std::string too_long = "cut";
  bool last_turn_only = false;
  octavo::Index max_per_sequence = 32;
  octavo::Index epochs = 0;  ///< 0: as many as --steps covers
};

/// Values of all flags of a run.
struct Options : ModelChoice {
  std::string recompute = "none";
  std::string weight_copies = "kept";
  bool deterministic = false;
  std::string gemm_plans;
  octavo::Index head_chunk = 0;
  octavo::LoraOptions adapters;  ///< the rank is in `lora`
  std::vector<std::string> lora_targets{"all-linear"};
  std::string load_adapters;

  int ranks = 1;  ///< started by a launcher; number of groups with tensor parallelism
  int zero = 1;
  std::string gather = "stored";
  std::string reduce = "stored";
  std::string exchange;  ///< empty means copies
  octavo::Index check_replicas = 0;

  std::vector<std::string> data;
  std::vector<std::string> validation_data;
  std::int32_t document_end = -1;  ///< none
  ChatOptions chats;
  octavo::Index most_documents = 0;
  octavo::Index batch = 8;
  octavo::Index sequence_length = 128;
  octavo::Index micro_batches = 1;
  double validation_fraction = 0.1;
  octavo::Index validation_batches = 16;

  octavo::Index steps = 500;
  std::chrono::steady_clock::time_point start_time = std::chrono::steady_clock::now();
  double max_time = 0;  ///< seconds since `start_time`; 0: no limit
  double learning_rate = 1e-3;
  std::string schedule = "cosine";
  octavo::Index warmup = 20;
  double final_fraction = 0.1;
  double decay_fraction = 0.2;
  OptimizerOptions optimizer;
  double max_gradient_norm = 1.0;
  StateFormats formats;
  std::string offload = "none";
  std::uint64_t seed = 1;
  octavo::Index max_skipped = 10;
  std::string on_spike = "off";
  octavo::SpikeOptions spikes;

  std::string out;
  bool verbose = false;
  bool no_out = false;
  std::string save_hf;
  std::string save_adapters;
  octavo::Index log_every = 1;
  octavo::Index evaluate_every = 100;
  octavo::Index operands_every = 50;
  octavo::Index hash_every = 0;
  octavo::Index sample = 200;
  std::string hellaswag;  ///< measured at each evaluation; empty: none
  octavo::Index questions = 1000;
  bool samples_each = false;  ///< at each evaluation
  double temperature = 0.8;
  std::string timeline;
  octavo::Index timeline_steps = 3;

  octavo::Index checkpoint_every = 0;
  octavo::CheckpointsToKeep keep;
  std::string restored_save_flags;  ///< flags among these that a resumed run takes from config.toml
  std::string save_flags_warning;   ///< why flags of the earlier run may be lost; empty if none are
  std::string resume;
  bool convert = false;
  bool list_checkpoints = false;
  std::string export_hf;

  octavo::Index replay_step = 0;  ///< 0 trains the run
  octavo::Index replays = 2;
};

/// Throws if the format of --reduce is not compiled.
/// @throws ConfigError  with the command that builds it
inline void require_reduction(const CLI::App& app, const Options& options) {
  octavo::require<octavo::ConfigError>(
      detail::is_among(reductions, options.reduce), "--reduce ", options.reduce,
      " is not compiled in, only: ", programs::joined(reductions), "; ",
      detail::build_again(app, options.device, detail::build_options(app, options)));
}

/// Throws if --check-replicas is used with weights that are sharded.
/// @throws ConfigError  with advice
inline void require_replicas(const Options& options) {
  octavo::require<octavo::ConfigError>(
      options.check_replicas == 0 || options.zero != 3 || options.ranks == 1, "--check-replicas ",
      options.check_replicas, " with --zero ", options.zero,
      ": no weights are replicated; pass --check-replicas 0, or --zero 1 or 2");
}

/// Returns the request for the training session.
/// @param resume_from  checkpoint to resume from; empty for a new run
/// @throws IoError     if a file of GEMM plans or a manifest cannot be read
inline SessionRequest session_request(const Options& options,
                                      const std::filesystem::path& resume_from = {}) {
  SessionRequest request;
  request.threads = options.threads;
  request.gpu = options.gpu;
  request.deterministic = options.deterministic;
  if (!options.gemm_plans.empty()) {
    request.gemm_plans = octavo::load_gemm_plans(options.gemm_plans);
    request.options.gemm_choice = octavo::GemmChoice::rehearsed;
  }
  if (!resume_from.empty()) {
    // The checkpoint's plans override the file's, which other runs may have changed since: results
    // are bitwise identical only with the same plans.
    const std::string saved = octavo::detail::read_manifest(resume_from).gemm_plans;
    const std::string place = (resume_from / octavo::detail::manifest_name).string();
    request.gemm_plans = octavo::merged_gemm_plans(std::move(request.gemm_plans),
                                                   octavo::read_gemm_plans(saved, place));
  }
  request.formats = options.formats;
  octavo::SessionOptions& session = request.options;
  session.batch = {options.batch, options.sequence_length, options.most_documents};
  session.micro_batches = options.micro_batches;
  session.model.recompute = programs::recompute_named(options.recompute);
  session.model.weight_copies = programs::weight_copies_named(options.weight_copies);
  session.model.head_chunk = options.head_chunk;
  if (options.lora != 0) {
    session.model.lora = options.adapters;
    session.model.lora.rank = options.lora;
    octavo::set_lora_targets(session.model.lora, programs::lora_targets(options.lora_targets));
  }
  session.optimizer = optimizer_settings(options.optimizer, options.formats);
  session.offload = programs::offload_named(options.offload);
  session.max_gradient_norm = static_cast<float>(options.max_gradient_norm);
  session.seed = options.seed;
  session.check_replicas = options.check_replicas;
  session.sharding.zero = static_cast<octavo::Zero>(options.zero);
  request.gathers_fp8 = options.gather == "fp8";
  request.reduce = options.reduce;
  request.only_nccl = options.exchange == "nccl";
  session.sharding.reduce_each_micro_batch = options.deterministic;
  return request;
}

/// Returns the settings of spike detection.
inline octavo::SpikeOptions spike_options(const Options& options) {
  const auto& names = octavo::on_spike_names;
  octavo::SpikeOptions spikes = options.spikes;
  spikes.action =
      static_cast<octavo::OnSpike>(std::ranges::find(names, options.on_spike) - names.begin());
  return spikes;
}

/// Returns the learning-rate schedule.
inline octavo::Schedule schedule(const Options& options) {
  const auto* kind =
      std::find(octavo::schedule_names.begin(), octavo::schedule_names.end(), options.schedule);
  return {.kind = static_cast<octavo::ScheduleKind>(kind - octavo::schedule_names.begin()),
          .learning_rate = options.learning_rate,
          .final_fraction = options.final_fraction,
          .warmup_steps = options.warmup,
          .steps = options.steps,
          .decay_fraction = options.decay_fraction};
}

/// The end of a message about a missing flag: a resumed run can also read it from its config.toml.
inline const char* or_configuration(const Options& options) {
  return options.resume.empty() ? ""
                                : ", or pass --config RUN/config.toml with all flags of the run";
}

/// Returns the time at which --max-time ends the run.
inline std::chrono::steady_clock::time_point end_time(const Options& options) {
  using Clock = std::chrono::steady_clock;
  if (options.max_time == 0) return Clock::time_point::max();
  return options.start_time + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(options.max_time));
}

/// Returns the options of the training run.
inline octavo::RunOptions run_options(const Options& options) {
  return {.schedule = schedule(options),
          .evaluate_every = options.evaluate_every,
          .operands_every = options.operands_every,
          .max_skipped = options.max_skipped,
          .hash_every = options.hash_every,
          .spikes = spike_options(options),
          .end_time = end_time(options)};
}

}  // namespace trainer
