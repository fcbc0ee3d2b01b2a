// plan_memory's flags.
#pragma once

#include <common/flags.hpp>
#include <common/paths.hpp>
#include <common/presets.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <plan_memory/plan.hpp>
#include <train_llama/documents.hpp>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
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

/// The shapes that --model can name.
std::vector<programs::NamedShape> known_shapes();

/// The shape that --model names: a preset, a model of OCTAVO_MODELS, hf:FOLDER, or the path of a
/// config.json.
/// @throws ConfigError, IoError  if there is none
inline Shape shape_of(const std::string& model) {
  constexpr std::string_view prefix = "hf:";
  const std::vector<programs::NamedShape> known = known_shapes();
  for (const programs::NamedShape& shape : known) {
    if (shape.name == model) return {shape.name, shape.shape};
  }
  const bool is_folder = model.starts_with(prefix);
  std::filesystem::path path = is_folder ? model.substr(prefix.size()) : model;
  if (is_folder) {
    programs::require_folder("--model " + model, path.string(),
                             "pass hf: and the folder of a Hugging Face model");
    path /= "config.json";
  } else if (path.extension() != ".json") {
    std::vector<std::string> names;
    for (const programs::NamedShape& shape : known) names.push_back(shape.name);
    throw octavo::ConfigError("--model: " + programs::none_of(model, names, names) +
                              "; or pass hf:FOLDER, or the path of a config.json");
  }
  return {model, octavo::read_hugging_face_config(path)};
}

inline void declare(CLI::App& app, Options& options) {
  using namespace programs;
  const auto add = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->capture_default_str();
  };
  const auto choose = [&](const std::string& name, std::string& value, const std::string& text,
                          const std::vector<std::string>& choices) {
    add(name, value, text + ": " + joined(choices))->check(one_of(choices));
  };
  std::vector<std::string> models;
  for (const NamedShape& shape : known_shapes()) models.push_back(shape.name);
  std::vector<std::string> precisions;
  std::apply([&](auto... named) { (precisions.emplace_back(named.name), ...); },
             octavo::named_precisions);
  add("--model", options.model,
      "preset: " + joined(models) +
          "; hf:FOLDER: the shape of that Hugging Face model; or the path of a config.json");
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

/// @throws ConfigError  if the model has no adapters, or ranks cannot share its layers
inline void require_supported(const Options& options, const Shape& shape) {
  octavo::require<octavo::ConfigError>(options.lora == 0 || !shape.is_gpt2(),
                                       "--lora: a GPT-2 has no adapters here; leave it out");
  const Index divisor = shape.shared_by();
  octavo::require<octavo::ConfigError>(
      divisor % options.tensor_parallel == 0, "--tensor-parallel ", options.tensor_parallel,
      ": the layers of ", shape.name,
      divisor == 1 ? " are not shared"
                   : octavo::message(" can be shared by ", divisor, " ranks or a divisor of it"));
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
  request.tensor_parallel = options.tensor_parallel;
  request.has_adapters = options.lora != 0;
  // Nothing of this machine counts for another device.
  if (options.device == octavo::Cpu::name) {
    request.cpu = octavo::Context<octavo::Cpu>(options.threads);
  }
  request.cuda.cudnn = options.cudnn;
  request.cuda.deterministic = options.deterministic;
  return request;
}

}  // namespace planner
