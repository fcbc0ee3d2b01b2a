// Which of the models that were compiled in a program runs, and on what.
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
#include <train_llama/registry.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace trainer {

/// What programs that run models have in common.
struct ModelChoice {
  std::string model = "llama_tiny";
  /// The folder of --model hf:FOLDER, once `model` is the preset of its shape.
  std::string load_hf{};
  std::string precision = "fp8-delayed";
  std::string device = "cpu";
  int threads = 0;
  int gpu = 0;

  octavo::Index lora = 0;  ///< the rank of adapters; 0: there are none
  int tensor_parallel = 1;
  int comm_timeout = 600;
};

inline constexpr const char* model_group = "Model";
inline constexpr const char* ranks_group = "Ranks (mpirun and other launchers start them)";

namespace detail {

/// The distinct texts that `text_of` makes of instances; "" is none.
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

/// The distinct values of a field of all instances.
inline std::vector<std::string> compiled(std::string Instance::*field) {
  return distinct([field](const Instance& instance) { return instance.*field; });
}

}  // namespace detail

/// Declares the flags of the model and its device.
inline void declare_model(CLI::App& app, ModelChoice& choice) {
  using namespace programs;
  const auto add = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->group(model_group);
  };
  add("--model", choice.model,
      "preset: " + joined(detail::compiled(&Instance::model)) +
          "; or hf:FOLDER: the one of that Hugging Face model's shape, and its weights")
      ->capture_default_str();
  add("--precision", choice.precision, joined(detail::compiled(&Instance::precision)))
      ->capture_default_str();
  add("--device", choice.device, joined(detail::compiled(&Instance::device)))
      ->capture_default_str();
  // Without a default, which would stand in every run's config.toml and not fit the other device.
  add("--threads", choice.threads, "threads of the cpu device; all unless said")
      ->check(not_negative_whole());
  add("--gpu", choice.gpu, "number of the GPU of the cuda device; 0 unless said")
      ->check(not_negative_whole());
}

/// Declares the flags of ranks that are the same whatever they do.
inline void declare_ranks(CLI::App& app, ModelChoice& choice) {
  app.get_option("--gpu")->description(
      "number of the GPU of the cuda device; that of the rank on its host unless said");
  app.add_option("--tensor-parallel", choice.tensor_parallel,
                 "ranks that share each layer, neighbours")
      ->group(ranks_group)
      ->capture_default_str()
      ->check(programs::at_least_one());
  app.add_option("--comm-timeout", choice.comm_timeout,
                 "seconds that ranks wait for each other before the run ends with an error")
      ->group(ranks_group)
      ->capture_default_str()
      ->check(programs::at_least_one());
}

namespace detail {

/// The file that --config names; null where a program has no such flag.
inline const programs::FlagsFile* flags_file(const CLI::App& app) {
  return dynamic_cast<const programs::FlagsFile*>(app.get_config_formatter().get());
}

/// Where a flag was given its value: "c.toml:3: ", or "" for the command line.
inline std::string place_of(const CLI::App& app, const std::string& flag) {
  const CLI::Option* option = app.get_option(flag);
  const programs::FlagsFile* file = flags_file(app);
  if (option->count() == 0 || file == nullptr) return "";
  return file->place_of(option->get_single_name(), option->results().back());
}

/// A flag that chooses of what was compiled in, and the words that it can have, compiled in or not.
struct Choice {
  const char* flag;
  std::string Instance::*field;
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
  std::apply([&](auto... named) { (names.emplace_back(named.name), ...); },
             octavo::named_precisions);
  return {"--precision", &Instance::precision, options.precision, std::move(names)};
}

inline Choice model_choice(const ModelChoice& options) {
  return {"--model", &Instance::model, options.model, programs::preset_names()};
}

/// The beginning of a message about a flag's value: "--device: ", or "c.toml:3: device: "; "model "
/// of one that a checkpoint gave.
inline std::string prefix_of(const CLI::App& app, const std::string& flag,
                             const std::string& value) {
  const bool is_default = app.get_option(flag)->get_default_str() == value;
  if (app.count(flag) == 0 && !is_default) return programs::without_dashes(flag) + ' ';
  const std::string place = place_of(app, flag);
  return place.empty() ? flag + ": " : place + programs::without_dashes(flag) + ": ";
}

/// @throws ConfigError  if a word is none that the flag can have
inline void require_known(const CLI::App& app, const Choice& choice) {
  const std::vector<std::string> here = compiled(choice.field);
  std::error_code error;
  const bool is_folder =
      choice.field == &Instance::model &&
      std::filesystem::exists(std::filesystem::path(choice.value) / "config.json", error);
  octavo::require<octavo::ConfigError>(
      is_among(here, choice.value) || is_among(choice.all, choice.value),
      prefix_of(app, choice.flag, choice.value),
      programs::none_of(choice.value, here, is_folder ? std::vector<std::string>{} : choice.all),
      is_folder ? "; write hf:" + choice.value : "");
}

/// How to build the program again with options that it lacks. Lists keep what they have.
inline std::string build_again(const CLI::App& app, const std::string& device,
                               const std::string& options) {
  const std::string folder = device == "cuda" ? "build/quickstart-cuda" : "build/quickstart";
  return "build again: cmake BUILD_FOLDER " + options + " && cmake --build BUILD_FOLDER --target " +
         app.get_name() + " (quickstart's is " + folder + ")";
}

/// Whether a model is one of the library's presets, and none of OCTAVO_MODELS.
inline bool is_preset(const std::string& model) {
  return is_among(programs::preset_names(), model);
}

/// Whether a model is a GPT-2, compiled in or not.
inline bool is_gpt2(const std::string& model) {
  std::vector<programs::NamedShape> known = programs::presets();
  for (const Instance& instance : instances()) known.push_back({instance.model, instance.shape});
  return std::ranges::any_of(known, [&](const programs::NamedShape& one) {
    return one.name == model && one.shape.family == octavo::ModelFamily::gpt2;
  });
}

/// The build's option that adds a value to a list of the device's, which have CUDA in their names
/// for the `cuda` device; "" where the list has it.
inline std::string option_of_list(const std::string& list, std::string Instance::*field,
                                  const std::string& device, const std::string& value) {
  // Models of OCTAVO_MODELS are there anyhow.
  const std::vector<std::string> here = distinct([&](const Instance& instance) -> std::string {
    const bool is_listed = field != &Instance::model || is_preset(instance.model);
    return instance.device == device && is_listed ? instance.*field : "";
  });
  if (is_among(here, value)) return "";
  return programs::build_list((device == octavo::Cuda::name ? "OCTAVO_CUDA_" : "OCTAVO_") + list,
                              here, value);
}

/// What a flag was given, which not every program has; "": nothing.
inline std::string given_to(const CLI::App& app, const char* flag) {
  const CLI::Option* option = app.get_option_no_throw(flag);
  return option == nullptr || option->count() == 0 ? "" : option->results().back();
}

/// Whether a launcher started several ranks, or flags ask for some.
inline bool is_for_ranks(const CLI::App& app, const ModelChoice& choice) {
  return choice.tensor_parallel > 1 || !given_to(app, "--zero").empty() ||
         octavo::read_launch().size > 1;
}

/// The option that adds a model to those with adapters.
inline std::string build_option_of_adapters(const ModelChoice& choice) {
  const auto here = distinct([](const Instance& instance) -> std::string {
    return instance.has_adapters ? instance.model + ':' + instance.precision : "";
  });
  return programs::build_list("OCTAVO_LORA", here, choice.model + ':' + choice.precision);
}

/// The option that adds a model to those that ranks share.
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

/// The option that NCCL needs, if the program lacks it; else "".
inline std::string build_option_of_nccl(const CLI::App& app, const ModelChoice& choice) {
#if defined(OCTAVO_PROGRAM_HAS_NCCL)
  constexpr bool has_nccl = true;
#else
  constexpr bool has_nccl = false;
#endif
  const bool on_gpu = choice.device == octavo::Cuda::name;
  return on_gpu && !has_nccl && is_for_ranks(app, choice) ? "-DOCTAVO_NCCL=ON" : "";
}

/// The option that --reduce needs, if the program lacks it; else "".
inline std::string build_option_of_reduction(const CLI::App& app) {
  const std::string reduce = given_to(app, "--reduce");
  if (reduce.empty() || is_among(reductions, reduce)) return "";
  return programs::build_list("OCTAVO_REDUCE", reductions, reduce);
}

inline std::string spaced(std::vector<std::string> options) {
  std::erase(options, "");
  std::string text;
  for (const std::string& option : options) text += (text.empty() ? "" : " ") + option;
  return text;
}

/// All options of the build that a choice lacks: with them it runs.
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

/// How to build the program with the shape of a folder: in a build folder that has this model
/// alone, in one precision, so that nothing else is compiled and no other build changes.
inline std::string build_folder_of(const CLI::App& app, const ModelChoice& choice) {
  const bool on_gpu = choice.device == octavo::Cuda::name;
  const std::string model = "my_model";
  const std::string entry = model + ':' + choice.precision;
  const std::string lists =
      spaced({"-DOCTAVO_MODELS=" + model + ':' +
                  std::filesystem::absolute(choice.load_hf).lexically_normal().string(),
              "-DOCTAVO_PRESETS=",
              on_gpu ? "-DOCTAVO_PRECISIONS= -DOCTAVO_CUDA_PRESETS= -DOCTAVO_CUDA_PRECISIONS=" +
                           choice.precision
                     : "-DOCTAVO_PRECISIONS=" + choice.precision,
              build_option_of_nccl(app, choice), choice.lora == 0 ? "" : "-DOCTAVO_LORA=" + entry,
              choice.tensor_parallel == 1 ? ""
                                          : octavo::message("-DOCTAVO_TENSOR_PARALLEL=", entry, ':',
                                                            choice.tensor_parallel),
              build_option_of_reduction(app)});
  return octavo::message("build it, in Octavo's folder: cmake --preset quickstart",
                         on_gpu ? "-cuda" : "", " -B build/", model, ' ', lists,
                         " && cmake --build build/", model, " --target ", app.get_name());
}

/// @throws ConfigError  if no build has the choice
inline void require_possible(const ModelChoice& options, bool is_gpt2) {
  octavo::require<octavo::ConfigError>(
      options.device != octavo::Cuda::name || options.precision != "mxfp8",
      "no GPU that Octavo serves multiplies the blocks of mxfp8; choose --precision fp8-blockwise, "
      "or --device cpu");
  octavo::require<octavo::ConfigError>(options.lora == 0 || !is_gpt2,
                                       "--lora does not support GPT-2; leave it out");
  octavo::require<octavo::ConfigError>(
      options.tensor_parallel == 1 || !is_gpt2, "--tensor-parallel ", options.tensor_parallel,
      ": ranks do not share the layers of a GPT-2; leave it out, and each has batches of its own");
}

/// @throws ConfigError  if no instance has the choice
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
  std::vector<std::string> fewest;
  std::string nearest;
  for (const Instance& instance : instances()) {
    std::vector<std::string> all = octavo::differences(shape, instance.shape);
    if (!nearest.empty() && all.size() >= fewest.size()) continue;
    fewest = std::move(all);
    nearest = instance.model;
  }
  if (nearest.empty() || fewest.size() > most_differences) return "";
  return " (nearest is " + nearest + ", but the folder's " + programs::joined(fewest) + ')';
}

}  // namespace detail

/// Throws if there is no such device or precision, or a flag is for another device.
/// @throws ConfigError  saying what to change
inline void require_device_flags(const CLI::App& app, const ModelChoice& options) {
  // Of a device that there is not no flag can be wrong.
  detail::require_known(app, detail::device_choice(options));
  detail::require_known(app, detail::precision_choice(options));
  const auto place_of = [&](const char* flag) { return detail::place_of(app, flag); };
  programs::require_device(app, options.device, octavo::Cpu::name, {"--threads"}, place_of);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gpu"}, place_of);
}

/// Where the weights come from, if --model names a Hugging Face folder: finds the preset of its
/// shape, which `options.model` becomes.
/// @throws ConfigError, IoError  if its config.json cannot be read, or no preset has its shape; if
///                               there is no such model
inline void find_preset_of_folder(const CLI::App& app, ModelChoice& options) {
  constexpr std::string_view prefix = "hf:";
  if (!options.model.starts_with(prefix)) {
    detail::require_known(app, detail::model_choice(options));
    return;
  }
  options.load_hf = options.model.substr(prefix.size());
  const std::string given = detail::place_of(app, "--model") + "--model " + options.model;
  const char* const advice = "give hf: and the folder of a Hugging Face model";
  octavo::require<octavo::ConfigError>(!options.load_hf.empty(), given, " names no folder; ",
                                       advice);
  programs::require_folder(given, options.load_hf, advice);
  const std::filesystem::path folder = options.load_hf;
  octavo::require<octavo::ConfigError>(
      std::filesystem::exists(folder / "config.json") ||
          !std::filesystem::exists(folder / octavo::detail::peft_config_name),
      options.load_hf,
      " has adapters of PEFT and no model; name the model that they are for, and "
      "load them with --lora and --load-adapters, or name the folder of --save-hf");
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
  detail::require_possible(options, shape.family == octavo::ModelFamily::gpt2);
  ModelChoice wanted = options;
  wanted.model.clear();
  for (const programs::NamedShape& preset : programs::presets()) {
    if (fits(preset.shape)) wanted.model = preset.name;
  }
  throw octavo::ConfigError(octavo::message(
      detail::place_of(app, "--model"), "--model ", prefix, options.load_hf,
      ": no preset that is compiled in has its shape",
      wanted.model.empty() ? detail::difference_from_nearest(shape) : "", "; ",
      wanted.model.empty()
          ? detail::build_folder_of(app, options)
          : detail::build_again(app, options.device, detail::build_options(app, wanted))));
}

/// The instance that the options name.
/// @throws ConfigError  saying what was compiled in, and how the rest can be
inline const Instance& find_instance(const CLI::App& app, const ModelChoice& options) {
  const std::array<detail::Choice, 3> choices{{detail::device_choice(options),
                                               detail::model_choice(options),
                                               detail::precision_choice(options)}};
  for (const detail::Choice& choice : choices) detail::require_known(app, choice);
  detail::require_possible(options, detail::is_gpt2(options.model));
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
                 ? " with adapters, which --lora adds"
                 : octavo::message(" for --tensor-parallel ", options.tensor_parallel);
  }
  throw octavo::ConfigError(octavo::message(
      "model ", options.model, " in ", options.precision, " on ", options.device, lacks, "; ",
      detail::build_again(app, options.device, detail::build_options(app, options))));
}

/// What tells the weights in a folder from others.
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
