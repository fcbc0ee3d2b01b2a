/// @file
/// Folders of adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <octavo/io/float_elements.hpp>
#include <octavo/io/folder.hpp>
#include <octavo/io/hugging_face_weights.hpp>
#include <octavo/io/hugging_face_writer.hpp>
#include <octavo/io/peft_config.hpp>
#include <octavo/io/safetensors.hpp>
#include <octavo/models/adapter_tensors.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace octavo OCTAVO_ABI {

namespace detail {

inline constexpr const char* peft_config_name = "adapter_config.json";
inline constexpr const char* peft_weights_name = "adapter_model.safetensors";

/// Returns the tensors of all adapters, by parameter.
inline std::map<std::string, std::vector<HuggingFaceTensor>> peft_tensors(
    const ModelDescription& model, const LoraOptions& options) {
  std::map<std::string, std::vector<HuggingFaceTensor>> tensors;
  for (AdaptedTensor& adapted : adapted_tensors(model, options)) {
    tensors[adapted.a.parameter].push_back(std::move(adapted.a));
    tensors[adapted.b.parameter].push_back(std::move(adapted.b));
  }
  return tensors;
}

}  // namespace detail

/// Reads the adapters in a folder. The constructor checks that the file has exactly the tensors of
/// adapter_config.json, with their shapes and in readable formats.
class PeftAdapters {
 public:
  /// @param model  the model of the adapters
  /// @throws IoError      for a file that is missing, damaged or cannot be read
  /// @throws ConfigError  for unsupported adapters (see read_peft_config), or naming a tensor that
  ///                      is missing, unexpected, of another shape, or not a 16-bit or 32-bit float
  PeftAdapters(const std::filesystem::path& folder, const ModelDescription& model)
      : config_(read_peft_config(folder / detail::peft_config_name)),
        tensors_(detail::peft_tensors(model, config_.lora)),
        file_(folder / detail::peft_weights_name) {
    const std::string place = file_.path().string();
    for (const SafetensorsEntry& entry : file_.tensors()) entries_[entry.name] = &entry;
    std::set<std::string> known;
    for (const auto& [parameter, tensors] : tensors_) {
      for (const HuggingFaceTensor& tensor : tensors) {
        known.insert(tensor.name);
        const auto found = entries_.find(tensor.name);
        require<ConfigError>(found != entries_.end(), place, ": has no tensor ", tensor.name,
                             ", which adapter_config.json requires");
        const SafetensorsEntry& entry = *found->second;
        require<ConfigError>(entry.shape == tensor.shape(), place, ": tensor ", tensor.name, " is ",
                             detail::shape_of(entry.shape), ", but an adapter of rank ",
                             config_.lora.rank, " of this model has ",
                             detail::shape_of(tensor.shape()));
        require<ConfigError>(is_float_dtype(entry.dtype), place, ": tensor ", tensor.name,
                             " is in ", entry.dtype, "; convert it to BF16, F16 or F32");
      }
    }
    for (const auto& [name, entry] : entries_) {
      require<ConfigError>(known.contains(name), place, ": has the tensor ", name,
                           ", which adapter_config.json does not list");
    }
  }

  [[nodiscard]] const PeftConfig& config() const { return config_; }

  /// Reads elements of a parameter, row-major, from `begin` on.
  /// @param parameter  such as "blocks.0.qkv.lora_A"
  /// @throws IoError      if the file cannot be read
  /// @throws ConfigError  for a parameter that does not belong to an adapter
  void read(const std::string& parameter, Index begin, std::span<float> values) const {
    const auto found = tensors_.find(parameter);
    require<ConfigError>(found != tensors_.end(), file_.path().string(), ": has no tensor of ",
                         parameter);
    std::vector<std::byte> bytes;
    for (const HuggingFaceTensor& tensor : found->second) {
      const detail::TensorPiece piece = detail::piece_of(tensor, begin, values.size());
      if (piece.count == 0) continue;
      const SafetensorsEntry& entry = *entries_.at(tensor.name);
      const std::uint64_t size = safetensors_bits(entry.dtype) / 8;
      const auto count = static_cast<std::size_t>(piece.count);
      bytes.resize(count * size);
      file_.read(entry, static_cast<std::uint64_t>(piece.begin) * size, bytes);
      to_floats(entry.dtype, bytes, values.subspan(piece.place, count));
    }
  }

 private:
  PeftConfig config_;
  std::map<std::string, std::vector<HuggingFaceTensor>> tensors_;
  SafetensorsFile file_;
  std::map<std::string, const SafetensorsEntry*> entries_;
};

/// Writes a folder of adapters atomically: `commit` creates it by a rename.
class PeftWriter {
 public:
  /// @param folder  must not exist, or must be empty
  /// @param dtype   of all tensors: "F32" or "BF16"
  /// @throws IoError  if the folder has files, or cannot be written
  PeftWriter(const std::filesystem::path& folder, const ModelDescription& model,
             const PeftConfig& config, std::string dtype)
      : dtype_(std::move(dtype)), tensors_(detail::peft_tensors(model, config.lora)) {
    HuggingFaceWriter::require_free(folder);
    target_ = std::filesystem::weakly_canonical(std::filesystem::absolute(folder));
    if (!target_.has_filename()) target_ = target_.parent_path();
    std::error_code error;
    std::filesystem::create_directories(target_.parent_path(), error);
    temporary_ =
        detail::create_temporary_folder(target_.parent_path(), target_.filename().string());
    if (!temporary_) detail::writing_failed(folder, errno);
    std::vector<SafetensorsEntry> entries;
    for (const auto& [parameter, tensors] : tensors_) {
      for (const HuggingFaceTensor& tensor : tensors) {
        entries.push_back({tensor.name, dtype_, tensor.shape()});
      }
    }
    file_.emplace(temporary_.path() / detail::peft_weights_name, std::move(entries));
    write_file_atomically(temporary_.path() / detail::peft_config_name, peft_config(config));
  }
  PeftWriter(const PeftWriter&) = delete;
  PeftWriter& operator=(const PeftWriter&) = delete;

  /// Writes elements of a parameter, row-major, from `begin` on. Each must be written once.
  void write(const std::string& parameter, Index begin, std::span<const float> values) {
    const std::uint64_t size = safetensors_bits(dtype_) / 8;
    std::vector<std::byte> bytes;
    for (const HuggingFaceTensor& tensor : tensors_.at(parameter)) {
      const detail::TensorPiece piece = detail::piece_of(tensor, begin, values.size());
      if (piece.count == 0) continue;
      const auto count = static_cast<std::size_t>(piece.count);
      bytes.resize(count * size);
      from_floats(dtype_, values.subspan(piece.place, count), bytes);
      file_->write(tensor.name, static_cast<std::uint64_t>(piece.begin) * size, bytes);
    }
  }

  /// Renames the folder to its path. Must be the last call.
  void commit() {
    file_->commit();
    file_.reset();
    commit_folder(temporary_.path(), target_);
    temporary_.release();
  }

 private:
  std::string dtype_;
  std::map<std::string, std::vector<HuggingFaceTensor>> tensors_;
  std::filesystem::path target_;
  detail::Temporary temporary_;  ///< next to the target, until `commit`
  std::optional<SafetensorsWriter> file_;
};

}  // namespace octavo
