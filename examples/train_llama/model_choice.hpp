// Which of the models that were compiled in a program runs, and on what.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flags_file.hpp>
#include <common/paths.hpp>
#include <common/presets.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/peft_adapters.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <train_llama/registry.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
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

/// The words of `all` that one of the flags can have, whether they were compiled in or not.
struct Choice {
  const char* flag;
  std::string Instance::*field;
  const std::string& value;
  std::vector<std::string> all;
};

/// How to build the trainer with what it lacks.
inline std::string build_again(const std::string& device, const std::string& options) {
  const std::string folder = device == "cuda" ? "build/quickstart-cuda" : "build/quickstart";
  return "build again: cmake BUILD_FOLDER " + options +
         " && cmake --build BUILD_FOLDER (quickstart's is " + folder + ")";
}

/// Whether a model is one of the library's presets, and none of OCTAVO_MODELS.
inline bool is_preset(const std::string& model) {
  const std::vector<std::string> presets = programs::preset_names();
  return std::find(presets.begin(), presets.end(), model) != presets.end();
}

/// The build's option with the value, beside what is compiled in for the device: with CUDA in its
/// name for the `cuda` device.
inline std::string build_option(const std::string& device, const std::string& flag,
                                const std::string& value) {
  if (flag == "--device") return "-DOCTAVO_CUDA=ON";
  const bool is_model = flag == "--model";
  // Models of OCTAVO_MODELS are there anyhow.
  const std::vector<std::string> here = distinct([&](const Instance& instance) -> std::string {
    if (instance.device != device || (is_model && !is_preset(instance.model))) return "";
    return is_model ? instance.model : instance.precision;
  });
  const std::string list = is_model ? "PRESETS" : "PRECISIONS";
  return programs::build_list((device == "cuda" ? "OCTAVO_CUDA_" : "OCTAVO_") + list, here, value);
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

/// @throws ConfigError  if no instance has the choice
inline void require_compiled(const CLI::App& app, const Choice& choice, const std::string& device) {
  const std::vector<std::string> here = compiled(choice.field);
  const auto among = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (among(here, choice.value)) return;
  const std::string flag = choice.flag;
  const bool exists = among(choice.all, choice.value);
  const std::string meant = exists ? choice.value : programs::nearest(choice.value, choice.all);
  const std::string place = place_of(app, flag);
  std::string text = place.empty() ? flag + ": " : place + programs::without_dashes(flag) + ": ";
  if (!exists) text += programs::none_of(choice.value, here, choice.all);
  if (exists || (!meant.empty() && !among(here, meant))) {
    const std::string& wanted = flag == "--device" ? meant : device;
    text += octavo::message(exists ? "" : " ", "'", meant,
                            "' is not compiled in, only: ", programs::joined(here), "; ",
                            build_again(wanted, build_option(wanted, flag, meant)));
  }
  throw octavo::ConfigError(text);
}

}  // namespace detail

/// Throws if there is no such device, or a flag is for another.
/// @throws ConfigError  saying what to change
inline void require_device_flags(const CLI::App& app, const ModelChoice& options) {
  // Of a device that there is not no flag can be wrong.
  const std::vector<std::string> devices{octavo::Cpu::name, octavo::Cuda::name};
  if (std::find(devices.begin(), devices.end(), options.device) == devices.end()) {
    detail::require_compiled(app, {"--device", &Instance::device, options.device, devices},
                             options.device);
  }
  const auto place_of = [&](const char* flag) { return detail::place_of(app, flag); };
  programs::require_device(app, options.device, octavo::Cpu::name, {"--threads"}, place_of);
  programs::require_device(app, options.device, octavo::Cuda::name, {"--gpu"}, place_of);
}

/// Where the weights come from, if --model names a Hugging Face folder: finds the preset of its
/// shape, which `options.model` becomes.
/// @throws ConfigError, IoError  if its config.json cannot be read, or no preset has its shape
inline void find_preset_of_folder(const CLI::App& app, ModelChoice& options) {
  constexpr std::string_view prefix = "hf:";
  if (!options.model.starts_with(prefix)) return;
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
  const bool on_gpu = options.device == octavo::Cuda::name;
  std::string build = "-DOCTAVO_MODELS=my_model:" +
                      std::filesystem::absolute(options.load_hf).lexically_normal().string();
  for (const programs::NamedShape& preset : programs::presets()) {
    if (fits(preset.shape)) build = detail::build_option(options.device, "--model", preset.name);
  }
  const std::vector<std::string> others = detail::distinct([](const Instance& instance) {
    return detail::is_preset(instance.model) ? std::string() : instance.model;
  });
  const bool is_list = build.starts_with("-DOCTAVO_MODELS=") && !others.empty();
  throw octavo::ConfigError(octavo::message(
      detail::place_of(app, "--model"), "--model ", prefix, options.load_hf,
      ": no preset that is compiled in has its shape; ",
      detail::build_again(on_gpu ? "cuda" : "cpu", build),
      is_list ? "; name the other models of folders there, too, or they are gone: " +
                    programs::joined(others)
              : ""));
}

/// The instance that the options name.
/// @throws ConfigError  saying what was compiled in, and how the rest can be
inline const Instance& find_instance(const CLI::App& app, const ModelChoice& options) {
  std::vector<std::string> precisions;
  std::apply([&](auto... named) { (precisions.emplace_back(named.name), ...); },
             octavo::named_precisions);
  detail::require_compiled(app, {"--device", &Instance::device, options.device, {"cpu", "cuda"}},
                           options.device);
  detail::require_compiled(
      app, {"--model", &Instance::model, options.model, programs::preset_names()}, options.device);
  detail::require_compiled(
      app, {"--precision", &Instance::precision, options.precision, precisions}, options.device);
  bool is_compiled = false;
  const octavo::ModelDescription* shape = nullptr;
  for (const Instance& instance : instances()) {
    if (instance.model == options.model && instance.precision == options.precision &&
        instance.device == options.device) {
      is_compiled = true;
      shape = &instance.shape;
      if (instance.tensor_parallel == options.tensor_parallel &&
          instance.has_adapters == (options.lora != 0)) {
        return instance;
      }
    }
  }
  octavo::require<octavo::ConfigError>(
      options.lora == 0 || shape == nullptr || shape->family != octavo::ModelFamily::gpt2,
      "--lora: a GPT-2 has no adapters here; leave it out");
  octavo::require<octavo::ConfigError>(
      !is_compiled || options.lora == 0, "model ", options.model, " in ", options.precision, " on ",
      options.device, " is not compiled in with adapters, which --lora adds; ",
      detail::build_again(options.device, detail::build_option_of_adapters(options)));
  octavo::require<octavo::ConfigError>(
      !is_compiled, "model ", options.model, " in ", options.precision, " on ", options.device,
      " is not compiled in for --tensor-parallel ", options.tensor_parallel, "; ",
      detail::build_again(options.device, detail::build_option_of_shared(options)));
  octavo::require<octavo::ConfigError>(
      options.device != "cuda" || options.precision != "mxfp8",
      "no GPU that Octavo serves multiplies the blocks of mxfp8; choose --precision fp8-blockwise, "
      "or --device cpu");
  throw octavo::ConfigError(octavo::message(
      "model ", options.model, " in ", options.precision, " on ", options.device,
      " is not compiled in; ",
      detail::build_again(
          options.device,
          detail::build_option(options.device, "--model", options.model) + " " +
              detail::build_option(options.device, "--precision", options.precision))));
}

}  // namespace trainer
