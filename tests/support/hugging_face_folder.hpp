#pragma once

#include <octavo/io/hugging_face_config.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "llama_weights.hpp"
#include "safetensors_bytes.hpp"

/// Hugging Face folders by hand, with the names and layouts that llama_weights.hpp knows.
namespace support {

/// Little-endian elements: "F32", or the upper halves of such, "BF16".
inline std::string elements(const std::string& dtype, const std::vector<float>& values) {
  const std::size_t size = dtype == "F32" ? 4 : 2;
  std::string bytes(values.size() * size, '\0');
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]) >> (32 - 8 * size);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

/// The tensors of a model in a Hugging Face file, by name. Linear layers of a GPT-2 are
/// [in, out] there.
/// @param values_of  `values_of(name, count)` are those of [out, in], a std::vector<float>
template <class Model, class ValuesOf>
std::vector<RawTensor> hugging_face_tensors(Model& model, const std::string& dtype,
                                            const ValuesOf& values_of) {
  std::vector<RawTensor> tensors;
  model.visit([&](const auto& parameter) {
    const octavo::Index columns = parameter.weight.extent(1);
    const bool is_vector = parameter.weight.extent(0) == 1;
    for (const Slice& slice : slices(parameter.name, Model::config)) {
      std::vector<float> values = values_of(slice.name, slice.rows * columns);
      std::vector<octavo::Index> shape{slice.rows, columns};
      if (is_vector) shape = {columns};
      if (slice.name.find(".c_") != std::string::npos && !is_vector) {
        shape = {columns, slice.rows};
        std::vector<float> transposed;
        for (octavo::Index column = 0; column < columns; ++column) {
          for (octavo::Index row = 0; row < slice.rows; ++row) {
            transposed.push_back(values[static_cast<std::size_t>(row * columns + column)]);
          }
        }
        values = std::move(transposed);
      }
      tensors.push_back({slice.name, dtype, shape, elements(dtype, values)});
    }
  });
  return tensors;
}

/// Writes config.json and model.safetensors.
inline void write_hugging_face_folder(const std::filesystem::path& folder,
                                      const octavo::ModelDescription& model,
                                      const std::vector<RawTensor>& tensors) {
  std::filesystem::create_directories(folder);
  write_bytes(folder / "config.json", octavo::hugging_face_config(model, "bfloat16"));
  write_bytes(folder / "model.safetensors", safetensors_bytes(tensors));
}

/// The bytes of a file's tensors, by name.
inline std::map<std::string, std::string> tensor_bytes(const std::string& file) {
  std::map<std::string, std::string> bytes;
  for (RawTensor& tensor : parse_raw_tensors(file)) bytes[tensor.name] = std::move(tensor.bytes);
  return bytes;
}

}  // namespace support
