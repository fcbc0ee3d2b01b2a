/// @file
/// The weights of a Hugging Face folder.
#pragma once

#include <octavo/data/open_file.hpp>
#include <octavo/io/float_elements.hpp>
#include <octavo/io/safetensors.hpp>
#include <octavo/models/hugging_face_tensors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns "a", "a and b", or "a, b and 7 more".
inline std::string first_names(const std::vector<std::string>& names) {
  std::string text = names.front();
  if (names.size() > 1) text += (names.size() == 2 ? " and " : ", ") + names[1];
  if (names.size() > 2) text += message(" and ", names.size() - 2, " more");
  return text;
}

/// Returns a shape as "[2, 3]".
inline std::string shape_of(const std::vector<Index>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += message(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

}  // namespace detail

/// The weights in a folder of a Hugging Face model: model.safetensors, or the files that
/// model.safetensors.index.json names. Before any tensor is read, the constructor checks that
/// exactly the tensors of the model exist, with their shapes and in readable formats.
class HuggingFaceWeights {
 public:
  /// @param model  that the weights are for
  /// @throws IoError      naming a file that is missing or not a safetensors file
  /// @throws ConfigError  naming tensors that are missing, unknown, of a different shape, or in a
  ///                      format other than a 16-bit or 32-bit float
  HuggingFaceWeights(std::filesystem::path folder, const ModelDescription& model)
      : folder_(std::move(folder)) {
    open_files();
    for (HuggingFaceTensor& tensor : hugging_face_tensors(model)) find(std::move(tensor), model);
    require<ConfigError>(missing_.empty(), folder_.string(), ": has no tensor ",
                         missing_.empty() ? "" : detail::first_names(missing_));
    check_others(model);
  }

  /// Reads elements of a parameter, row-major, from `begin` on.
  /// @param parameter  such as "blocks.0.qkv.weight"
  /// @throws IoError      if a file cannot be read
  /// @throws ConfigError  if the folder has no tensor for the parameter
  void read(const std::string& parameter, Index begin, std::span<float> values) const {
    const auto found = parameters_.find(parameter);
    require<ConfigError>(found != parameters_.end(), folder_.string(), ": has no tensor for ",
                         parameter, ", which a model of this family does not have");
    for (const Source& source : found->second) {
      const detail::TensorPiece piece = detail::piece_of(source.tensor, begin, values.size());
      if (piece.count > 0) read(source, piece, values.subspan(piece.place));
    }
  }

 private:
  /// A tensor in a file.
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  /// A tensor from which a parameter, or some of its rows, are read.
  struct Source {
    HuggingFaceTensor tensor;
    Stored stored;
  };

  void open_files() {
    const std::filesystem::path single = folder_ / "model.safetensors";
    const std::filesystem::path index = folder_ / "model.safetensors.index.json";
    if (std::filesystem::exists(single)) return open_file(single);
    require<IoError>(std::filesystem::exists(index), folder_.string(),
                     ": has neither model.safetensors nor model.safetensors.index.json; pass the "
                     "folder of a Hugging Face model");
    std::map<std::string, std::string> files;  // of tensors
    const std::string text = read_text_file(index);
    JsonReader json(text, index.string(), 0, "download the folder again");
    json.object([&](const std::string& key) {
      if (key == "weight_map") {
        json.object([&](const std::string& tensor) { files[tensor] = json.string(); });
      } else {
        json.skip();
      }
    });
    json.end();
    std::set<std::string> names;
    for (const auto& [tensor, file] : files) names.insert(file);
    for (const std::string& name : names) {
      // Must be a file in this folder, even if the index names another path.
      const bool is_plain = !name.empty() && name != "." && name != ".." &&
                            name.find('/') == std::string::npos &&
                            name.find('\0') == std::string::npos;
      require<IoError>(is_plain, index.string(), ": names the file ", name,
                       ", which is not a file in its folder; use a folder from another source");
    }
    for (const std::string& name : names) open_file(folder_ / name);
    for (const auto& [tensor, file] : files) {
      const auto found = stored_.find(tensor);
      require<IoError>(found != stored_.end() && found->second.file->path() == folder_ / file,
                       index.string(), ": lists ", tensor, " in ", file,
                       ", which does not contain it; download the folder again");
    }
    for (const auto& [tensor, stored] : stored_) {
      require<IoError>(files.contains(tensor), stored.file->path().string(), ": has ", tensor,
                       ", which the index does not list; download the folder again");
    }
  }

  void open_file(const std::filesystem::path& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const SafetensorsEntry& entry : files_.back()->tensors()) {
      const bool is_new = stored_.emplace(entry.name, Stored{files_.back().get(), &entry}).second;
      require<IoError>(
          is_new, path.string(), ": has ", entry.name,
          ", which another file of the folder also contains; download the folder again");
    }
  }

  /// Returns the name of a tensor in this folder, which may lack the family's optional prefix.
  [[nodiscard]] std::string stored_name(const ModelDescription& model,
                                        const std::string& name) const {
    const std::string_view prefix = model.family->optional_prefix;
    if (prefix.empty() || stored_.contains(name) || !name.starts_with(prefix)) return name;
    const std::string bare = name.substr(prefix.size());
    return stored_.contains(bare) ? bare : name;
  }

  /// Moves a tensor of the model out of `stored_`.
  void find(HuggingFaceTensor tensor, const ModelDescription& model) {
    const auto found = stored_.find(stored_name(model, tensor.name));
    if (found == stored_.end()) {
      missing_.push_back(tensor.name);
      return;
    }
    const auto& [name, stored] = *found;
    const std::string file = stored.file->path().string();
    require<ConfigError>(stored.entry->shape == tensor.shape(), file, ": tensor ", name, " is ",
                         detail::shape_of(stored.entry->shape), ", but ", model.family->name,
                         " of this config.json has ", detail::shape_of(tensor.shape()));
    require<ConfigError>(is_float_dtype(stored.entry->dtype), file, ": tensor ", name, " is in ",
                         stored.entry->dtype, "; convert it to BF16, F16 or F32");
    model_tensor_names_.insert(name);
    std::vector<Source>& sources = parameters_[tensor.parameter];
    sources.push_back({std::move(tensor), stored});
  }

  /// Only redundant additional tensors are allowed: tables that older versions of transformers
  /// stored, and a tied head that equals the embedding.
  void check_others(const ModelDescription& model) const {
    const std::vector<std::string_view> constants = model.family->constants();
    std::vector<std::string> others;
    for (const auto& [name, stored] : stored_) {
      if (model_tensor_names_.contains(name)) continue;
      const bool is_table = std::ranges::any_of(
          constants, [&](std::string_view ending) { return name.ends_with(ending); });
      const bool is_tied_head =
          model.tied_embeddings && name == "lm_head.weight" &&
          has_same_bytes(stored, parameters_.at("embedding.weight").front().stored);
      if (!is_table && !is_tied_head) others.push_back(name);
    }
    require<ConfigError>(others.empty(), folder_.string(), ": has the tensor ",
                         others.empty() ? "" : detail::first_names(others),
                         ", which the model of its config.json does not have");
  }

  static bool has_same_bytes(const Stored& a, const Stored& b) {
    if (a.entry->dtype != b.entry->dtype || a.entry->bytes() != b.entry->bytes()) return false;
    std::vector<std::byte> left(std::size_t{1} << 20);
    std::vector<std::byte> right(left.size());
    for (std::uint64_t begin = 0; begin < a.entry->bytes(); begin += left.size()) {
      const std::size_t size = std::min<std::uint64_t>(left.size(), a.entry->bytes() - begin);
      a.file->read(*a.entry, begin, std::span(left).first(size));
      b.file->read(*b.entry, begin, std::span(right).first(size));
      if (!std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(size),
                      right.begin())) {
        return false;
      }
    }
    return true;
  }

  static void read(const Source& source, const detail::TensorPiece& piece,
                   std::span<float> values) {
    const SafetensorsFile* file = source.stored.file;
    const SafetensorsEntry* entry = source.stored.entry;
    const std::uint64_t size = safetensors_bits(entry->dtype) / 8;
    const std::size_t most = static_cast<std::size_t>(piece.count) * size;
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(most);
    std::vector<float> column;
    detail::for_each_stored(source.tensor, piece, [&](Index begin, Index count, Index place) {
      const auto elements = static_cast<std::size_t>(count);
      const std::span<std::byte> bytes(memory.get(), elements * size);
      file->read(*entry, static_cast<std::uint64_t>(begin) * size, bytes);
      if (!source.tensor.is_transposed)
        return to_floats(entry->dtype, bytes, values.first(elements));
      column.resize(elements);
      to_floats(entry->dtype, bytes, column);
      for (std::size_t i = 0; i < elements; ++i) {
        values[static_cast<std::size_t>(place) +
               i * static_cast<std::size_t>(source.tensor.columns)] = column[i];
      }
    });
  }

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Stored> stored_;      ///< all tensors of the files
  std::set<std::string> model_tensor_names_;  ///< those of the model
  std::map<std::string, std::vector<Source>> parameters_;
  std::vector<std::string> missing_;
};

}  // namespace octavo
