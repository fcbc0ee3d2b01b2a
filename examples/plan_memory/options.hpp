// plan_memory's flags.
#pragma once

#include <common/flags.hpp>
#include <common/gpu_cards.hpp>
#include <common/needs.hpp>
#include <common/paths.hpp>
#include <common/presets.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <plan_memory/plan.hpp>
#include <train_llama/documents.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace planner {

using octavo::Index;

/// Maximum number of ranks in a plan.
inline constexpr int max_ranks = 65'536;

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
  Index lora = 0;  ///< adapter rank; 0 disables LoRA
  std::vector<std::string> lora_targets{"all-linear"};
  std::string master_weights = "auto";
  std::string moments = "auto";
  std::string optimizer = "adamw";
  std::string offload = "none";
  int world = 1;  ///< by default, `tensor_parallel`
  int tensor_parallel = 1;
  int zero = 1;
  std::string gather = "stored";
  std::string reduce = "stored";

  /// Returns the number of tensor-parallel groups.
  [[nodiscard]] int groups() const { return world / tensor_parallel; }
  std::vector<double> card_memory{80, 141};
  std::string card;         ///< name of a GPU; empty: H100 and H200
  octavo::GpuFeatures gpu;  ///< of that card
  bool all = false;
};

/// Returns the shapes that --model can name.
std::vector<programs::NamedShape> known_shapes();

/// Returns the types in OCTAVO_PRECISIONS and OCTAVO_CUDA_PRECISIONS, which --precision also
/// accepts.
std::vector<std::string> added_precisions();

/// Whether a precision has a name; the others are types.
inline bool is_named(std::string_view precision) {
  return octavo::named_precisions.index_of(precision) < octavo::named_precisions.size;
}

/// Returns the shape that --model names: a preset, a model of OCTAVO_MODELS, hf:FOLDER, or the path
/// of a config.json.
/// @throws ConfigError, IoError  if it does not exist
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
    throw octavo::ConfigError("--model: " + programs::unknown_value_message(model, names, names) +
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
  octavo::named_precisions.for_each([&](auto named) { precisions.emplace_back(named.name); });
  std::ranges::copy(added_precisions(), std::back_inserter(precisions));
  add("--model", options.model,
      "preset: " + joined(models) +
          "; hf:FOLDER: the shape of that Hugging Face model; or the path of a config.json");
  choose("--precision", options.precision, "precision of the linear layers", precisions);
  choose("--device", options.device, "device to train on", {"cpu", "cuda"});
  choose("--recompute", options.recompute, "activations that the backward recomputes",
         recompute_names);
  choose("--weight-copies", options.weight_copies, "quantised copies of the weights",
         weight_copies_names);
  add("--batch", options.batch, "sequences per micro-batch and rank")->check(at_least_one());
  add("--seq-len", options.sequence_length, "tokens per sequence")->check(at_least_one());
  add("--micro-batches", options.micro_batches,
      "micro-batches per step and rank (gradient accumulation)")
      ->check(at_least_one());
  add("--most-documents", options.most_documents,
      "maximum number of documents in a micro-batch; 0: each sequence is one document")
      ->check(non_negative_integer());
  add("--world", options.world, "number of ranks; the plan describes one of them")
      ->check(at_least_one());
  declare_sharing(FlagGroup(app, app.option_defaults()->get_group()), options);
  add("--tensor-parallel", options.tensor_parallel,
      "number of neighbouring ranks that share each layer; --zero then applies among these groups")
      ->check(at_least_one());
  add("--head-chunk", options.head_chunk,
      "number of tokens whose logits are in memory at once; 0 chooses automatically")
      ->check(non_negative_integer());
  add("--lora", options.lora, "adapter rank; only adapters are trained; 0 disables LoRA")
      ->check(non_negative_integer());
  app.add_option("--lora-targets", options.lora_targets,
                 "comma-separated layers that get an adapter: q_proj, k_proj, v_proj, o_proj, "
                 "gate_proj, up_proj, down_proj; all by default")
      ->delimiter(',');
  add("--master-weights", options.master_weights,
      "master-weight format: fp32; bf16, which keeps no separate copy; auto: fp32 if it fits in "
      "GPU memory")
      ->check(one_of(master_choices));
  choose("--optimizer", options.optimizer, "optimizer", optimizer_names);
  choose("--moments", options.moments,
         "format of the optimizer's moments, not wider than --master-weights", moment_choices);
  choose("--offload", options.offload, "optimizer state and activations kept in host memory",
         offload_names);
  app.add_flag("--with-cudnn", options.cudnn, "attention on cuda may use cuDNN");
  app.add_flag("--own-attention", options.own_attention,
               "attention on cuda uses Octavo's kernels (default)");
  app.add_flag("--deterministic", options.deterministic,
               "plan for the trainer's --deterministic, which needs more workspace with cuDNN");
  add("--threads", options.threads, "number of CPU threads for the cpu device; 0 uses all")
      ->check(non_negative_integer());
  add("--card-memory", options.card_memory, "GPU memory in GiB; repeatable")->check(above_zero());
  app.add_option("--card", options.card,
                 "plan for this GPU, such as \"RTX 4090\", or a compute capability and memory, "
                 "such as sm_86:24GiB; by default, for an H100 and an H200");
  app.add_flag(
      "--all", options.all,
      "print one line for every combination of precision, recompute policy, weight copies, "
      "optimizer state and offloading; flags that are set stay fixed");
}

/// Plans for the GPU of --card: its memory and features. Without --precision, a GPU that has no FP8
/// trains in BF16.
/// @throws ConfigError  if there is no such GPU, or its memory is not known
inline void take_card(const CLI::App& app, Options& options) {
  const bool sets_memory = app.count("--card-memory") > 0;
  const auto given = programs::capability_given(options.card);
  std::vector<programs::GpuCard> cards;
  if (given) {
    octavo::require<octavo::ConfigError>(given->gib || sets_memory, "--card ", options.card,
                                         " names no memory; append it, such as --card ",
                                         options.card, ":24GiB");
    cards = {{"", given->capability, given->gib.value_or(0)}};
  } else {
    cards = programs::cards_named(options.card,
                                  "pass its compute capability and memory, such as sm_86:24GiB");
  }
  if (!sets_memory) options.card_memory.clear();
  for (const programs::GpuCard& card : cards) {
    octavo::require<octavo::ConfigError>(card.capability == cards.front().capability, "--card '",
                                         options.card, "' names several GPUs, such as ",
                                         cards.front().name, " and ", card.name,
                                         "; pass the name of one");
    if (!sets_memory) options.card_memory.push_back(card.gib);
  }
  if (!given && cards.size() == 1) options.card = cards.front().name;
  options.gpu = octavo::features_of(cards.front().capability);
  if (app.count("--precision") == 0 && !options.gpu.fp8_gemms) options.precision = "bf16";
}

/// Throws if flags that are valid alone contradict each other. Sets --world to --tensor-parallel if
/// it was not set.
/// @throws ConfigError  with advice
inline void make_consistent(CLI::App& app, Options& options) {
  if (app.count("--world") == 0) options.world = options.tensor_parallel;
  octavo::require<octavo::ConfigError>(options.world <= max_ranks, "--world must be at most ",
                                       max_ranks, ", but is ", options.world);
  octavo::require<octavo::ConfigError>(options.world % options.tensor_parallel == 0,
                                       "--world must be a multiple of --tensor-parallel ",
                                       options.tensor_parallel, ", but is ", options.world);
  programs::require_adapters_supported(options);
  octavo::require<octavo::ConfigError>(!options.cudnn || !options.own_attention,
                                       "--with-cudnn and --own-attention exclude each other; pass "
                                       "only one");
  programs::require_device(app, options.device, octavo::Cpu::name, {"--threads"});
  programs::require_device(
      app, options.device, octavo::Cuda::name,
      {"--with-cudnn", "--own-attention", "--deterministic", "--card-memory", "--card"});
  if (!options.card.empty()) take_card(app, options);
  const bool is_any = options.all && app.count("--precision") == 0;
  const std::string& precision = options.precision;
  programs::require_effects(app,
                            {{{"--lora-targets"}, options.lora != 0, "--lora", "RANK"},
                             {{"--master-weights"},
                              is_any || precision != "fp32" || options.master_weights != "bf16",
                              "--precision",
                              "bf16 or fp8-…"},
                             {{"--weight-copies"},
                              is_any || (precision != "fp32" && precision != "bf16"),
                              "--precision",
                              "fp8-…"}});
}

/// Throws if --lora or --tensor-parallel does not support the model.
/// @throws ConfigError  with advice
inline void require_supported(const Options& options, const Shape& shape) {
  octavo::require<octavo::ConfigError>(options.lora == 0 || shape.model.family->supports_adapters,
                                       "--lora does not support ", shape.model.family->name,
                                       "; leave it out");
  const Index divisor = shape.shared_by();
  octavo::require<octavo::ConfigError>(
      divisor % options.tensor_parallel == 0, "--tensor-parallel ", options.tensor_parallel,
      ": the layers of ", shape.name,
      divisor == 1 ? " cannot be shared"
                   : octavo::message(" can be shared by ", divisor, " ranks or a divisor of it"));
}

inline Request request_of(const Options& options) {
  constexpr Index most = std::numeric_limits<std::int32_t>::max();
  const Index rows = options.batch * options.sequence_length;
  octavo::require<octavo::ConfigError>(rows <= most && rows * options.micro_batches <= most,
                                       "a step of ", options.batch, " x ", options.sequence_length,
                                       " x ", options.micro_batches,
                                       " tokens is too large; pass at most ", most, " tokens");
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
  request.session.offload = programs::offload_named(options.offload);
  request.device = options.device;
  request.master_weights = options.master_weights;
  request.moments = options.moments;
  request.optimizer = options.optimizer;
  request.gather = options.gather;
  request.reduce = options.reduce;
  request.tensor_parallel = options.tensor_parallel;
  request.has_adapters = options.lora != 0;
  // For the cuda device, properties of this machine do not matter.
  if (options.device == octavo::Cpu::name) {
    request.cpu = octavo::Context<octavo::Cpu>(options.threads);
  }
  request.cuda.gpu = options.gpu;
  request.cuda.card = options.card.empty() ? "an H100 or H200" : "the GPU " + options.card;
  request.cuda.cudnn = options.cudnn;
  request.cuda.deterministic = options.deterministic;
  return request;
}

}  // namespace planner
