// The trainer's flags.
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
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

inline constexpr const char* data_group = "Data";

/// Options for training on chats.
struct ChatOptions {
  std::vector<std::string> files;
  std::vector<std::string> validation_files;
  std::string chat_template;
  std::string tokenizer;  ///< empty: tokenizer.json in the folder of --model hf:FOLDER
  std::string too_long = "cut";
  bool last_turn_only = false;
  octavo::Index most_in_sequence = 32;
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
  double temperature = 0.8;
  std::string timeline;
  octavo::Index timeline_steps = 3;

  octavo::Index checkpoint_every = 0;
  octavo::CheckpointsToKeep keep;
  std::string saved_as_before;  ///< flags among these that a resumed run keeps from before
  std::string saves_in_doubt;   ///< why the run may have had more of them; empty if it had none
  std::string resume;
  bool convert = false;
  bool list_checkpoints = false;
  std::string export_hf;

  octavo::Index replay_step = 0;  ///< 0 trains the run
  octavo::Index replays = 2;
};

/// Declares all flags on `app`; their values are written to `options`.
/// @param declare_data  declares the flags that name the data
inline void declare(CLI::App& app, Options& options, void (*declare_data)(CLI::App&, Options&)) {
  using namespace programs;
  const auto add = [&app](const std::string& name, auto& value, const std::string& text,
                          const std::string& group) {
    return app.add_option(name, value, text)->group(group)->capture_default_str();
  };
  declare_model(app, options);
  const std::string model = model_group;
  add("--recompute", options.recompute,
      "activations that the backward recomputes: " + joined(recompute_names), model)
      ->check(one_of(recompute_names));
  add("--weight-copies", options.weight_copies,
      "quantised copies of the weights: " + joined(weight_copies_names) +
          " for each GEMM, which saves 2 bytes per parameter",
      model)
      ->check(one_of(weight_copies_names));
  app.add_flag("--deterministic", options.deterministic,
               "bitwise reproducible results on the cuda device, at some cost in speed; the cpu "
               "device is always reproducible")
      ->group(model);
  // Without a default: config.toml would contain it, and the other device rejects the flag.
  app.add_option(
         "--gemm-plans", options.gemm_plans,
         "file of GEMM algorithms for the cuda device; missing ones are chosen in a rehearsal and "
         "added; without it, a resumed run uses those of its checkpoint, and any other run uses "
         "heuristics")
      ->group(model);
  add("--head-chunk", options.head_chunk,
      "number of tokens whose logits are in memory at once; 0 chooses automatically", model)
      ->check(not_negative_whole());

  const std::string lora = "LoRA (adapters for frozen layers)";
  add("--lora", options.lora, "adapter rank; only adapters are trained; 0 disables LoRA", lora)
      ->check(not_negative_whole());
  // Without defaults: config.toml could not distinguish them from choices.
  app.add_option("--lora-alpha", options.adapters.alpha,
                 "adapters are scaled by alpha / rank; 16 by default")
      ->group(lora)
      ->check(above_zero());
  app.add_option("--lora-targets", options.lora_targets,
                 "comma-separated layers that get an adapter: q_proj, k_proj, v_proj, o_proj, "
                 "gate_proj, up_proj, down_proj; all by default")
      ->group(lora)
      ->delimiter(',');
  app.add_option("--load-adapters", options.load_adapters,
                 "PEFT folder with the initial adapters; rank, alpha and layers must match")
      ->group(lora);
  app.add_option("--save-adapters", options.save_adapters,
                 "new folder for the trained adapters, in PEFT's format")
      ->group(lora);

  const std::string ranks = ranks_group;
  declare_ranks(app, options);
  declare_sharing(app, options, ranks, "; compiled: " + joined(reductions));
  app.add_option("--exchange", options.exchange,
                 "how GPUs of one host exchange weights and gradients: copies uses their copy "
                 "engines (default), nccl uses NCCL's kernels")
      ->group(ranks)
      ->check(one_of({"copies", "nccl"}));
  add("--check-replicas", options.check_replicas,
      "steps between comparisons of the replicated weights across ranks; 0 disables them", ranks)
      ->check(not_negative_whole());

  const std::string data = data_group;
  declare_data(app, options);
  add("--batch", options.batch, "sequences per micro-batch and rank", data)->check(at_least_one());
  add("--seq-len", options.sequence_length, "tokens per sequence", data)->check(at_least_one());
  add("--micro-batches", options.micro_batches,
      "micro-batches per step and rank (gradient accumulation)", data)
      ->check(at_least_one());
  add("--validation-fraction", options.validation_fraction,
      "fraction of the data, at its end, that is kept for validation", data)
      ->check(share_above_zero());
  add("--validation-batches", options.validation_batches,
      "maximum number of batches per evaluation", data)
      ->check(at_least_one());

  const std::string training = "Training";
  add("--steps", options.steps, "number of optimizer steps", training)->check(at_least_one());
  add("--max-time", options.max_time,
      "time after the start at which the run stops as after SIGTERM, such as 90s or 11.5h; 0: none",
      training)
      ->transform(seconds());
  add("--learning-rate", options.learning_rate, "learning rate at the end of the warm-up", training)
      ->check(above_zero());
  add("--schedule", options.schedule,
      "learning-rate schedule: cosine, linear, constant, wsd (warm-up, stable, decay)", training)
      ->check(one_of({octavo::schedule_names.begin(), octavo::schedule_names.end()}));
  add("--warmup", options.warmup, "number of warm-up steps", training)->check(not_negative_whole());
  add("--final-fraction", options.final_fraction,
      "learning rate at the last step, as a fraction of --learning-rate", training)
      ->check(share());
  add("--decay-fraction", options.decay_fraction, "fraction of the run in which wsd decays",
      training)
      ->check(share());
  declare_optimizer(app, add, options.optimizer, options.formats, training);
  add("--max-gradient-norm", options.max_gradient_norm,
      "maximum gradient norm (0 disables clipping)", training)
      ->check(not_negative());
  add("--master-weights", options.formats.master_weights,
      "master-weight format: fp32; bf16, which keeps no separate copy and rounds the BF16 weights "
      "stochastically; auto: fp32 if it fits in GPU memory",
      training)
      ->check(one_of(master_choices));
  add("--moments", options.formats.moments,
      "moment format: fp32; bf16 or 8bit, rounded stochastically; auto: fp32 if it fits in GPU "
      "memory, else bf16",
      training)
      ->check(one_of(moment_choices));
  add("--offload", options.offload,
      "state kept in host memory: none; optimizer: master weights and moments, with bitwise "
      "identical results",
      training)
      ->check(one_of(offload_names));
  add("--seed", options.seed, "random seed for weights, batches and samples", training)
      ->check(not_negative_whole());
  add("--max-skipped", options.max_skipped,
      "number of consecutive skipped steps that stops the run with exit code 3", training)
      ->check(at_least_one());
  static const std::vector<std::string> on_spike_choices(octavo::on_spike_names.begin(),
                                                         octavo::on_spike_names.end());
  add("--on-spike", options.on_spike,
      "action when the loss or gradient norm is far above that of earlier steps: " +
          joined(on_spike_choices) +
          "; stop ends with exit code 5, rollback restores the last checkpoint",
      training)
      ->check(one_of(on_spike_choices));
  add("--spike-threshold", options.spikes.threshold,
      "standard deviations above the median at which a step is a spike", training)
      ->check(above_zero());
  add("--spike-window", options.spikes.window, "number of preceding steps that the median covers",
      training)
      ->check(at_least_two());
  add("--max-rollbacks", options.spikes.max_rollbacks,
      "maximum number of rollbacks with --on-spike rollback; the next spike stops the run",
      training)
      ->check(at_least_one());

  const std::string output = "Output";
  add("--out", options.out,
      "folder for config.toml, metrics.jsonl and checkpoints; empty: "
      "runs/DATE-TIME-MODEL-PRECISION",
      output);
  app.add_flag("--verbose", options.verbose, "print all flags, all kinds of memory and all GEMMs")
      ->group(output);
  app.add_flag("--no-out", options.no_out, "write no files")->group(output);
  add("--save-hf", options.save_hf,
      "new folder for the trained weights, in the format of Hugging Face's transformers; empty: "
      "none",
      output);
  add("--log-every", options.log_every, "steps between printed lines", output)
      ->check(at_least_one());
  add("--evaluate-every", options.evaluate_every,
      "steps between evaluations; the first is before step 1; 0 evaluates only at the end", output)
      ->check(not_negative_whole());
  add("--operands-every", options.operands_every, "steps between records of every operand's scale",
      output)
      ->check(at_least_one());
  add("--hash-every", options.hash_every,
      "steps between records of a hash of all trained weights, for comparing runs; 0 disables "
      "them",
      output)
      ->check(not_negative_whole());
  add("--sample", options.sample, "number of tokens to generate at the end", output)
      ->check(not_negative_whole());
  add("--temperature", options.temperature, "sampling temperature; 0 chooses the most likely token",
      output)
      ->check(not_negative());
  add("--timeline", options.timeline,
      "file for a trace of the steps, for ui.perfetto.dev and chrome://tracing; empty: none",
      output);
  add("--timeline-steps", options.timeline_steps,
      "number of steps in the trace, starting with the second", output)
      ->check(at_least_one());

  const std::string checkpoints = "Checkpoints";
  add("--checkpoint-every", options.checkpoint_every,
      "steps between checkpoints; the run also saves one at the end and after a signal; 0 disables "
      "checkpoints",
      checkpoints)
      ->check(not_negative_whole());
  add("--keep-last", options.keep.last, "number of newest checkpoints to keep, at least 2",
      checkpoints)
      ->check(at_least_two());
  add("--keep-every", options.keep.every,
      "also keep checkpoints whose step is a multiple of this number; 0 disables this", checkpoints)
      ->check(not_negative_whole());
  app.add_flag("--keep-best", options.keep.best,
               "also keep the checkpoint with the lowest validation loss")
      ->group(checkpoints);
  // A run's config.toml contains it only if it was set.
  app.add_option("--resume", options.resume,
                 "resume from a checkpoint: latest, the newest in --out; auto, the same, or start "
                 "a new run if there is none; or a path")
      ->group(checkpoints);
  app.add_flag("--convert", options.convert,
               "with --resume, convert a checkpoint with a different --precision, "
               "--master-weights or --moments")
      ->group(checkpoints)
      ->configurable(false);
  app.add_flag("--list-checkpoints", options.list_checkpoints,
               "print a table of the checkpoints in --out and exit")
      ->group(checkpoints)
      ->configurable(false);
  app.add_option("--export-hf", options.export_hf,
                 "new folder for the weights of the checkpoint named by --resume, in the format of "
                 "Hugging Face's transformers; exits without training")
      ->group(checkpoints)
      ->configurable(false);
  app.add_option("--replay-step", options.replay_step,
                 "repeat this step of the run in --out several times from the same state, and "
                 "report whether the results are bitwise identical; writes nothing")
      ->group(checkpoints)
      ->configurable(false)
      ->check(at_least_one());
  app.add_option("--replays", options.replays, "number of repetitions for --replay-step")
      ->group(checkpoints)
      ->configurable(false)
      ->check(at_least_two());
  app.set_config("--config", "", "TOML file that sets any of these flags")->group(output);
  app.config_formatter(std::make_shared<FlagsFile>(app));
}

/// Chooses between --epochs and --steps: the command line overrides a file, which may set both.
/// @throws ConfigError  if the command line has both
inline void choose_length(const CLI::App& app, Options& options) {
  if (options.chats.epochs == 0) return;
  const auto in_command = [&](const char* flag) {
    return app.count(flag) != 0 && detail::place_of(app, flag).empty();
  };
  if (!in_command("--steps")) return;
  octavo::require<octavo::ConfigError>(
      !in_command("--epochs"),
      "--epochs and --steps both set the length of the run; pass only one of them");
  options.chats.epochs = 0;
}

/// Throws if flags that are valid alone contradict each other.
/// @throws ConfigError  with advice
inline void require_consistent(const CLI::App& app, const Options& options) {
  octavo::require<octavo::ConfigError>(
      options.on_spike != "rollback" || options.checkpoint_every != 0,
      "--on-spike rollback needs checkpoints; also pass --checkpoint-every");
  octavo::require<octavo::ConfigError>(
      options.spikes.window <= octavo::RunTotals::most_recent, "--spike-window must be at most ",
      octavo::RunTotals::most_recent, ", but is ", options.spikes.window);
  octavo::require<octavo::ConfigError>(options.out.empty() || !options.no_out,
                                       "--out and --no-out exclude each other; pass only one");
  for (const char* flag :
       {"--lora-alpha", "--lora-targets", "--load-adapters", "--save-adapters"}) {
    octavo::require<octavo::ConfigError>(
        options.lora != 0 || app.count(flag) == 0, detail::place_of(app, flag), flag,
        " needs --lora; also pass the adapter rank, such as --lora 16");
  }
  require_optimizer(app, options.formats, options.lora != 0,
                    [&](const char* flag) { return detail::place_of(app, flag); });
  programs::require_adapters_can_be(options);
  // A resumed run reads them from its checkpoint.
  if (!options.load_adapters.empty() && options.resume.empty()) {
    programs::require_folder("--load-adapters " + options.load_adapters, options.load_adapters,
                             "pass a folder written by --save-adapters or PEFT");
  }
  octavo::require<octavo::ConfigError>(options.replay_step <= options.steps,
                                       "--replay-step must be one of the run's ", options.steps,
                                       " steps, but is ", options.replay_step);
  octavo::require<octavo::ConfigError>(
      options.replay_step == 0 || !options.out.empty() || !options.resume.empty(),
      "--replay-step needs the run's folder; pass --out");
  octavo::require<octavo::ConfigError>(options.replay_step != 0 || app.count("--replays") == 0,
                                       "--replays needs --replay-step; pass it as well");
  require_device_flags(app, options);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gemm-plans", "--exchange"},
                           [&](const char* flag) { return detail::place_of(app, flag); });
}

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
  session.offload.optimizer = options.offload == "optimizer";
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
