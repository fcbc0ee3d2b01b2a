// The trainer's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flags.hpp>
#include <common/flags_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <memory>
#include <string>
#include <vector>

namespace trainer {

/// Declares the flags about checkpoints.
inline void declare_checkpoints(CLI::App& app, Options& options) {
  using namespace programs;
  const std::string checkpoints = "Checkpoints";
  const auto add = [&](const std::string& name, auto& value, const std::string& text,
                       const std::string& group) {
    return app.add_option(name, value, text)->group(group)->capture_default_str();
  };
  add("--checkpoint-every", options.checkpoint_every,
      "steps between checkpoints; the run also saves one at the end and after a signal; 0 disables "
      "checkpoints",
      checkpoints)
      ->check(non_negative_integer());
  add("--keep-last", options.keep.last, "number of newest checkpoints to keep, at least 2",
      checkpoints)
      ->check(at_least_two());
  add("--keep-every", options.keep.every,
      "also keep checkpoints whose step is a multiple of this number; 0 disables this", checkpoints)
      ->check(non_negative_integer());
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
}

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
  // No default is declared, because config.toml would contain it, and the other device rejects the
  // flag.
  app.add_option(
         "--gemm-plans", options.gemm_plans,
         "file of GEMM algorithms for the cuda device; missing ones are chosen in a rehearsal and "
         "added; without it, a resumed run uses those of its checkpoint, and any other run uses "
         "heuristics")
      ->group(model);
  add("--head-chunk", options.head_chunk,
      "number of tokens whose logits are in memory at once; 0 chooses automatically", model)
      ->check(non_negative_integer());

  const std::string lora = "LoRA (adapters for frozen layers)";
  add("--lora", options.lora, "adapter rank; only adapters are trained; 0 disables LoRA", lora)
      ->check(non_negative_integer());
  // No defaults are declared, because config.toml could not distinguish them from choices.
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
      ->check(non_negative_integer());

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
      "maximum time of the run, such as 90s or 11.5h, after which it stops as after SIGTERM; 0: no "
      "limit",
      training)
      ->transform(seconds());
  add("--learning-rate", options.learning_rate, "learning rate at the end of the warm-up", training)
      ->check(above_zero());
  add("--schedule", options.schedule,
      "learning-rate schedule: cosine, linear, constant, wsd (warm-up, stable, decay)", training)
      ->check(one_of({octavo::schedule_names.begin(), octavo::schedule_names.end()}));
  add("--warmup", options.warmup, "number of warm-up steps", training)
      ->check(non_negative_integer());
  add("--final-fraction", options.final_fraction,
      "learning rate at the last step, as a fraction of --learning-rate", training)
      ->check(share());
  add("--decay-fraction", options.decay_fraction,
      "fraction of the steps, at the end of the run, in which wsd decays", training)
      ->check(share());
  declare_optimizer(app, add, options.optimizer, options.formats, training);
  add("--max-gradient-norm", options.max_gradient_norm,
      "maximum gradient norm (0 disables clipping)", training)
      ->check(non_negative_number());
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
      "data kept in host memory, with bitwise identical results: none; optimizer: master weights "
      "and moments; activations: those that --recompute block recomputes; both",
      training)
      ->check(one_of(offload_names));
  add("--seed", options.seed, "random seed for weights, batches and samples", training)
      ->check(non_negative_integer());
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
  app.add_flag("--no-out", options.no_out, "create no folder for the run")->group(output);
  add("--save-hf", options.save_hf,
      "new folder for the trained weights, in the format of Hugging Face's transformers; empty: "
      "none",
      output);
  add("--log-every", options.log_every, "steps between printed lines", output)
      ->check(at_least_one());
  add("--evaluate-every", options.evaluate_every,
      "steps between evaluations; the first is before step 1; 0 evaluates only at the end", output)
      ->check(non_negative_integer());
  add("--operands-every", options.operands_every, "steps between records of every operand's scale",
      output)
      ->check(at_least_one());
  add("--hash-every", options.hash_every,
      "steps between records of a hash of all trained weights, for comparing runs; 0 disables "
      "them",
      output)
      ->check(non_negative_integer());
  add("--sample", options.sample, "number of tokens to generate at the end", output)
      ->check(non_negative_integer());
  app.add_flag("--sample-each", options.samples_each,
               "also generate a sample of --sample tokens at each evaluation")
      ->group(output);
  app.add_option("--hellaswag", options.hellaswag,
                 "HellaSwag file to measure at each evaluation: llm.c's format, or JSON Lines in a "
                 "file named .jsonl")
      ->group(output);
  app.add_option("--hellaswag-questions", options.questions,
                 "maximum number of questions of --hellaswag, from its beginning (1000)")
      ->group(output)
      ->check(at_least_one());
  add("--temperature", options.temperature, "sampling temperature; 0 chooses the most likely token",
      output)
      ->check(non_negative_number());
  add("--timeline", options.timeline,
      "file for a trace of the steps, for ui.perfetto.dev and chrome://tracing; empty: none",
      output);
  add("--timeline-steps", options.timeline_steps,
      "number of steps in the trace, starting with the second", output)
      ->check(at_least_one());

  declare_checkpoints(app, options);
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
  programs::require_adapters_supported(options);
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
  require_device_flags(app, options);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gemm-plans", "--exchange"},
                           [&](const char* flag) { return detail::place_of(app, flag); });
}

}  // namespace trainer
