// The trainer's flags.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flags_file.hpp>
#include <octavo/octavo.hpp>
#include <octavo/train/checkpoint_folder.hpp>
#include <octavo/train/gemm_plan_file.hpp>
#include <octavo/train/run_totals.hpp>
#include <octavo/train/spikes.hpp>
#include <octavo/train/training_run.hpp>
#include <train_llama/model_choice.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

inline constexpr const char* data_group = "Data";

/// The chats of a run that is trained on such.
struct ChatOptions {
  std::vector<std::string> files;
  std::vector<std::string> validation_files;
  std::string chat_template;
  std::string tokenizer;  ///< empty: that of the folder of --model hf:FOLDER
  std::string too_long = "cut";
  octavo::Index most_in_sequence = 32;
  octavo::Index epochs = 0;  ///< 0: as many as the steps take
};

/// Every choice of a run.
struct Options : ModelChoice {
  std::string recompute = "none";
  std::string weight_copies = "kept";
  bool deterministic = false;
  std::string gemm_plans;
  octavo::Index head_chunk = 0;
  octavo::LoraOptions adapters;  ///< their rank is `lora`
  std::vector<std::string> lora_targets{"all-linear"};
  std::string load_adapters;

  int ranks = 1;  ///< that a launcher started; groups of them where they share layers
  int zero = 1;
  std::string gather = "stored";
  std::string reduce = "stored";
  std::string exchange;  ///< empty: copies
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
  double learning_rate = 1e-3;
  std::string schedule = "cosine";
  octavo::Index warmup = 20;
  double final_fraction = 0.1;
  double decay_fraction = 0.2;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double max_gradient_norm = 1.0;
  StateFormats formats;
  std::string offload = "none";
  std::uint64_t seed = 1;
  octavo::Index max_skipped = 10;
  std::string on_spike = "off";
  octavo::SpikeOptions spikes;

  std::string out;
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
  std::string saved_as_before;  ///< flags of these that the run that goes on has from before
  std::string saves_in_doubt;   ///< why it may have had more of them; empty: it had not
  std::string resume;
  bool convert = false;
  bool list_checkpoints = false;
  std::string export_hf;

  octavo::Index replay_step = 0;  ///< 0: the run is trained
  octavo::Index replays = 2;
};

/// Declares every flag on `app`; values go to `options`.
/// @param declare_data  declares those that name the data
inline void declare(CLI::App& app, Options& options, void (*declare_data)(CLI::App&, Options&)) {
  using namespace programs;
  const auto add = [&app](const std::string& name, auto& value, const std::string& text,
                          const std::string& group) {
    return app.add_option(name, value, text)->group(group)->capture_default_str();
  };
  declare_model(app, options);
  const std::string model = model_group;
  add("--recompute", options.recompute, "what the backward makes again: " + joined(recompute_names),
      model)
      ->check(one_of(recompute_names));
  add("--weight-copies", options.weight_copies,
      "quantised copies of weights: " + joined(weight_copies_names) +
          " for each GEMM, which saves 2 bytes a parameter",
      model)
      ->check(one_of(weight_copies_names));
  app.add_flag("--deterministic", options.deterministic,
               "the cuda device gives the same bits in every run that gets the same --gemm-plans, "
               "at some cost of speed; the cpu device always does")
      ->group(model);
  // Without a default, which would stand in every run's config.toml and not fit the other device.
  app.add_option(
         "--gemm-plans", options.gemm_plans,
         "file of GEMM algorithms of the cuda device: those of a checkpoint that the run goes on "
         "from are taken, then those in it, and those that it lacks are chosen in a rehearsal and "
         "added; by heuristics unless said")
      ->group(model);
  add("--head-chunk", options.head_chunk, "tokens whose logits exist at once; 0: chosen", model)
      ->check(not_negative_whole());

  const std::string lora = "LoRA (adapters beside layers that stay as they are)";
  add("--lora", options.lora, "rank of adapters, and nothing else is trained; 0: there are none",
      lora)
      ->check(not_negative_whole());
  // Without defaults, which config.toml could not tell from choices.
  app.add_option("--lora-alpha", options.adapters.alpha,
                 "adapters count times this over the rank; 16 unless said")
      ->group(lora)
      ->check(above_zero());
  app.add_option("--lora-targets", options.lora_targets,
                 "layers that have one, with commas: q_proj, k_proj, v_proj, o_proj, gate_proj, "
                 "up_proj, down_proj; all unless said")
      ->group(lora)
      ->delimiter(',');
  app.add_option("--load-adapters", options.load_adapters,
                 "folder of PEFT that the run begins with, of the same rank, alpha and layers")
      ->group(lora);
  app.add_option("--save-adapters", options.save_adapters,
                 "new folder for the trained adapters, which PEFT opens")
      ->group(lora);

  const std::string ranks = ranks_group;
  declare_ranks(app, options);
  declare_sharing(app, options, ranks,
                  ". Those that the program was built with: " + joined(reductions));
  app.add_option("--exchange", options.exchange,
                 "how GPUs of one host send what is large: copies, by their copy engines, which is "
                 "the way unless said, or nccl, by NCCL's kernels")
      ->group(ranks)
      ->check(one_of({"copies", "nccl"}));
  add("--check-replicas", options.check_replicas,
      "steps between comparisons of the weights that all ranks hold; 0: never", ranks)
      ->check(not_negative_whole());

  const std::string data = data_group;
  declare_data(app, options);
  add("--batch", options.batch, "sequences in a micro-batch of a rank", data)
      ->check(at_least_one());
  add("--seq-len", options.sequence_length, "tokens in a sequence", data)->check(at_least_one());
  add("--micro-batches", options.micro_batches, "micro-batches in a step, of each rank", data)
      ->check(at_least_one());
  add("--validation-fraction", options.validation_fraction,
      "share of the data, at its end, that is kept for validation", data)
      ->check(share_above_zero());
  add("--validation-batches", options.validation_batches, "batches in an evaluation, at most", data)
      ->check(at_least_one());

  const std::string training = "Training";
  add("--steps", options.steps, "optimizer steps", training)->check(at_least_one());
  add("--learning-rate", options.learning_rate, "at the end of the warm-up", training)
      ->check(above_zero());
  add("--schedule", options.schedule, "cosine, linear, constant, wsd", training)
      ->check(one_of({octavo::schedule_names.begin(), octavo::schedule_names.end()}));
  add("--warmup", options.warmup, "steps in which the rate rises", training)
      ->check(not_negative_whole());
  add("--final-fraction", options.final_fraction, "of the learning rate, at the last step",
      training)
      ->check(share());
  add("--decay-fraction", options.decay_fraction, "of the run, in which wsd decays", training)
      ->check(share());
  add("--weight-decay", options.weight_decay, "of matrices", training)->check(not_negative());
  add("--beta1", options.beta1, "decay of the first moment", training)->check(share());
  add("--beta2", options.beta2, "decay of the second moment", training)->check(share());
  add("--epsilon", options.epsilon, "of AdamW", training)->check(above_zero());
  add("--max-gradient-norm", options.max_gradient_norm,
      "scale gradients down to this norm; 0 disables clipping", training)
      ->check(not_negative());
  add("--master-weights", options.formats.master_weights,
      "fp32; bf16: none beside the BF16 weights, which are rounded stochastically; auto: fp32 "
      "where "
      "the GPU has memory for it",
      training)
      ->check(one_of(master_choices));
  add("--moments", options.formats.moments,
      "fp32; bf16 or 8bit, rounded stochastically; auto: fp32 where the GPU has memory for it, "
      "else "
      "bf16",
      training)
      ->check(one_of(moment_choices));
  add("--offload", options.offload,
      "what lives in the host's memory: none; optimizer: masters and moments, which changes no bit",
      training)
      ->check(one_of(offload_names));
  add("--seed", options.seed, "of weights, batches and samples", training)
      ->check(not_negative_whole());
  add("--max-skipped", options.max_skipped,
      "skipped steps in a row after which the run stops with exit code 3", training)
      ->check(at_least_one());
  static const std::vector<std::string> on_spike_choices(octavo::on_spike_names.begin(),
                                                         octavo::on_spike_names.end());
  add("--on-spike", options.on_spike,
      "what is done about a step whose loss or gradient norm is far above those before: " +
          joined(on_spike_choices) +
          "; stop ends with exit code 5, rollback goes back to the last checkpoint",
      training)
      ->check(one_of(on_spike_choices));
  add("--spike-threshold", options.spikes.threshold,
      "standard deviations above the median from which on it is a spike", training)
      ->check(above_zero());
  add("--spike-window", options.spikes.window, "steps before it that the median is of", training)
      ->check(at_least_two());
  add("--max-rollbacks", options.spikes.max_rollbacks,
      "of --on-spike rollback: the spike behind them stops the run", training)
      ->check(at_least_one());

  const std::string output = "Output";
  add("--out", options.out,
      "folder for config.toml and metrics.jsonl; empty: runs/DATE-TIME-MODEL-PRECISION", output);
  app.add_flag("--no-out", options.no_out, "write no files")->group(output);
  add("--save-hf", options.save_hf,
      "new folder for the trained weights, as Hugging Face's transformers opens them; empty: none",
      output);
  add("--log-every", options.log_every, "steps between printed lines", output)
      ->check(at_least_one());
  add("--evaluate-every", options.evaluate_every, "steps between evaluations; 0: at the end only",
      output)
      ->check(not_negative_whole());
  add("--operands-every", options.operands_every, "steps between records of every operand's scale",
      output)
      ->check(at_least_one());
  add("--hash-every", options.hash_every,
      "steps between records of a hash of all weights that are trained, by which runs are "
      "compared; "
      "0: none",
      output)
      ->check(not_negative_whole());
  add("--sample", options.sample, "tokens to generate at the end", output)
      ->check(not_negative_whole());
  add("--temperature", options.temperature, "of the sample", output)->check(not_negative());
  add("--timeline", options.timeline,
      "file for chrome://tracing and ui.perfetto.dev: what steps spend their time on; empty: none",
      output);
  add("--timeline-steps", options.timeline_steps, "steps in it, from the second on", output)
      ->check(at_least_one());

  const std::string checkpoints = "Checkpoints";
  add("--checkpoint-every", options.checkpoint_every,
      "steps between checkpoints; there is one at the end and at a signal, too; 0: none at all",
      checkpoints)
      ->check(not_negative_whole());
  add("--keep-last", options.keep.last, "newest checkpoints that stay, at least 2", checkpoints)
      ->check(at_least_two());
  add("--keep-every", options.keep.every,
      "checkpoints of steps that this divides stay, too; 0: none", checkpoints)
      ->check(not_negative_whole());
  app.add_flag("--keep-best", options.keep.best,
               "the checkpoint with the smallest validation loss stays, too")
      ->group(checkpoints);
  // A run's config.toml has it only where it was given.
  app.add_option("--resume", options.resume,
                 "go on from a checkpoint: latest, that of --out; auto, likewise, or begin where "
                 "there is none; or the path of one")
      ->group(checkpoints);
  app.add_flag("--convert", options.convert,
               "with --resume: a checkpoint of another --precision, --master-weights or --moments "
               "is converted, and what becomes of its state is told")
      ->group(checkpoints)
      ->configurable(false);
  app.add_flag("--list-checkpoints", options.list_checkpoints,
               "print the checkpoints of --out, and train nothing")
      ->group(checkpoints)
      ->configurable(false);
  app.add_option("--export-hf", options.export_hf,
                 "new folder for the weights of the checkpoint that --resume names, as "
                 "transformers opens them; trains nothing")
      ->group(checkpoints)
      ->configurable(false);
  app.add_option("--replay-step", options.replay_step,
                 "take this step of the run in --out several times from one state, say whether "
                 "its bits are always the same, and write nothing")
      ->group(checkpoints)
      ->configurable(false)
      ->check(at_least_one());
  app.add_option("--replays", options.replays, "how often --replay-step takes it")
      ->group(checkpoints)
      ->configurable(false)
      ->check(at_least_two());
  app.set_config("--config", "", "TOML file with any of these choices")->group(output);
  app.config_formatter(std::make_shared<FlagsFile>(app));
}

/// Of --epochs and --steps that which was chosen: the command line wins over a file, in which both
/// may stand.
/// @throws ConfigError  if the command line has both
inline void choose_length(const CLI::App& app, Options& options) {
  if (options.chats.epochs == 0) return;
  const auto in_command = [&](const char* flag) {
    return app.count(flag) != 0 && detail::place_of(app, flag).empty();
  };
  if (!in_command("--steps")) return;
  octavo::require<octavo::ConfigError>(
      !in_command("--epochs"),
      "--epochs and --steps say both how long the run is; give one of them");
  options.chats.epochs = 0;
}

/// Throws if flags that each are right do not go together.
/// @throws ConfigError  saying what to change
inline void require_consistent(const CLI::App& app, const Options& options) {
  octavo::require<octavo::ConfigError>(
      options.on_spike != "rollback" || options.checkpoint_every != 0,
      "--on-spike rollback goes back to a checkpoint; give --checkpoint-every, too");
  octavo::require<octavo::ConfigError>(options.spikes.window <= octavo::RunTotals::most_recent,
                                       "--spike-window ", options.spikes.window,
                                       ": so many steps are not kept; give at most ",
                                       octavo::RunTotals::most_recent);
  octavo::require<octavo::ConfigError>(options.out.empty() || !options.no_out,
                                       "--out names a folder and --no-out wants none; give one");
  for (const char* flag :
       {"--lora-alpha", "--lora-targets", "--load-adapters", "--save-adapters"}) {
    octavo::require<octavo::ConfigError>(
        options.lora != 0 || app.count(flag) == 0, detail::place_of(app, flag), flag,
        " is about adapters; give --lora their rank, too, such as --lora 16");
  }
  programs::require_adapters_can_be(options);
  // A run that goes on has them in its checkpoint.
  if (!options.load_adapters.empty() && options.resume.empty()) {
    programs::require_folder("--load-adapters " + options.load_adapters, options.load_adapters,
                             "give the folder of --save-adapters, or of PEFT");
  }
  octavo::require<octavo::ConfigError>(options.replay_step <= options.steps, "--replay-step ",
                                       options.replay_step, ": the run has ", options.steps,
                                       " steps; give one of them");
  octavo::require<octavo::ConfigError>(
      options.replay_step == 0 || !options.out.empty() || !options.resume.empty(), "--replay-step ",
      options.replay_step, " is of a run; give its folder with --out");
  octavo::require<octavo::ConfigError>(options.replay_step != 0 || app.count("--replays") == 0,
                                       "--replays is about --replay-step; give it, too");
  require_device_flags(app, options);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gemm-plans", "--exchange"},
                           [&](const char* flag) { return detail::place_of(app, flag); });
}

/// Throws if gradients are to travel in what was not compiled in.
/// @throws ConfigError  saying how it can be
inline void require_reduction(const CLI::App& app, const Options& options) {
  octavo::require<octavo::ConfigError>(
      detail::is_among(reductions, options.reduce), "--reduce ", options.reduce,
      ": this program was built with ", programs::joined(reductions), " alone; ",
      detail::build_again(app, options.device, detail::build_options(app, options)));
}

/// Throws if ranks are to compare weights that each has a part of.
/// @throws ConfigError  saying what to change
inline void require_replicas(const Options& options) {
  octavo::require<octavo::ConfigError>(
      options.check_replicas == 0 || options.zero != 3 || options.ranks == 1, "--check-replicas ",
      options.check_replicas, " with --zero ", options.zero,
      ": no two ranks hold the same weights; give --check-replicas 0, or --zero 1 or 2");
}

/// What the session is made from.
/// @param resume_from  the checkpoint that the run goes on from; empty: it begins
/// @throws IoError     naming a file of GEMM plans, or a manifest, that cannot be read
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
    // Before those of the file: other runs may have changed it since, and bits hang on them.
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
  session.optimizer.beta1 = static_cast<float>(options.beta1);
  session.optimizer.beta2 = static_cast<float>(options.beta2);
  session.optimizer.epsilon = static_cast<float>(options.epsilon);
  session.optimizer.weight_decay = static_cast<float>(options.weight_decay);
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

/// What is done about spikes.
inline octavo::SpikeOptions spike_options(const Options& options) {
  const auto& names = octavo::on_spike_names;
  octavo::SpikeOptions spikes = options.spikes;
  spikes.action =
      static_cast<octavo::OnSpike>(std::ranges::find(names, options.on_spike) - names.begin());
  return spikes;
}

/// The learning rate of every step.
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

/// Of a flag that is missing: what else has it, where a run is to go on.
inline const char* or_configuration(const Options& options) {
  return options.resume.empty() ? "" : ", or all flags of the run by --config RUN/config.toml";
}

/// The course of the run.
inline octavo::RunOptions run_options(const Options& options) {
  return {.schedule = schedule(options),
          .evaluate_every = options.evaluate_every,
          .operands_every = options.operands_every,
          .max_skipped = options.max_skipped,
          .hash_every = options.hash_every,
          .spikes = spike_options(options)};
}

}  // namespace trainer
