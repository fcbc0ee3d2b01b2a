// The declarations of the trainers' flags.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flag_group.hpp>
#include <common/flags.hpp>
#include <common/flags_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <memory>
#include <string>
#include <vector>

namespace trainer {

inline constexpr const char* output_group = "Output";

/// Declares the flags of the model's memory and computation.
inline void declare_computation(CLI::App& app, Options& options) {
  using namespace programs;
  const FlagGroup group(app, model_group);
  group
      .add("--recompute", options.recompute,
           "activations that the backward recomputes: " + joined(recompute_names))
      ->check(one_of(recompute_names));
  group
      .add("--weight-copies", options.weight_copies,
           "quantised copies of the weights: " + joined(weight_copies_names) +
               " for each GEMM, which saves 2 bytes per parameter")
      ->check(one_of(weight_copies_names));
  group.add_switch("--deterministic", options.deterministic,
                   "bitwise reproducible results on the cuda device, at some cost in speed; the "
                   "cpu device is always reproducible");
  group.add_without_default(
      "--gemm-plans", options.gemm_plans,
      "file of GEMM algorithms for the cuda device; missing ones are chosen in a rehearsal and "
      "added; without it, a resumed run uses those of its checkpoint, and any other run uses "
      "heuristics");
  group
      .add("--head-chunk", options.head_chunk,
           "number of tokens whose logits are in memory at once; 0 chooses automatically")
      ->check(non_negative_integer());
}

inline void declare_lora(CLI::App& app, Options& options) {
  using namespace programs;
  const FlagGroup group(app, "LoRA (adapters for frozen layers)");
  group.add("--lora", options.lora, "adapter rank; only adapters are trained; 0 disables LoRA")
      ->check(non_negative_integer());
  group
      .add_without_default("--lora-alpha", options.adapters.alpha,
                           "adapters are scaled by alpha / rank; 16 by default")
      ->check(above_zero());
  group
      .add_without_default("--lora-targets", options.lora_targets,
                           "comma-separated layers that get an adapter: q_proj, k_proj, v_proj, "
                           "o_proj, gate_proj, up_proj, down_proj; all by default")
      ->delimiter(',');
  group.add_without_default(
      "--load-adapters", options.load_adapters,
      "PEFT folder with the initial adapters; rank, alpha and layers must match");
  group.add_without_default("--save-adapters", options.save_adapters,
                            "new folder for the trained adapters, in PEFT's format");
}

/// Declares the flags of exchanges between ranks.
inline void declare_exchanges(CLI::App& app, Options& options) {
  using namespace programs;
  declare_ranks(app, options);
  const FlagGroup group(app, ranks_group);
  declare_sharing(group, options, "; compiled: " + joined(reductions));
  group
      .add_without_default("--exchange", options.exchange,
                           "how GPUs of one host exchange weights and gradients: copies uses their "
                           "copy engines (default), nccl uses NCCL's kernels")
      ->check(one_of({"copies", "nccl"}));
  group
      .add("--check-replicas", options.check_replicas,
           "steps between comparisons of the replicated weights across ranks; 0 disables them")
      ->check(non_negative_integer());
}

/// Declares the flags of batches.
inline void declare_batches(CLI::App& app, Options& options) {
  using namespace programs;
  const FlagGroup group(app, data_group);
  group.add("--batch", options.batch, "sequences per micro-batch and rank")->check(at_least_one());
  group.add("--seq-len", options.sequence_length, "tokens per sequence")->check(at_least_one());
  group
      .add("--micro-batches", options.micro_batches,
           "micro-batches per step and rank (gradient accumulation)")
      ->check(at_least_one());
  group
      .add("--validation-fraction", options.validation_fraction,
           "fraction of the data, at its end, that is kept for validation")
      ->check(share_above_zero());
  group
      .add("--validation-batches", options.validation_batches,
           "maximum number of batches per evaluation")
      ->check(at_least_one());
}

/// Declares the flags of the run's length and its learning rate.
inline void declare_schedule(const programs::FlagGroup& group, Options& options) {
  using namespace programs;
  group.add("--steps", options.steps, "number of optimizer steps")->check(at_least_one());
  group
      .add("--max-time", options.max_time,
           "maximum time of the run, such as 90s or 11.5h, after which it stops as after SIGTERM; "
           "0: no limit")
      ->transform(seconds());
  group.add("--learning-rate", options.learning_rate, "learning rate at the end of the warm-up")
      ->check(above_zero());
  group
      .add("--schedule", options.schedule,
           "learning-rate schedule: cosine, linear, constant, wsd (warm-up, stable, decay)")
      ->check(one_of({octavo::schedule_names.begin(), octavo::schedule_names.end()}));
  group.add("--warmup", options.warmup, "number of warm-up steps")->check(non_negative_integer());
  group
      .add("--final-fraction", options.final_fraction,
           "learning rate at the last step, as a fraction of --learning-rate")
      ->check(share());
  group
      .add("--decay-fraction", options.decay_fraction,
           "fraction of the steps, at the end of the run, in which wsd decays")
      ->check(share());
}

/// Declares the flags of the optimizer's state.
inline void declare_state(const programs::FlagGroup& group, Options& options) {
  using namespace programs;
  group
      .add("--master-weights", options.formats.master_weights,
           "master-weight format: fp32; bf16, which keeps no separate copy and rounds the BF16 "
           "weights stochastically; auto: fp32 if it fits in GPU memory")
      ->check(one_of(master_choices));
  group
      .add("--moments", options.formats.moments,
           "moment format: fp32; bf16 or 8bit, rounded stochastically; auto: fp32 if it fits in "
           "GPU memory, else bf16")
      ->check(one_of(moment_choices));
  group
      .add("--offload", options.offload,
           "data kept in host memory, with bitwise identical results: none; optimizer: master "
           "weights and moments; activations: those that --recompute block recomputes; both")
      ->check(one_of(offload_names));
}

/// Declares the flags about skipped steps and spikes.
inline void declare_spikes(const programs::FlagGroup& group, Options& options) {
  using namespace programs;
  group
      .add("--max-skipped", options.max_skipped,
           "number of consecutive skipped steps that stops the run with exit code 3")
      ->check(at_least_one());
  static const std::vector<std::string> on_spike_choices(octavo::on_spike_names.begin(),
                                                         octavo::on_spike_names.end());
  group
      .add("--on-spike", options.on_spike,
           "action when the loss or gradient norm is far above that of earlier steps: " +
               joined(on_spike_choices) +
               "; stop ends with exit code 5, rollback restores the last checkpoint")
      ->check(one_of(on_spike_choices));
  group
      .add("--spike-threshold", options.spikes.threshold,
           "standard deviations above the median at which a step is a spike")
      ->check(above_zero());
  group
      .add("--spike-window", options.spikes.window,
           "number of preceding steps that the median covers")
      ->check(at_least_two());
  group
      .add("--max-rollbacks", options.spikes.max_rollbacks,
           "maximum number of rollbacks with --on-spike rollback; the next spike stops the run")
      ->check(at_least_one());
}

/// Declares the flags of training.
inline void declare_training(CLI::App& app, Options& options) {
  using namespace programs;
  const FlagGroup group(app, "Training");
  declare_schedule(group, options);
  declare_optimizer(group, options.optimizer, options.formats);
  group
      .add("--max-gradient-norm", options.max_gradient_norm,
           "maximum gradient norm (0 disables clipping)")
      ->check(non_negative_number());
  declare_state(group, options);
  group.add("--seed", options.seed, "random seed for weights, batches and samples")
      ->check(non_negative_integer());
  declare_spikes(group, options);
}

/// Declares the flags of samples and questions at evaluations.
inline void declare_samples(const programs::FlagGroup& group, Options& options) {
  using namespace programs;
  group.add("--sample", options.sample, "number of tokens to generate at the end")
      ->check(non_negative_integer());
  group.add_switch("--sample-each", options.samples_each,
                   "also generate a sample of --sample tokens at each evaluation");
  group.add_without_default("--hellaswag", options.hellaswag,
                            "HellaSwag file to measure at each evaluation: llm.c's format, or JSON "
                            "Lines in a file named .jsonl");
  group
      .add_without_default("--hellaswag-questions", options.questions,
                           "maximum number of questions of --hellaswag, from its beginning (1000)")
      ->check(at_least_one());
  group
      .add("--temperature", options.temperature,
           "sampling temperature; 0 chooses the most likely token")
      ->check(non_negative_number());
}

/// Declares the flags of printed lines and of files.
inline void declare_output(CLI::App& app, Options& options) {
  using namespace programs;
  const FlagGroup group(app, output_group);
  group.add("--out", options.out,
            "folder for config.toml, metrics.jsonl and checkpoints; empty: "
            "runs/DATE-TIME-MODEL-PRECISION");
  group.add_switch("--verbose", options.verbose,
                   "print all flags, all kinds of memory and all GEMMs");
  group.add_switch("--no-out", options.no_out, "create no folder for the run");
  group.add("--save-hf", options.save_hf,
            "new folder for the trained weights, in the format of Hugging Face's transformers; "
            "empty: none");
  group.add("--log-every", options.log_every, "steps between printed lines")->check(at_least_one());
  group
      .add("--evaluate-every", options.evaluate_every,
           "steps between evaluations; the first is before step 1; 0 evaluates only at the end")
      ->check(non_negative_integer());
  group
      .add("--operands-every", options.operands_every,
           "steps between records of every operand's scale")
      ->check(at_least_one());
  group
      .add("--hash-every", options.hash_every,
           "steps between records of a hash of all trained weights, for comparing runs; 0 "
           "disables them")
      ->check(non_negative_integer());
  declare_samples(group, options);
  group.add("--timeline", options.timeline,
            "file for a trace of the steps, for ui.perfetto.dev and chrome://tracing; empty: none");
  group
      .add("--timeline-steps", options.timeline_steps,
           "number of steps in the trace, starting with the second")
      ->check(at_least_one());
}

/// Declares the flags about checkpoints.
inline void declare_checkpoints(CLI::App& app, Options& options) {
  using namespace programs;
  const FlagGroup group(app, "Checkpoints");
  group
      .add("--checkpoint-every", options.checkpoint_every,
           "steps between checkpoints; the run also saves one at the end and after a signal; 0 "
           "disables checkpoints")
      ->check(non_negative_integer());
  group.add("--keep-last", options.keep.last, "number of newest checkpoints to keep, at least 2")
      ->check(at_least_two());
  group
      .add("--keep-every", options.keep.every,
           "also keep checkpoints whose step is a multiple of this number; 0 disables this")
      ->check(non_negative_integer());
  group.add_switch("--keep-best", options.keep.best,
                   "also keep the checkpoint with the lowest validation loss");
  group.add_without_default(
      "--resume", options.resume,
      "resume from a checkpoint: latest, the newest in --out; auto, the same, or start a new run "
      "if there is none; or a path");
  group
      .add_switch("--convert", options.convert,
                  "with --resume, convert a checkpoint with a different --precision, "
                  "--master-weights or --moments")
      ->configurable(false);
  group
      .add_switch("--list-checkpoints", options.list_checkpoints,
                  "print a table of the checkpoints in --out and exit")
      ->configurable(false);
  group
      .add_without_default("--export-hf", options.export_hf,
                           "new folder for the weights of the checkpoint named by --resume, in the "
                           "format of Hugging Face's transformers; exits without training")
      ->configurable(false);
  group
      .add_without_default("--replay-step", options.replay_step,
                           "repeat this step of the run in --out several times from the same "
                           "state, and report whether the results are bitwise identical; writes "
                           "nothing")
      ->configurable(false)
      ->check(at_least_one());
  group
      .add_without_default("--replays", options.replays, "number of repetitions for --replay-step")
      ->configurable(false)
      ->check(at_least_two());
}

/// Declares all flags on `app`; their values are written to `options`.
/// @param declare_data  declares the flags that name the data
inline void declare(CLI::App& app, Options& options, void (*declare_data)(CLI::App&, Options&)) {
  declare_model(app, options);
  declare_computation(app, options);
  declare_lora(app, options);
  declare_exchanges(app, options);
  declare_data(app, options);
  declare_batches(app, options);
  declare_training(app, options);
  declare_output(app, options);
  declare_checkpoints(app, options);
  app.set_config("--config", "", "TOML file that sets any of these flags")
      ->group(output_group)
      ->check(programs::no_named_pipe());
  app.config_formatter(std::make_shared<programs::FlagsFile>(app));
}

/// Chooses between --out and --no-out: the command line overrides a file.
inline void choose_folder(CLI::App& app, Options& options) {
  const auto in_command = [&](const char* flag) {
    return app.count(flag) != 0 && detail::place_of(app, flag).empty();
  };
  if (options.no_out && in_command("--no-out") && !in_command("--out")) {
    app.get_option("--out")->clear();
    options.out.clear();
  } else if (options.no_out && in_command("--out") && !in_command("--no-out")) {
    app.get_option("--no-out")->clear();
    options.no_out = false;
  }
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
  programs::require_adapters_supported(options);
  // A run's config.toml keeps the flag after the run has resumed, because a replay may need it.
  const bool may_begin = options.resume.empty() || options.resume == "auto";
  octavo::require<octavo::ConfigError>(
      may_begin || options.replay_step != 0 || app.count("--load-adapters") == 0 ||
          !detail::place_of(app, "--load-adapters").empty(),
      "--load-adapters sets the adapters with which a run begins, but --resume ", options.resume,
      " continues with those of its checkpoint; leave one of them out");
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
  require_device_flags(app, options);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gemm-plans", "--exchange"},
                           [&](const char* flag) { return detail::place_of(app, flag); });
}

}  // namespace trainer
