/// @file
/// Loads a session's weights from a Hugging Face folder, and saves them to one.
#pragma once

#include <octavo/checkpoint/all_or_none.hpp>
#include <octavo/io/hugging_face_weights.hpp>
#include <octavo/io/hugging_face_writer.hpp>
#include <octavo/session/merged_adapters.hpp>
#include <octavo/session/training_session.hpp>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// @param name     of the session's model
/// @param weights  all of its parameters
/// @throws UsageError  naming a parameter in which the session's model and this one differ
inline void require_parameters_of(const std::string& name, const std::vector<WeightInfo>& weights,
                                  const ModelDescription& model) {
  std::map<std::string, Index> elements;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(model)) {
    elements[tensor.parameter] += tensor.rows * tensor.columns;
  }
  const auto differ = [&](const std::string& parameter) {
    throw UsageError(message("a session of ", name, " has a different ", parameter,
                             " than the model that was passed, ", model.family->name,
                             "; pass the session's model, such as description_of(llama3_8b); "
                             "models of custom parts have no Hugging Face names"));
  };
  for (const WeightInfo& weight : weights) {
    if (weight.is_adapter) continue;
    const auto found = elements.find(weight.name);
    if (found == elements.end() || found->second != weight.rows * weight.columns) {
      differ(weight.name);
    }
    elements.erase(found);
  }
  if (!elements.empty()) differ(elements.begin()->first);
}

/// Returns the weights of a folder, after its description was checked: see `load_hugging_face`.
inline HuggingFaceWeights open_weights(const std::string& name,
                                       const std::vector<WeightInfo>& weights,
                                       const ModelDescription& model,
                                       const std::filesystem::path& folder) {
  require_parameters_of(name, weights, model);
  const std::filesystem::path config = folder / "config.json";
  const ModelDescription described = read_hugging_face_config(config);
  const std::vector<std::string> differing = differences(described, model);
  std::string text;
  for (const std::string& difference : differing) text += (text.empty() ? "" : "; ") + difference;
  require<ConfigError>(differing.empty(), config.string(), ": is of a different model than ", name,
                       ": ", text);
  return {folder, described};
}

}  // namespace detail

/// Sets all weights of a session except adapters, and their masters, to those of a Hugging Face
/// folder. Files are read in pieces, and each rank reads only its shards. config.json and the
/// headers of all files are checked before any weight is set. All ranks must call it.
/// @param session  of a model that is `model`, such as `description_of(llama3_8b)`
/// @throws UsageError   if the session has a different model
/// @throws ConfigError  if config.json describes a different model, naming each difference; if
/// tensors are missing, unknown or of the wrong shape; or if a weight is not finite: then the
/// weights before it are already set
/// @throws IoError      if files are missing, damaged or unreadable
inline void load_hugging_face(TrainingSession& session, const ModelDescription& model,
                              const std::filesystem::path& folder) {
  const HuggingFaceWeights weights =
      detail::open_weights(session.facts().name, session.weights().list(), model, folder);
  for (const WeightInfo& weight : session.weights().list()) {
    if (weight.is_adapter) continue;
    session.weights().set(weight.name, [&](Index begin, std::span<float> values) {
      weights.read(weight.name, begin, values);
    });
  }
}

/// Writes the weights of a session as a Hugging Face folder that transformers can open: config.json
/// and model.safetensors, or several files and their index. Weights keep the format in which the
/// session stores them. Weights that have adapters are written as W + alpha / rank · B · A, rounded
/// once. The folder is created completely or not at all. All ranks must call it, and one of them
/// writes.
/// @param model   the session's model, with the tokens and positions for config.json
/// @param writes  whether this rank writes the folder
/// @throws IoError      if the folder already has files, or cannot be written; ConfigError on ranks
///                      that do not write
/// @throws UsageError   if the session has a different model
inline void save_hugging_face(TrainingSession& session, const ModelDescription& model,
                              const std::filesystem::path& folder,
                              const HuggingFaceOptions& options = {}, bool writes = true) {
  std::optional<HuggingFaceWriter> writer;
  std::optional<detail::MergedAdapters> adapters;
  detail::all_or_none(session, "begin of written weights", [&] {
    detail::require_parameters_of(session.facts().name, session.weights().list(), model);
    const std::string format = session.weights().list().front().format;
    const std::optional<LoraOptions> lora = session.facts().lora;
    if (writes) writer.emplace(folder, model, format == "bf16" ? "BF16" : "F32", options);
    if (writes && lora.has_value()) adapters.emplace(model, *lora);
    return std::string();
  });
  std::vector<float> merged;
  const auto write = [&](const WeightInfo& weight, Index begin, std::span<const float> values) {
    if (!adapters.has_value()) return writer->write(weight.name, begin, values);
    if (weight.is_adapter) return adapters->take(weight.name, begin, values);  // before the others
    merged.assign(values.begin(), values.end());
    adapters->merge(weight.name, begin, merged);
    writer->write(weight.name, begin, merged);
  };
  // A rank whose disk fails still takes part in the exchanges until all ranks have finished.
  std::exception_ptr failure;
  const auto try_to_write = [&](const WeightInfo& weight, Index begin,
                                std::span<const float> values) {
    if (failure != nullptr) return;
    try {
      write(weight, begin, values);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  session.weights().read_sync(writes ? WeightSink(try_to_write) : WeightSink());
  detail::all_or_none(session, "end of written weights", [&] {
    if (failure != nullptr) std::rethrow_exception(failure);
    if (writes) writer->commit();
    return std::string();
  });
}

}  // namespace octavo
