/// @file
/// A session's weights from a Hugging Face folder, and to one.
#pragma once

#include <octavo/io/hugging_face_weights.hpp>
#include <octavo/io/hugging_face_writer.hpp>
#include <octavo/train/all_or_none.hpp>
#include <octavo/train/merged_adapters.hpp>
#include <octavo/train/training_session.hpp>

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

/// @tparam Session  such as TrainingSession
/// @throws UsageError  naming a parameter that the session's model and this one have not alike
template <class Session>
void require_parameters_of(const Session& session, const ModelDescription& model) {
  std::map<std::string, Index> elements;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(model)) {
    elements[tensor.parameter] += tensor.rows * tensor.columns;
  }
  const auto differ = [&](const std::string& name) {
    throw UsageError(message("a session of ", session.facts().name, " has another ", name,
                             " than the model that is named, ",
                             model_family_names[static_cast<std::size_t>(model.family)],
                             "; name its own, such as description_of(llama3_8b); models of other "
                             "parts have no Hugging Face names"));
  };
  for (const WeightInfo& weight : session.weights()) {
    if (weight.is_adapter) continue;
    const auto found = elements.find(weight.name);
    if (found == elements.end() || found->second != weight.rows * weight.columns) {
      differ(weight.name);
    }
    elements.erase(found);
  }
  if (!elements.empty()) differ(elements.begin()->first);
}

/// The weights of a folder, once all that says what they are is found right: see
/// `load_hugging_face`.
template <class Session>
HuggingFaceWeights open_weights(const Session& session, const ModelDescription& model,
                                const std::filesystem::path& folder) {
  require_parameters_of(session, model);
  const std::filesystem::path config = folder / "config.json";
  const std::vector<std::string> differing = differences(read_hugging_face_config(config), model);
  std::string text;
  for (const std::string& difference : differing) text += (text.empty() ? "" : "; ") + difference;
  require<ConfigError>(differing.empty(), config.string(), ": is of another model than ",
                       session.facts().name, ": ", text);
  return {folder, model};
}

}  // namespace detail

/// Sets all weights of a session but adapters, and their masters, to those of a Hugging Face
/// folder. Files are read a piece at a time, and by each rank what it has; nothing is set before
/// config.json and the headers of all files were found right. With several ranks each of them calls
/// it.
/// @param session  of a model that is `model`, such as `description_of(llama3_8b)`
/// @throws UsageError   if the session's model is another one
/// @throws ConfigError  if config.json is of another model, naming each difference; tensors are
///                      missing, too many or misshapen; or a weight is not finite: then those
///                      before it are set
/// @throws IoError      for files that are missing, damaged or cannot be read
inline void load_hugging_face(TrainingSession& session, const ModelDescription& model,
                              const std::filesystem::path& folder) {
  const HuggingFaceWeights weights = detail::open_weights(session, model, folder);
  for (const WeightInfo& weight : session.weights()) {
    if (weight.is_adapter) continue;
    session.set_weight(weight.name, [&](Index begin, std::span<float> values) {
      weights.read(weight.name, begin, values);
    });
  }
}

/// Writes the weights of a session as a Hugging Face folder that transformers opens: config.json
/// and model.safetensors, or several files and their index. Weights have the format that the
/// session stores them in; those beside which there are adapters are W + alpha / rank · B · A,
/// rounded once. The folder appears whole or not at all. With several ranks all of them
/// call it, and one writes.
/// @param model   that the session's is, and the tokens and positions that config.json is to say
/// @param writes  whether this rank writes the folder
/// @throws IoError      if the folder has files already, or cannot be written; on ranks that do not
///                      write ConfigError
/// @throws UsageError   if the session's model is another one
inline void save_hugging_face(TrainingSession& session, const ModelDescription& model,
                              const std::filesystem::path& folder,
                              const HuggingFaceOptions& options = {}, bool writes = true) {
  std::optional<HuggingFaceWriter> writer;
  std::optional<detail::MergedAdapters> adapters;
  detail::all_or_none(session, "begin of written weights", [&] {
    detail::require_parameters_of(session, model);
    const std::string format = session.weights().front().format;
    const std::optional<LoraOptions> lora = session.lora();
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
  // A rank whose disk fails helps the others until all have come to the end.
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
  session.read_weights_sync(writes ? WeightSink(try_to_write) : WeightSink());
  detail::all_or_none(session, "end of written weights", [&] {
    if (failure != nullptr) std::rethrow_exception(failure);
    if (writes) writer->commit();
    return std::string();
  });
}

}  // namespace octavo
