/// @file
/// Loads a session's adapters from a PEFT folder, saves them to one, and merges them into weights.
#pragma once

#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/io/peft_adapters.hpp>

#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the session's adapters.
/// @throws UsageError  if it has none, or has a different model
inline LoraOptions require_adapters(TrainingSession& session, const ModelDescription& model) {
  const std::optional<LoraOptions> lora = session.facts().lora;
  require<UsageError>(lora.has_value(), "a session in precision ", session.facts().precision,
                      " has no adapters; create it for a model in precision Lora<…>");
  require_parameters_of(session.facts().name, session.weights().list(), model);
  return *lora;
}

}  // namespace detail

/// Sets all adapters of a session, and their masters, to those of a folder that PEFT or
/// `save_adapters` wrote. The folder is checked before any adapter is set. All ranks must call it.
/// @param session  of a model that is `model`, such as `description_of(llama3_8b)`
/// @throws UsageError   if the session has no adapters, or has a different model
/// @throws StateMismatchError  if the rank, alpha or layers of the adapters differ from the
///                             session's
/// @throws ConfigError  for adapters that Octavo does not support (see PeftAdapters), or for a
/// value that is not finite; in the latter case, preceding parameters are already set
/// @throws IoError      if files are missing, damaged or unreadable
inline void load_adapters(TrainingSession& session, const ModelDescription& model,
                          const std::filesystem::path& folder) {
  const LoraOptions lora = detail::require_adapters(session, model);
  const PeftAdapters adapters(folder, model);
  const LoraOptions& there = adapters.config().lora;
  if (there != lora) {
    throw StateMismatchError(
        message(folder.string(), ": its adapters have ", there.text(), ", but the session's have ",
                lora.text(), "; create the session with the same"),
        "session.lora", there.text());
  }
  for (const WeightInfo& weight : session.weights().list()) {
    if (!weight.is_adapter) continue;
    session.weights().set(weight.name, [&](Index begin, std::span<float> values) {
      adapters.read(weight.name, begin, values);
    });
  }
}

/// Writes the adapters of a session as a folder that PEFT can open: adapter_config.json and
/// adapter_model.safetensors, in the format in which the session stores them. The folder is created
/// completely or not at all. All ranks must call it, and one of them writes. To write a plain
/// Hugging Face folder with merged adapters, see save_hugging_face.
/// @param base_model  the folder or name of the base model, for PEFT; may be empty
/// @param writes      whether this rank writes the folder
/// @throws UsageError  if the session has no adapters, or has a different model
/// @throws IoError     if the folder has files already, or cannot be written
inline void save_adapters(TrainingSession& session, const ModelDescription& model,
                          const std::filesystem::path& folder, const std::string& base_model = {},
                          bool writes = true) {
  std::optional<PeftWriter> writer;
  detail::all_or_none(session, "begin of written adapters", [&] {
    const LoraOptions lora = detail::require_adapters(session, model);
    const std::string format = session.weights().list().front().format;
    const char* dtype = format == "bf16" ? "BF16" : "F32";
    if (writes) writer.emplace(folder, model, PeftConfig{lora, base_model}, dtype);
    return std::string();
  });
  // A rank whose disk fails still takes part in the exchanges until all ranks have finished.
  std::exception_ptr failure;
  const auto write = [&](const WeightInfo& weight, Index begin, std::span<const float> values) {
    if (failure != nullptr || !weight.is_adapter) return;
    try {
      writer->write(weight.name, begin, values);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  session.weights().read_sync(writes ? WeightSink(write) : WeightSink());
  detail::all_or_none(session, "end of written adapters", [&] {
    if (failure != nullptr) std::rethrow_exception(failure);
    if (writes) writer->commit();
    return std::string();
  });
}

}  // namespace octavo
