// Chooses the compiled model and device that a program runs.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flags_file.hpp>
#include <common/paths.hpp>
#include <common/presets.hpp>
#include <octavo/comm/launch.hpp>
#include <octavo/io/file_digest.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/peft_adapters.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <train_llama/precision_fit.hpp>
#include <train_llama/registry.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace trainer {

/// Options common to all programs that run models.
struct ModelChoice {
  std::string model = "llama_tiny";
  /// Folder of --model hf:FOLDER; `model` is then the preset with its shape.
  std::string load_hf{};
  std::string precision = "fp8-delayed";
  std::string device = "cpu";
  int threads = 0;
  int gpu = 0;

  octavo::Index lora = 0;  ///< adapter rank; 0 disables LoRA
  int tensor_parallel = 1;
  int comm_timeout = 600;
};

inline constexpr const char* model_group = "Model";
inline constexpr const char* ranks_group = "Ranks (started by mpirun or another launcher)";

namespace detail {

/// Returns the distinct, non-empty texts that `text_of` returns for the instances.
template <class TextOf>
std::vector<std::string> distinct(const TextOf& text_of) {
  std::vector<std::string> texts;
  for (const Instance& instance : instances()) {
    std::string text = text_of(instance);
    if (text.empty() || std::find(texts.begin(), texts.end(), text) != texts.end()) continue;
    texts.push_back(std::move(text));
  }
  return texts;
}

/// Returns the distinct values of a field of all instances.
inline std::vector<std::string> compiled(std::string Instance::* field) {
  return distinct([field](const Instance& instance) { return instance.*field; });
}

}  // namespace detail

/// Declares the flags of the model and its device.
inline void declare_model(CLI::App& app, ModelChoice& choice) {
  using namespace programs;
  const FlagGroup group(app, model_group);
  group.add("--model", choice.model,
            "compiled model: " + joined(detail::compiled(&Instance::model)) +
                "; or hf:FOLDER: the one with the shape of that Hugging Face model, with its "
                "weights");
  group.add("--precision", choice.precision, joined(detail::compiled(&Instance::precision)));
  group.add("--device", choice.device, joined(detail::compiled(&Instance::device)));
  // The other device rejects these flags.
  group
      .add_without_default("--threads", choice.threads,
                           "number of CPU threads for the cpu device; 0 uses all (default)")
      ->check(non_negative_integer());
  group
      .add_without_default("--gpu", choice.gpu,
                           "index of the GPU for the cuda device; 0 by default")
      ->check(non_negative_integer());
}

/// Declares --checkpoint, from which programs that do not train load the model.
inline void declare_checkpoint(CLI::App& app, std::string& checkpoint) {
  programs::FlagGroup(app, model_group)
      .add_without_default("--checkpoint", checkpoint,
                           "checkpoint, or folder of a run for its newest checkpoint; sets the "
                           "default of --precision");
}

/// Declares the flags for ranks that all programs share.
inline void declare_ranks(CLI::App& app, ModelChoice& choice) {
  app.get_option("--gpu")->description(
      "index of the GPU for the cuda device; by default, the rank's on its host");
  const programs::FlagGroup group(app, ranks_group);
  group
      .add("--tensor-parallel", choice.tensor_parallel,
           "number of neighbouring ranks that share each layer")
      ->check(programs::at_least_one());
  group
      .add("--comm-timeout", choice.comm_timeout,
           "seconds that ranks wait for each other before the run ends with an error")
      ->check(programs::at_least_one());
}

namespace detail {

/// Returns the file that --config names, or null if the program has no such flag.
inline const programs::FlagsFile* flags_file(const CLI::App& app) {
  return dynamic_cast<const programs::FlagsFile*>(app.get_config_formatter().get());
}

/// Returns where a flag was set: "c.toml:3: ", or "" for the command line.
inline std::string place_of(const CLI::App& app, const std::string& flag) {
  return programs::place_of(app, *app.get_option(flag));
}

/// A flag that chooses among compiled instances, with all values that it can have, compiled or not.
struct Choice {
  const char* flag;
  std::string Instance::* field;
  const std::string& value;
  std::vector<std::string> all;
};

inline bool is_among(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

inline Choice device_choice(const ModelChoice& options) {
  return {"--device",
          &Instance::device,
          options.device,
          {std::string(octavo::Cpu::name), std::string(octavo::Cuda::name)}};
}

inline Choice precision_choice(const ModelChoice& options) {
  std::vector<std::string> names;
  octavo::named_precisions.for_each([&](auto named) { names.emplace_back(named.name); });
  // A C++ type; any type can be compiled in.
  if (options.precision.find('<') != std::string::npos) names.push_back(options.precision);
  return {"--precision", &Instance::precision, options.precision, std::move(names)};
}

inline Choice model_choice(const ModelChoice& options) {
  return {"--model", &Instance::model, options.model, programs::preset_names()};
}

/// Returns the beginning of a message about a flag's value: "--device: ", "c.toml:3: device: ", or
/// "model " if a checkpoint set it.
inline std::string prefix_of(const CLI::App& app, const std::string& flag,
                             const std::string& value) {
  const bool is_default = app.get_option(flag)->get_default_str() == value;
  if (app.count(flag) == 0 && !is_default) return programs::without_dashes(flag) + ' ';
  const std::string place = place_of(app, flag);
  return place.empty() ? flag + ": " : place + programs::without_dashes(flag) + ": ";
}

/// @throws ConfigError  if the flag cannot have this value
inline void require_known(const CLI::App& app, const Choice& choice) {
  const std::vector<std::string> here = compiled(choice.field);
  std::error_code error;
  const bool is_folder =
      choice.field == &Instance::model &&
      std::filesystem::exists(std::filesystem::path(choice.value) / "config.json", error);
  octavo::require<octavo::ConfigError>(
      is_among(here, choice.value) || is_among(choice.all, choice.value),
      prefix_of(app, choice.flag, choice.value),
      programs::unknown_value_message(choice.value, here,
                                      is_folder ? std::vector<std::string>{} : choice.all),
      is_folder ? "; pass hf:" + choice.value : "");
}

/// Returns advice to build the program with options that it lacks. Lists keep their entries.
inline std::string build_again(const CLI::App& app, const std::string& device,
                               const std::string& options) {
  const std::string folder = device == "cuda" ? "build/quickstart-cuda" : "build/quickstart";
  return "build again: cmake BUILD_FOLDER " + options + " && cmake --build BUILD_FOLDER --target " +
         app.get_name() + " (quickstart's is " + folder + ")";
}

/// Whether a model is one of the library's presets rather than of OCTAVO_MODELS.
inline bool is_preset(const std::string& model) {
  return is_among(programs::preset_names(), model);
}

/// Returns the shape of a model, compiled or not; none if it is unknown.
inline std::optional<octavo::ModelDescription> shape_of(const std::string& model) {
  std::vector<programs::NamedShape> known = programs::presets();
  for (const Instance& instance : instances()) known.push_back({instance.model, instance.shape});
  const auto found = std::ranges::find(known, model, &programs::NamedShape::name);
  return found == known.end() ? std::nullopt : std::optional(found->shape);
}

/// Returns the CMake option that adds a value to a list of the device, or "" if the list contains
/// it. Lists of the `cuda` device have CUDA in their names.
inline std::string option_of_list(const std::string& list, std::string Instance::* field,
                                  const std::string& device, const std::string& value) {
  // Models of OCTAVO_MODELS are always compiled.
  const std::vector<std::string> here = distinct([&](const Instance& instance) -> std::string {
    const bool is_listed = field != &Instance::model || is_preset(instance.model);
    return instance.device == device && is_listed ? instance.*field : "";
  });
  if (is_among(here, value)) return "";
  return programs::build_list((device == octavo::Cuda::name ? "OCTAVO_CUDA_" : "OCTAVO_") + list,
                              here, value);
}

/// Returns the value of a flag, or "" if it was not set or the program does not have it.
inline std::string flag_value(const CLI::App& app, const char* flag) {
  const CLI::Option* option = app.get_option_no_throw(flag);
  return option == nullptr || option->count() == 0 ? "" : option->results().back();
}

/// Whether a launcher started several ranks, or flags concern ranks.
inline bool is_for_ranks(const CLI::App& app, const ModelChoice& choice) {
  return choice.tensor_parallel > 1 || !flag_value(app, "--zero").empty() ||
         octavo::read_launch().size > 1;
}

/// Returns the CMake option that adds a model to those with adapters.
inline std::string build_option_of_adapters(const ModelChoice& choice) {
  const auto here = distinct([](const Instance& instance) -> std::string {
    return instance.has_adapters ? instance.model + ':' + instance.precision : "";
  });
  return programs::build_list("OCTAVO_LORA", here, choice.model + ':' + choice.precision);
}

/// Returns the CMake option that adds a model to those that support tensor parallelism.
inline std::string build_option_of_shared(const ModelChoice& choice) {
  const auto entry = [](const std::string& model, const std::string& precision, int degree) {
    return octavo::message(model, ':', precision, ':', degree);
  };
  const auto here = distinct([&](const Instance& one) -> std::string {
    return one.tensor_parallel == 1 ? "" : entry(one.model, one.precision, one.tensor_parallel);
  });
  return programs::build_list("OCTAVO_TENSOR_PARALLEL", here,
                              entry(choice.model, choice.precision, choice.tensor_parallel));
}

/// Returns the CMake option that enables NCCL if the program needs and lacks it, or "".
inline std::string build_option_of_nccl(const CLI::App& app, const ModelChoice& choice) {
#if defined(OCTAVO_PROGRAM_HAS_NCCL)
  constexpr bool has_nccl = true;
#else
  constexpr bool has_nccl = false;
#endif
  const bool on_gpu = choice.device == octavo::Cuda::name;
  return on_gpu && !has_nccl && is_for_ranks(app, choice) ? "-DOCTAVO_NCCL=ON" : "";
}

/// Returns the CMake option that --reduce needs if the program lacks it, or "".
inline std::string build_option_of_reduction(const CLI::App& app) {
  const std::string reduce = flag_value(app, "--reduce");
  if (reduce.empty() || is_among(reductions, reduce)) return "";
  return programs::build_list("OCTAVO_REDUCE", reductions, reduce);
}

inline std::string spaced(std::vector<std::string> options) {
  std::erase(options, "");
  std::string text;
  for (const std::string& option : options) text += (text.empty() ? "" : " ") + option;
  return text;
}

/// Returns all CMake options that a choice needs and the program lacks.
inline std::string build_options(const CLI::App& app, const ModelChoice& choice) {
  const bool has_device = is_among(compiled(&Instance::device), choice.device);
  return spaced(
      {has_device ? "" : "-DOCTAVO_CUDA=ON", build_option_of_nccl(app, choice),
       is_preset(choice.model)
           ? option_of_list("PRESETS", &Instance::model, choice.device, choice.model)
           : "",
       option_of_list("PRECISIONS", &Instance::precision, choice.device, choice.precision),
       choice.lora == 0 ? "" : build_option_of_adapters(choice),
       choice.tensor_parallel == 1 ? "" : build_option_of_shared(choice),
       build_option_of_reduction(app)});
}

/// Returns advice to build the program with the shape of a Hugging Face folder. The command uses a
/// separate build folder with only this model in one precision, so that nothing else is compiled
/// and no other build changes. It sets every list, because the folder may exist from an earlier
/// one.
inline std::string build_folder_of(const CLI::App& app, const ModelChoice& choice) {
  using programs::build_list;
  const bool on_gpu = choice.device == octavo::Cuda::name;
  const std::string model = "my_model";
  const std::string entry = model + ':' + choice.precision;
  const auto folder = std::filesystem::absolute(choice.load_hf).lexically_normal().string();
  const std::string shared =
      choice.tensor_parallel == 1 ? "" : octavo::message(entry, ':', choice.tensor_parallel);
  const std::string lists =
      spaced({build_list("OCTAVO_MODELS", {}, model + ':' + folder), "-DOCTAVO_PRESETS=",
              on_gpu ? "-DOCTAVO_PRECISIONS= -DOCTAVO_CUDA_PRESETS= " +
                           build_list("OCTAVO_CUDA_PRECISIONS", {}, choice.precision)
                     : build_list("OCTAVO_PRECISIONS", {}, choice.precision),
              build_option_of_nccl(app, choice),
              build_list("OCTAVO_LORA", {}, choice.lora == 0 ? "" : entry),
              build_list("OCTAVO_TENSOR_PARALLEL", {}, shared), build_option_of_reduction(app)});
  return octavo::message("build it in Octavo's folder: cmake --preset quickstart",
                         on_gpu ? "-cuda" : "", " -B build/", model, ' ', lists,
                         " && cmake --build build/", model, " --target ", app.get_name());
}

/// @throws ConfigError  if no build supports the choice
inline void require_possible(const ModelChoice& options, const octavo::ModelDescription& shape,
                             const std::string& model) {
  using octavo::ConfigError;
  using octavo::require;
  require<ConfigError>(options.lora == 0 || shape.family->supports_adapters,
                       "--lora does not support ", shape.family->name, "; leave it out");
  require<ConfigError>(options.tensor_parallel == 1 || shape.can_share_layers(),
                       "--tensor-parallel ", options.tensor_parallel,
                       ": tensor parallelism does not support ", shape.family->name,
                       "; leave it out to train with data parallelism");
  PrecisionLimits limits = limits_of(shape, options.tensor_parallel, options.lora != 0);
  // A program that only generates keeps no activations.
  if (std::ranges::any_of(instances(), [](const Instance& one) { return one.infer != nullptr; })) {
    limits.may_read_narrow = true;
  }
  require_precision(model, options.precision, limits);
}

/// @throws ConfigError  if no instance has the chosen value
inline void require_compiled(const CLI::App& app, const Choice& choice,
                             const ModelChoice& options) {
  const std::vector<std::string> here = compiled(choice.field);
  octavo::require<octavo::ConfigError>(
      is_among(here, choice.value), prefix_of(app, choice.flag, choice.value), "'", choice.value,
      "' is not compiled in, only: ", programs::joined(here), "; ",
      build_again(app, options.device, build_options(app, options)));
}

/// Returns how a shape that no preset has differs from the nearest compiled preset, as in
/// " (nearest is llama_tiny, but the folder's norm_epsilon is 1e-06, not 1e-05)"; "" if it differs
/// in more than 3 numbers.
inline std::string difference_from_nearest(const octavo::ModelDescription& shape) {
  constexpr std::size_t most_differences = 3;
  std::vector<std::string> nearest_differences;
  std::string nearest;
  for (const Instance& instance : instances()) {
    std::vector<std::string> all = octavo::differences(shape, instance.shape);
    if (!nearest.empty() && all.size() >= nearest_differences.size()) continue;
    nearest_differences = std::move(all);
    nearest = instance.model;
  }
  if (nearest.empty() || nearest_differences.size() > most_differences) return "";
  return " (nearest is " + nearest + ", but the folder's " + programs::joined(nearest_differences) +
         ')';
}

}  // namespace detail

/// Throws if the device or precision does not exist, or a flag is for another device.
/// @throws ConfigError  with advice
inline void require_device_flags(const CLI::App& app, const ModelChoice& options) {
  // Checks the device first, because the flags can be checked only for a known device.
  detail::require_known(app, detail::device_choice(options));
  detail::require_known(app, detail::precision_choice(options));
  const auto place_of = [&](const char* flag) { return detail::place_of(app, flag); };
  programs::require_device(app, options.device, octavo::Cpu::name, {"--threads"}, place_of);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gpu"}, place_of);
}

/// If --model names a Hugging Face folder, sets `options.load_hf` to it, and `options.model` to the
/// preset with its shape.
/// @throws ConfigError, IoError  if its config.json cannot be read, no preset has its shape, or the
///                               model does not exist
inline void find_preset_of_folder(const CLI::App& app, ModelChoice& options) {
  constexpr std::string_view prefix = "hf:";
  if (!options.model.starts_with(prefix)) {
    detail::require_known(app, detail::model_choice(options));
    return;
  }
  options.load_hf = options.model.substr(prefix.size());
  const std::string given = detail::place_of(app, "--model") + "--model " + options.model;
  const char* const advice = "pass hf: and the folder of a Hugging Face model";
  octavo::require<octavo::ConfigError>(!options.load_hf.empty(), given, " names no folder; ",
                                       advice);
  programs::require_folder(given, options.load_hf, advice);
  const std::filesystem::path folder = options.load_hf;
  octavo::require<octavo::ConfigError>(
      std::filesystem::exists(folder / "config.json") ||
          !std::filesystem::exists(folder / octavo::detail::peft_config_name),
      options.load_hf,
      " contains PEFT adapters but no model; pass the adapters' base model, and load them with "
      "--lora and --load-adapters, or pass a folder written by --save-hf");
  octavo::require<octavo::IoError>(std::filesystem::exists(folder / "config.json"), given,
                                   ": the folder has no config.json; ", advice);
  const octavo::ModelDescription shape =
      octavo::read_hugging_face_config(std::filesystem::path(options.load_hf) / "config.json");
  const auto fits = [&](const octavo::ModelDescription& other) {
    return octavo::differences(shape, other).empty();
  };
  for (const Instance& instance : instances()) {
    if (!fits(instance.shape)) continue;
    options.model = instance.model;
    return;
  }
  detail::require_possible(options, shape, octavo::message(prefix, options.load_hf));
  ModelChoice wanted = options;
  wanted.model.clear();
  for (const programs::NamedShape& preset : programs::presets()) {
    if (fits(preset.shape)) wanted.model = preset.name;
  }
  throw octavo::ConfigError(octavo::message(
      detail::place_of(app, "--model"), "--model ", prefix, options.load_hf,
      ": no compiled preset has its shape",
      wanted.model.empty() ? detail::difference_from_nearest(shape) : "", "; ",
      wanted.model.empty()
          ? detail::build_folder_of(app, options)
          : detail::build_again(app, options.device, detail::build_options(app, wanted))));
}

/// Returns the instance that the options name.
/// @throws ConfigError  with the compiled values, and the command that builds others
inline const Instance& find_instance(const CLI::App& app, const ModelChoice& options) {
  const std::array<detail::Choice, 3> choices{{detail::device_choice(options),
                                               detail::model_choice(options),
                                               detail::precision_choice(options)}};
  for (const detail::Choice& choice : choices) detail::require_known(app, choice);
  const auto shape = detail::shape_of(options.model);
  if (shape.has_value()) detail::require_possible(options, *shape, options.model);
  for (const detail::Choice& choice : choices) detail::require_compiled(app, choice, options);
  bool is_compiled = false;
  for (const Instance& instance : instances()) {
    if (instance.model == options.model && instance.precision == options.precision &&
        instance.device == options.device) {
      is_compiled = true;
      if (instance.tensor_parallel == options.tensor_parallel &&
          instance.has_adapters == (options.lora != 0)) {
        return instance;
      }
    }
  }
  std::string lacks = " is not compiled in";
  if (is_compiled) {
    lacks += options.lora != 0
                 ? " with adapters, which --lora needs"
                 : octavo::message(" for --tensor-parallel ", options.tensor_parallel);
  }
  throw octavo::ConfigError(octavo::message(
      "model ", options.model, " in ", options.precision, " on ", options.device, lacks, "; ",
      detail::build_again(app, options.device, detail::build_options(app, options))));
}

/// Returns a text that identifies the weights in a folder by their checksums.
inline std::string digests_of(const std::filesystem::path& folder) {
  if (folder.empty()) return {};
  std::map<std::string, octavo::FileDigest> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    files[entry.path().filename().string()] = octavo::digest_of_file(entry.path());
  }
  std::string text;
  for (const auto& [name, digest] : files) {
    text += octavo::message(name, ": ", digest.bytes, " bytes, CRC-32C ", digest.checksum, ' ');
  }
  return text;
}

}  // namespace trainer
