#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <istream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reference_llama.hpp"

namespace reference {

/// What tests/golden/make_llama_golden.py wrote: a small model, a batch, and what Hugging Face
/// transformers computed for them.
struct Golden {
  ReferenceConfig config;
  int batch = 0;
  int sequence_length = 0;
  double loss = 0.0;                     ///< mean cross-entropy, nats
  std::vector<int> tokens;               ///< [batch, sequence_length]
  std::vector<int> targets;              ///< [batch, sequence_length]
  std::vector<double> rope_frequencies;  ///< [head_dim / 2], radians a position
  std::vector<double> logits;            ///< [batch * sequence_length, vocabulary]
  Weights weights;                       ///< by Hugging Face name; every value is exact in float
  Weights gradients;                     ///< d loss / d weight, under the same names
};

namespace golden_detail {

struct TensorEntry {
  std::string name;
  std::string type;
  std::size_t elements = 1;
};

struct Header {
  std::map<std::string, double> values;
  std::vector<TensorEntry> tensors;

  double value(const std::string& key) const {
    const auto found = values.find(key);
    if (found == values.end()) throw std::runtime_error("golden file: no line '" + key + "'");
    return found->second;
  }
  int integer(const std::string& key) const { return static_cast<int>(value(key)); }
  bool flag(const std::string& key) const { return value(key) != 0.0; }
};

inline TensorEntry parse_tensor_line(std::istream& fields) {
  TensorEntry tensor;
  std::size_t dimension = 0;
  fields >> tensor.name >> tensor.type;
  while (fields >> dimension) tensor.elements *= dimension;
  if (tensor.type != "f32" && tensor.type != "i32") {
    throw std::runtime_error("golden file: tensor " + tensor.name + " has type '" + tensor.type +
                             "', expected f32 or i32");
  }
  return tensor;
}

inline Header read_header(std::istream& file, const std::string& path) {
  std::string line;
  if (!std::getline(file, line) || line != "octavo-golden 1") {
    throw std::runtime_error("golden file " + path + " does not begin with 'octavo-golden 1'");
  }
  Header header;
  while (std::getline(file, line)) {
    if (line == "end") return header;
    std::istringstream fields(line);
    std::string key;
    fields >> key;
    if (key == "tensor") {
      header.tensors.push_back(parse_tensor_line(fields));
    } else if (!(fields >> header.values[key])) {
      throw std::runtime_error("golden file: no number after " + key);
    }
  }
  throw std::runtime_error("golden file " + path + ": the header has no 'end'");
}

inline std::uint32_t read_word(std::istream& file) {
  std::uint32_t word = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const int byte = file.get();
    if (byte < 0) throw std::runtime_error("golden file: the data ends early");
    word |= static_cast<std::uint32_t>(byte) << shift;
  }
  return word;
}

inline std::vector<double> read_tensor(std::istream& file, const TensorEntry& tensor) {
  std::vector<double> values;
  values.reserve(tensor.elements);
  for (std::size_t i = 0; i < tensor.elements; ++i) {
    const std::uint32_t word = read_word(file);
    values.push_back(tensor.type == "f32" ? static_cast<double>(std::bit_cast<float>(word))
                                          : static_cast<double>(std::bit_cast<std::int32_t>(word)));
  }
  return values;
}

inline ReferenceConfig read_config(const Header& header) {
  ReferenceConfig config;
  if (!header.values.contains("layers")) return config;  // the folder's config.json has the shape
  config.layers = header.integer("layers");
  config.hidden = header.integer("hidden");
  config.ffn = header.integer("ffn");
  config.heads = header.integer("heads");
  config.kv_heads = header.integer("kv_heads");
  config.head_dim = header.integer("head_dim");
  config.vocabulary = header.integer("vocabulary");
  config.norm_epsilon = header.value("norm_epsilon");
  config.tied_embeddings = header.flag("tied_embeddings");
  if (!header.values.contains("rope_theta")) return config;  // a GPT-2
  config.rope_theta = header.value("rope_theta");
  config.llama3_rope = header.flag("llama3_rope");
  config.rope_factor = header.value("rope_factor");
  config.rope_low = header.value("rope_low");
  config.rope_high = header.value("rope_high");
  config.rope_original_length = header.integer("rope_original_length");
  config.qk_norm = header.flag("qk_norm");
  return config;
}

inline std::vector<int> integers(const std::vector<double>& values) {
  std::vector<int> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(),
                 [](double value) { return static_cast<int>(value); });
  return result;
}

/// Puts a tensor where its name says: "weight:NAME" and "gradient:NAME" into the maps.
inline void store(Golden& golden, const std::string& name, std::vector<double> values) {
  if (name.starts_with("weight:")) {
    golden.weights[name.substr(7)] = std::move(values);
  } else if (name.starts_with("gradient:")) {
    golden.gradients[name.substr(9)] = std::move(values);
  } else if (name == "tokens") {
    golden.tokens = integers(values);
  } else if (name == "targets") {
    golden.targets = integers(values);
  } else if (name == "rope_frequencies") {
    golden.rope_frequencies = std::move(values);
  } else if (name == "logits") {
    golden.logits = std::move(values);
  } else {
    throw std::runtime_error("golden file: unknown tensor " + name);
  }
}

}  // namespace golden_detail

/// The path of a file of tests/golden, in the current folder or one above it. Not from __FILE__,
/// which compiler caches make relative to a folder that the program does not know.
inline std::string golden_path(const std::string& file_name) {
  const std::filesystem::path name = std::filesystem::path("tests/golden") / file_name;
  std::filesystem::path folder = std::filesystem::current_path();
  while (!std::filesystem::exists(folder / name)) {
    if (!folder.has_relative_path()) {
      throw std::runtime_error("no folder here or above has " + name.string() +
                               "; run the tests in the project's folder");
    }
    folder = folder.parent_path();
  }
  return (folder / name).string();
}

namespace golden_detail {

/// Reads a golden file, calls `store(name, values)` for each tensor and returns the header.
template <class Store>
Header read_tensors(const std::string& path, const Store& store) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("golden file " + path + " cannot be opened");
  Header header = read_header(file, path);
  for (const TensorEntry& tensor : header.tensors) {
    store(tensor.name, read_tensor(file, tensor));
  }
  if (file.get() >= 0) throw std::runtime_error("golden file " + path + " goes on after its data");
  return header;
}

}  // namespace golden_detail

/// Reads a golden file; tests/golden/README.md gives the layout.
/// @throws std::runtime_error  if the file cannot be read, ends early or goes on after its data
inline Golden read_golden(const std::string& path) {
  Golden golden;
  const golden_detail::Header header =
      golden_detail::read_tensors(path, [&](const std::string& name, std::vector<double> values) {
        golden_detail::store(golden, name, std::move(values));
      });
  golden.config = golden_detail::read_config(header);
  golden.batch = header.integer("batch");
  golden.sequence_length = header.integer("sequence_length");
  golden.loss = header.value("loss");
  return golden;
}

}  // namespace reference
