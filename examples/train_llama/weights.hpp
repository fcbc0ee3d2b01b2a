// The weights that a run begins with, and those that it writes.
#pragma once

#include <common/text.hpp>
#include <common/tokenizer.hpp>
#include <octavo/checkpoint/adapters.hpp>
#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/peft_adapters.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>
#include <train_llama/ranks.hpp>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>

namespace trainer {

/// Writes the weights for --save-hf and --save-adapters. All ranks must call it.
inline void save_weights(octavo::TrainingSession& session, const Options& options,
                         const Instance& instance, const Ranks& ranks) {
  if (!options.save_adapters.empty()) {
    octavo::save_adapters(session, instance.shape, options.save_adapters, options.load_hf,
                          ranks.is_first());
    fmt::print("adapters | written to {}\n", programs::visible(options.save_adapters));
  }
  if (options.save_hf.empty()) return;
  octavo::ModelDescription model = instance.shape;
  if (model.positions == 0) model.positions = options.sequence_length;
  if (!options.load_hf.empty()) {
    model =
        octavo::read_hugging_face_config(std::filesystem::path(options.load_hf) / "config.json");
  }
  octavo::HuggingFaceOptions folder;
  folder.tokenizer_of = options.load_hf;
  const std::string& tokenizer = options.chats.tokenizer;
  if (options.load_hf.empty() && tokenizer != "bytes") folder.tokenizer_of = tokenizer;
  octavo::save_hugging_face(session, model, options.save_hf, folder, ranks.is_first());
  fmt::print("weights | written to {}\n", programs::visible(options.save_hf));
  if (!ranks.is_first()) return;
  const std::string note = programs::note_of_no_tokenizer(options.save_hf, model.vocabulary);
  if (!note.empty()) fmt::print("weights | {}\n", note);
}

/// Warns if adapters are used with weights other than those that they were trained with, as far as
/// this is known.
inline void warn_of_base(const Options& options, bool begins) {
  namespace fs = std::filesystem;
  if (options.load_hf.empty()) {
    programs::print_stderr(
        "{}: warning: without --model hf:FOLDER, the base model of the adapters has the random "
        "weights of --seed {}\n",
        program().name, options.seed);
  }
  if (options.load_adapters.empty() || !begins) return;
  const octavo::PeftConfig config =
      octavo::read_peft_config(fs::path(options.load_adapters) / octavo::detail::peft_config_name);
  if (config.base_model.empty() ||
      fs::weakly_canonical(config.base_model) == fs::weakly_canonical(options.load_hf)) {
    return;
  }
  programs::print_stderr(
      "{}: warning: {} names '{}' as the base model of its adapters, but --model is '{}'; adapters "
      "do not fit other weights, or weights that already include them\n",
      program().name, programs::visible(options.load_adapters),
      programs::visible(config.base_model),
      programs::visible(options.load_hf.empty() ? options.model : "hf:" + options.load_hf));
}

/// Warns if the weights of a folder are trained further at the learning rate of new models, because
/// --learning-rate is not set.
inline void warn_of_learning_rate(const CLI::App& app, const Options& options) {
  constexpr double common_limit = 1e-4;  // of training all weights of a trained model further
  if (options.load_hf.empty() || options.lora != 0 || options.learning_rate <= common_limit ||
      app.count("--learning-rate") != 0) {
    return;
  }
  programs::print_stderr(
      "{}: warning: --learning-rate is {:g} by default, which is for new models and may damage the "
      "trained weights of hf:{}; pass a smaller one, such as 2e-5\n",
      program().name, options.learning_rate, programs::visible(options.load_hf));
}

}  // namespace trainer
