#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

/// Safetensors files by hand, for tests of what reads and writes them.
namespace support {

/// Eight bytes, little-endian.
inline std::string eight_bytes(std::uint64_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i, number >>= 8) bytes += static_cast<char>(number & 0xff);
  return bytes;
}

/// A file of this header and these bytes.
inline std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  return eight_bytes(header.size()) + header + data;
}

/// A tensor of a file.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// A file of these tensors, in their order.
inline std::string safetensors_bytes(const std::vector<RawTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const RawTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return safetensors_bytes(header.dump(), data);
}

/// The tensors of a file, in the order of their names. For files that are what they should be.
inline std::vector<RawTensor> parse_raw_tensors(const std::string& file) {
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(file.at(i));
  const auto header = nlohmann::json::parse(file.substr(8, length));
  std::vector<RawTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::uint64_t>();
    tensors.push_back({name, entry.at("dtype"), entry.at("shape").get<std::vector<std::int64_t>>(),
                       file.substr(8 + length + begin, end - begin)});
  }
  return tensors;
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace support
