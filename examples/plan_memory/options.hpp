// plan_memory's flags.
#pragma once

#include <common/flags.hpp>
#include <common/presets.hpp>
#include <plan_memory/plan.hpp>
#include <train_llama/documents.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace planner {

using octavo::Index;

/// The largest number of ranks that is planned for.
inline constexpr int most_ranks = 65'536;

struct Options {
  std::string model = "llama3_8b";
  std::string precision = "fp8-delayed";
  std::string device = "cuda";
  std::string recompute = "none";
  std::string weight_copies = "kept";
  bool cudnn = false;
  bool own_attention = false;
  bool deterministic = false;
  int threads = 0;
  Index head_chunk = 0;
  Index batch = 1;
  Index sequence_length = 8192;
  Index micro_batches = 1;
  Index most_documents = 0;
  Index lora = 0;  ///< the rank of adapters; 0: there are none
  std::vector<std::string> lora_targets{"all-linear"};
  std::string master_weights = "auto";
  std::string moments = "auto";
  std::string offload = "none";
  int world = 1;  ///< as many as share the layers unless said
  int tensor_parallel = 1;
  int zero = 1;
  std::string gather = "stored";
  std::string reduce = "stored";

  /// Groups of ranks that share the layers; ranks, where none do.
  [[nodiscard]] int groups() const { return world / tensor_parallel; }
  std::vector<double> card_memory{80, 141};
  bool all = false;
};

/// The distinct names that `name_of(plan)` gives.
template <class NameOf>
std::vector<std::string> names(const std::vector<Plan>& plans, const NameOf& name_of) {
  std::vector<std::string> result;
  for (const Plan& plan : plans) {
    if (std::find(result.begin(), result.end(), name_of(plan)) == result.end()) {
      result.emplace_back(name_of(plan));
    }
  }
  return result;
}

/// How to build the program with a plan that it lacks.
/// @param list     of the build, such as OCTAVO_PLAN_PRESETS
/// @param entries  that it has
inline std::string build_again(const std::string& list, const std::vector<std::string>& entries,
                               const std::string& wanted) {
  return "build again: cmake BUILD_FOLDER " + programs::build_list(list, entries, wanted) +
         " && cmake --build BUILD_FOLDER --target plan_memory (quickstart's is build/quickstart)";
}

/// Accepts the models that there are plans of; of other presets it says how to have them.
inline CLI::Validator planned(const std::vector<std::string>& models) {
  return CLI::Validator(
      [models](const std::string& name) -> std::string {
        const auto among = [&name](const std::vector<std::string>& all) {
          return std::find(all.begin(), all.end(), name) != all.end();
        };
        if (among(models)) return "";
        std::vector<std::string> known = programs::preset_names();
        if (among(known)) {
          return "'" + name + "' is not compiled in, only: " + programs::joined(models) + "; " +
                 build_again("OCTAVO_PLAN_PRESETS", models, name);
        }
        known.insert(known.end(), models.begin(), models.end());
        return programs::none_of(name, models, known);
      },
      "");
}

inline void declare(CLI::App& app, Options& options, const std::vector<Plan>& plans) {
  using namespace programs;
  const auto add = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->capture_default_str();
  };
  const auto choose = [&](const std::string& name, std::string& value, const std::string& text,
                          const std::vector<std::string>& choices) {
    add(name, value, text + ": " + joined(choices))->check(one_of(choices));
  };
  const auto models = names(plans, [](const Plan& plan) { return plan.facts.name; });
  const auto precisions = names(plans, [](const Plan& plan) { return plan.precision; });
  add("--model", options.model, "preset: " + joined(models))->check(planned(models));
  choose("--precision", options.precision, "of the linear layers", precisions);
  choose("--device", options.device, "where it is to train", {"cpu", "cuda"});
  choose("--recompute", options.recompute, "what the backward makes again", recompute_names);
  choose("--weight-copies", options.weight_copies, "quantised copies of weights",
         weight_copies_names);
  add("--batch", options.batch, "sequences in a micro-batch")->check(at_least_one());
  add("--seq-len", options.sequence_length, "tokens in a sequence")->check(at_least_one());
  add("--micro-batches", options.micro_batches, "micro-batches in a step")->check(at_least_one());
  add("--most-documents", options.most_documents,
      "documents in a micro-batch, at most; 0: each sequence is one")
      ->check(not_negative_whole());
  add("--world", options.world, "ranks that train together; the plan is of one of them")
      ->check(at_least_one());
  declare_sharing(app, options, app.option_defaults()->get_group());
  add("--tensor-parallel", options.tensor_parallel,
      "of these ranks, as many share each layer; --zero is then among their groups")
      ->check(at_least_one());
  add("--head-chunk", options.head_chunk, "tokens whose logits exist at once; 0: chosen")
      ->check(not_negative_whole());
  add("--lora", options.lora,
      "rank of adapters beside the linear layers, and nothing else is trained; 0: there are none")
      ->check(not_negative_whole());
  app.add_option("--lora-targets", options.lora_targets,
                 "layers that have one, with commas: q_proj, k_proj, v_proj, o_proj, gate_proj, "
                 "up_proj, down_proj; all unless said")
      ->delimiter(',');
  add("--master-weights", options.master_weights,
      "fp32; bf16: none beside the BF16 weights; auto: fp32 where the GPU has memory for it")
      ->check(one_of(master_choices));
  choose("--moments", options.moments, "of AdamW, as --master-weights or smaller", moment_choices);
  choose("--offload", options.offload, "what lives in the host's memory", offload_names);
  app.add_flag("--with-cudnn", options.cudnn, "attention on cuda may run through cuDNN");
  app.add_flag("--own-attention", options.own_attention,
               "attention on cuda runs in own kernels (default)");
  app.add_flag("--deterministic", options.deterministic,
               "as --deterministic of the trainer: on cuda, with cuDNN, it takes more workspace");
  add("--threads", options.threads, "threads of the cpu device; 0: all")
      ->check(not_negative_whole());
  add("--card-memory", options.card_memory, "GiB of a GPU; may be given again")
      ->check(above_zero());
  app.add_flag("--all", options.all,
               "one line for every precision, recompute policy, weight copies, optimizer state and "
               "place of it; what is named stays fixed");
}

/// Throws if flags that each are right do not go together. Ranks that were not said are those that
/// share the layers.
/// @throws ConfigError  saying what to change
inline void make_consistent(const CLI::App& app, Options& options) {
  if (app.count("--world") == 0) options.world = options.tensor_parallel;
  octavo::require<octavo::ConfigError>(options.world <= most_ranks, "--world is ", options.world,
                                       "; give at most ", most_ranks);
  octavo::require<octavo::ConfigError>(
      options.world % options.tensor_parallel == 0, "--tensor-parallel ", options.tensor_parallel,
      ": so many ranks share each layer, but --world is ", options.world, "; give a multiple");
  octavo::require<octavo::ConfigError>(
      options.lora != 0 || app.count("--lora-targets") == 0,
      "--lora-targets is about adapters; give --lora their rank, too, such as --lora 16");
  programs::require_adapters_can_be(options);
  octavo::require<octavo::ConfigError>(!options.cudnn || !options.own_attention,
                                       "--with-cudnn and --own-attention exclude each other; give "
                                       "one");
  programs::require_device(app, options.device, octavo::Cpu::name, {"--threads"});
  programs::require_device(app, options.device, octavo::Cuda::name,
                           {"--with-cudnn", "--own-attention", "--deterministic", "--card-memory"});
}

/// @throws ConfigError  saying why there is no plan with adapters, and how there can be
[[noreturn]] inline void throw_without_adapters(const Options& options,
                                                const std::vector<Plan>& plans) {
  for (const programs::NamedShape& preset : programs::presets()) {
    octavo::require<octavo::ConfigError>(
        preset.name != options.model || preset.shape.family != octavo::ModelFamily::gpt2,
        "--lora: a GPT-2 has no adapters here; leave it out");
  }
  std::vector<std::string> entries;
  for (const Plan& plan : plans) {
    if (plan.has_adapters) entries.push_back(plan.facts.name + ':' + plan.precision);
  }
  throw octavo::ConfigError(octavo::message(
      "model ", options.model, " in ", options.precision,
      " is not compiled in with adapters, which --lora adds; ",
      build_again("OCTAVO_LORA", entries, options.model + ':' + options.precision)));
}

/// The plan that the options name.
/// @throws ConfigError  saying how it can be compiled in, if it was not
inline const Plan& find_plan(const Options& options, const std::vector<Plan>& plans) {
  const Plan* alone = nullptr;
  for (const Plan& plan : plans) {
    if (plan.facts.name != options.model || plan.precision != options.precision) continue;
    if (plan.tensor_parallel == options.tensor_parallel &&
        plan.has_adapters == (options.lora != 0)) {
      return plan;
    }
    if (plan.tensor_parallel == 1) alone = &plan;
  }
  if (options.lora != 0) throw_without_adapters(options, plans);
  const int degree = options.tensor_parallel;
  const int divisor = alone->shape.divisor;
  octavo::require<octavo::ConfigError>(
      divisor % degree == 0, "--tensor-parallel ", degree, ": the layers of ", options.model,
      divisor == 1 ? " are not shared"
                   : octavo::message(" can be shared by ", divisor, " ranks or a divisor of it"));
  const auto entry = [](const std::string& model, const std::string& precision, int ranks) {
    return octavo::message(model, ':', precision, ':', ranks);
  };
  std::vector<std::string> entries;
  for (const Plan& plan : plans) {
    if (plan.tensor_parallel == 1) continue;
    entries.push_back(entry(plan.facts.name, plan.precision, plan.tensor_parallel));
  }
  throw octavo::ConfigError(
      octavo::message("model ", options.model, " in ", options.precision,
                      " is not compiled in for --tensor-parallel ", degree, "; ",
                      build_again("OCTAVO_PLAN_TENSOR_PARALLEL", entries,
                                  entry(options.model, options.precision, degree))));
}

inline Request request_of(const Options& options) {
  constexpr Index most = std::numeric_limits<std::int32_t>::max();
  const Index rows = options.batch * options.sequence_length;
  octavo::require<octavo::ConfigError>(rows <= most && rows * options.micro_batches <= most,
                                       "a step of ", options.batch, " x ", options.sequence_length,
                                       " x ", options.micro_batches,
                                       " tokens is too large; give at most ", most, " tokens");
  Request request;
  request.session.batch = {options.batch, options.sequence_length, options.most_documents};
  if (options.most_documents != 0) trainer::require_most_documents(request.session.batch);
  request.session.micro_batches = options.micro_batches;
  request.session.model = {.recompute = programs::recompute_named(options.recompute),
                           .head_chunk = options.head_chunk,
                           .weight_copies = programs::weight_copies_named(options.weight_copies)};
  request.session.sharding =
      octavo::sharding_of_rank({.zero = static_cast<octavo::Zero>(options.zero),
                                .reduce_each_micro_batch = options.deterministic},
                               0, options.world, options.tensor_parallel);
  if (options.lora != 0) {
    request.session.model.lora.rank = options.lora;
    octavo::set_lora_targets(request.session.model.lora,
                             programs::lora_targets(options.lora_targets));
  }
  request.session.offload.optimizer = options.offload == "optimizer";
  request.device = options.device;
  request.master_weights = options.master_weights;
  request.moments = options.moments;
  request.gather = options.gather;
  request.reduce = options.reduce;
  // Nothing of this machine counts for another device.
  if (options.device == octavo::Cpu::name) {
    request.cpu = octavo::Context<octavo::Cpu>(options.threads);
  }
  request.cuda.cudnn = options.cudnn;
  request.cuda.deterministic = options.deterministic;
  return request;
}

}  // namespace planner
