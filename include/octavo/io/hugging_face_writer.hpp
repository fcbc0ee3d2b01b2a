/// @file
/// Writing a Hugging Face folder with a model's weights.
#pragma once

#include <octavo/io/float_elements.hpp>
#include <octavo/io/folder.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/safetensors.hpp>
#include <octavo/models/hugging_face_tensors.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// Options for writing a Hugging Face folder.
struct HuggingFaceOptions {
  std::uint64_t shard_bytes = 5'000'000'000;  ///< maximum size of the tensors in a file
  /// A folder whose tokenizer, chat template and generation settings are copied, or a tokenizer's
  /// file, which is copied as tokenizer.json or tokenizer.model; empty: none.
  std::filesystem::path tokenizer_of{};
};

namespace detail {

/// Files of a Hugging Face folder that do not depend on the weights.
inline constexpr std::array tokenizer_files{"tokenizer.json",
                                            "tokenizer.model",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "chat_template.jinja",
                                            "generation_config.json"};

}  // namespace detail

/// Writes a Hugging Face folder, config.json and weights, atomically: `commit` creates it by a
/// rename.
class HuggingFaceWriter {
 public:
  /// @param folder  must not exist, or must be empty
  /// @param dtype   of all tensors: "F32" or "BF16"
  /// @throws IoError  see `require_free`
  HuggingFaceWriter(const std::filesystem::path& folder, const ModelDescription& model,
                    std::string dtype, const HuggingFaceOptions& options = {})
      : folder_(folder), dtype_(std::move(dtype)) {
    require_free(folder);
    target_ = target_of(folder);
    std::error_code error;
    std::filesystem::create_directories(target_.parent_path(), error);
    temporary_ =
        detail::create_temporary_folder(target_.parent_path(), target_.filename().string());
    if (!temporary_) detail::writing_failed(folder, errno);
    divide(model, options);
    copy_tokenizer(options.tokenizer_of);
    write_file_atomically(temporary_.path() / "config.json",
                          hugging_face_config(model, dtype_ == "BF16" ? "bfloat16" : "float32"));
  }
  HuggingFaceWriter(const HuggingFaceWriter&) = delete;
  HuggingFaceWriter& operator=(const HuggingFaceWriter&) = delete;

  /// Checks that a folder can be created at a path, without leaving one there.
  /// @throws IoError  if the path exists already, or cannot be created
  static void require_free(const std::filesystem::path& folder) {
    std::error_code error;
    const bool already_exists = std::filesystem::exists(folder, error);
    detail::refuse_dangling_link(folder);
    const bool is_free = !already_exists || (std::filesystem::is_directory(folder, error) &&
                                             std::filesystem::is_empty(folder, error));
    require<IoError>(is_free && !error, folder.string(),
                     ": already exists; name a new or an empty folder");
    const std::filesystem::path target = target_of(folder);
    require<IoError>(!already_exists || !detail::is_mount_point(target), folder.string(),
                     ": is a mount point and cannot be replaced; name a folder in it");
    std::filesystem::path above = target.parent_path();
    while (!std::filesystem::exists(above, error) && above != above.parent_path()) {
      above = above.parent_path();
    }
    if (!detail::create_temporary_folder(above, target.filename().string()))
      detail::writing_failed(folder, errno);
  }

  /// Writes elements of a parameter, row-major, from `begin` on. Each must be written once.
  void write(const std::string& parameter, Index begin, std::span<const float> values) {
    const auto found = parameters_.find(parameter);
    require<ConfigError>(found != parameters_.end(), "a Hugging Face model of this family has no ",
                         parameter, "; a custom model cannot be written as one");
    for (const Target& target : found->second) {
      const detail::TensorPiece piece = detail::piece_of(target.tensor, begin, values.size());
      if (piece.count > 0) write(target, piece, values.subspan(piece.place));
    }
  }

  /// Renames the folder to its path. Must be the last call.
  void commit() {
    for (auto& file : files_) file->commit();
    files_.clear();
    if (!index_.empty())
      write_file_atomically(temporary_.path() / "model.safetensors.index.json", index_);
    std::error_code error;
    std::filesystem::rename(temporary_.path(), target_, error);
    const std::filesystem::path written = temporary_.path();
    temporary_.release();  // complete files are kept even if the rename failed
    require<IoError>(!error, folder_.string(), ": cannot be written: ", error.message(),
                     "; the weights are in ", written.string());
    fsync_folder(target_.parent_path());
  }

 private:
  void copy_tokenizer(const std::filesystem::path& from) const {
    std::error_code error;
    if (std::filesystem::is_regular_file(from, error)) {
      return copy(from, from.extension() == ".json" ? "tokenizer.json" : "tokenizer.model");
    }
    if (from.empty()) return;
    for (const char* name : detail::tokenizer_files) {
      if (std::filesystem::exists(from / name, error)) copy(from / name, name);
    }
  }
  void copy(const std::filesystem::path& file, const char* name) const {
    std::error_code error;
    std::filesystem::copy_file(file, temporary_.path() / name, error);
    require<IoError>(!error, file.string(), ": cannot be copied to ", folder_.string(), ": ",
                     error.message());
  }

  static std::filesystem::path target_of(const std::filesystem::path& folder) {
    std::filesystem::path target =
        std::filesystem::weakly_canonical(std::filesystem::absolute(folder));
    return target.has_filename() ? target : target.parent_path();
  }

  struct Target {
    HuggingFaceTensor tensor;
    SafetensorsWriter* file;
  };

  /// Divides the tensors among files, and creates them.
  void divide(const ModelDescription& model, const HuggingFaceOptions& options) {
    const std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(model);
    const std::uint64_t size = safetensors_bits(dtype_) / 8;
    std::vector<std::vector<SafetensorsEntry>> shards(1);
    std::vector<std::size_t> shard_of_tensor;
    std::uint64_t in_shard = 0;
    std::uint64_t total = 0;
    for (const HuggingFaceTensor& tensor : tensors) {
      const auto bytes = static_cast<std::uint64_t>(tensor.rows * tensor.columns) * size;
      if (in_shard > 0 && in_shard + bytes > options.shard_bytes) {
        shards.emplace_back();
        in_shard = 0;
      }
      in_shard += bytes;
      total += bytes;
      shards.back().push_back({tensor.name, dtype_, tensor.shape()});
      shard_of_tensor.push_back(shards.size() - 1);
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      names.push_back(shards.size() == 1 ? "model.safetensors" : shard_name(i, shards.size()));
      files_.push_back(
          std::make_unique<SafetensorsWriter>(temporary_.path() / names[i], std::move(shards[i])));
    }
    std::map<std::string, std::string> map;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      map[tensors[i].name] = names[shard_of_tensor[i]];
      parameters_[tensors[i].parameter].push_back({tensors[i], files_[shard_of_tensor[i]].get()});
    }
    if (names.size() == 1) return;
    JsonLine weight_map;
    for (const auto& [tensor, file] : map) weight_map.add(tensor, file);
    index_ = JsonLine{}
                 .add("metadata", JsonLine{}.add("total_size", total))
                 .add("weight_map", weight_map)
                 .str() +
             "\n";
  }

  /// "model-00001-of-00004.safetensors".
  static std::string shard_name(std::size_t number, std::size_t count) {
    const auto five = [](std::size_t value) {
      const std::string digits = message(value);
      return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
    };
    return "model-" + five(number + 1) + "-of-" + five(count) + ".safetensors";
  }

  void write(const Target& target, const detail::TensorPiece& piece,
             std::span<const float> values) const {
    const std::uint64_t size = safetensors_bits(dtype_) / 8;
    std::vector<std::byte> bytes;
    std::vector<float> column;
    detail::for_each_stored(target.tensor, piece, [&](Index begin, Index count, Index place) {
      const auto elements = static_cast<std::size_t>(count);
      std::span<const float> given = values.first(elements);
      if (target.tensor.is_transposed) {
        column.resize(elements);
        for (std::size_t i = 0; i < elements; ++i) {
          column[i] = values[static_cast<std::size_t>(place) +
                             i * static_cast<std::size_t>(target.tensor.columns)];
        }
        given = column;
      }
      bytes.resize(elements * size);
      from_floats(dtype_, given, bytes);
      target.file->write(target.tensor.name, static_cast<std::uint64_t>(begin) * size, bytes);
    });
  }

  std::filesystem::path folder_;
  std::string dtype_;
  std::filesystem::path target_;
  detail::Temporary temporary_;  ///< next to the target, until `commit`
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, std::vector<Target>> parameters_;
  std::string index_;
};

}  // namespace octavo
