/// @file
/// State entries in a safetensors file.
#pragma once

#include <octavo/core/json_line.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/io/file_digest.hpp>
#include <octavo/io/safetensors.hpp>
#include <octavo/session/state.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Returns the number of elements of a shape; 1 for a scalar; none if it overflows.
inline std::optional<Index> counted_elements(const std::vector<Index>& shape) {
  Index count = 1;
  for (const Index extent : shape) {
    if (extent != 0 && count > std::numeric_limits<Index>::max() / extent) return std::nullopt;
    count *= extent;
  }
  return count;
}

/// Returns the number of elements of an entry in memory, or of one that `described_entry` accepted.
inline Index elements_of(const std::vector<Index>& shape) { return *counted_elements(shape); }

/// Returns the tensor that stores an entry; of bytes ("U8") if safetensors has no such dtype.
inline SafetensorsEntry tensor_of(const StateEntry& entry) {
  static const std::map<std::string, std::string> dtypes{
      {"fp32", "F32"}, {"bf16", "BF16"}, {"fp64", "F64"}, {"uint32", "U32"}, {"int64", "I64"}};
  const auto found = dtypes.find(entry.format);
  SafetensorsEntry tensor{.name = entry.name,
                          .dtype = found == dtypes.end() ? "U8" : found->second,
                          .shape = entry.shape};
  if (safetensors_bytes(entry.name, tensor) != entry.bytes) {
    tensor.dtype = "U8";
    tensor.shape = {static_cast<Index>(entry.bytes)};
  }
  return tensor;
}

/// Describes those properties of an entry that a safetensors tensor cannot represent.
inline std::string description_of(const StateEntry& entry) {
  const ParameterPart& part = entry.part;
  const std::array<Index, 6> numbers{part.degree,    part.rank,      part.groups[0],
                                     part.groups[1], part.groups[2], part.live_rows};
  return JsonLine{}
      .add("format", entry.format)
      .add("shape", std::span<const Index>(entry.shape))
      .add("whole", std::span<const Index>(entry.whole))
      .add("begin", entry.begin)
      .add("part", std::span<const Index>(numbers))
      .str();
}

/// Returns an entry without its functions for reading and writing.
inline StateEntry described_entry(const std::string& name, const std::string& description,
                                  const std::string& place) {
  StateEntry entry;
  entry.name = name;
  JsonReader json(description, place + ": " + name, 0, "use another checkpoint");
  const auto numbers = [&] {
    std::vector<Index> result;
    json.array([&] { result.push_back(json.natural()); });
    return result;
  };
  json.object([&](const std::string& key) {
    if (key == "format") {
      entry.format = json.string();
    } else if (key == "shape") {
      entry.shape = numbers();
    } else if (key == "whole") {
      entry.whole = numbers();
    } else if (key == "begin") {
      entry.begin = json.natural();
    } else if (key == "part") {
      const std::vector<Index> part = numbers();
      if (part.size() != 6) json.fail("a part must have 6 numbers");
      entry.part = {static_cast<int>(part[0]),
                    static_cast<int>(part[1]),
                    {part[2], part[3], part[4]},
                    part[5]};
    } else {
      json.skip();
    }
  });
  json.end();
  const std::optional<Index> count = counted_elements(entry.shape);
  const bool is_valid = count.has_value() && counted_elements(entry.whole).has_value() &&
                        entry.begin <= std::numeric_limits<Index>::max() - *count;
  if (!is_valid) json.fail("more elements than can be counted");
  return entry;
}

/// The prefix of entry names in a file's metadata.
inline constexpr const char* entry_key = "octavo.entry.";

/// The bytes of entries that are being saved: copies of all, or entries read one at a time.
class StateCopy {
 public:
  /// Sets the memory, from `TrainingSession::allocate_for_reading`, for entries that can be read
  /// during steps. Without it, each entry is read when it is written.
  void set_memory(OwnedBytes memory, std::size_t size) {
    memory_ = std::move(memory);
    size_ = size;
    is_async_ = true;
  }
  /// Returns whether there is memory for saving asynchronously.
  [[nodiscard]] bool is_async() const { return is_async_; }

  /// Copies entries that cannot be read during steps, and waits for them.
  void copy_sync(std::vector<StateEntry> entries) {
    entries_ = std::move(entries);
    places_.clear();
    std::size_t size = 0;
    for (const StateEntry& entry : entries_) size += entry.read_async ? 0 : entry.bytes;
    host_entries_.resize(size);
    std::size_t place = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const StateEntry& entry = entries_[i];
      Place& at = places_[entry.name];
      at.number = i;
      if (entry.read_async) continue;
      at.bytes = std::span(host_entries_).subspan(place, entry.bytes);
      entry.read_sync(at.bytes.data());
      place += entry.bytes;
    }
    require<UsageError>(
        places_.size() == entries_.size(),
        "two parts of the state have the same name; name each parameter and layer once");
  }

  /// Copies the rest, on a separate thread; see `StateEntry::read_async`.
  void read_async() {
    std::size_t place = 0;
    for (const StateEntry& entry : entries_) {
      if (!entry.read_async) continue;
      require<UsageError>(entry.bytes <= size_ - place, "the state has more bytes than the ", size_,
                          " that it had in the first save; save the same entries");
      places_.at(entry.name).bytes = {memory_.get() + place, entry.bytes};
      entry.read_async(memory_.get() + place);
      place += entry.bytes;
    }
  }

  [[nodiscard]] const std::vector<StateEntry>& entries() const { return entries_; }
  /// Returns the bytes of an entry, valid until the next call.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name) {
    const Place& place = places_.at(name);
    const StateEntry& entry = entries_[place.number];
    if (is_async_ || !entry.read_async) return place.bytes;
    if (entry_buffer_.size() < entry.bytes) entry_buffer_.resize(entry.bytes);
    entry.read_sync(entry_buffer_.data());
    return std::span(entry_buffer_).first(entry.bytes);
  }
  /// Frees the memory for entries read one at a time.
  void clear() { entry_buffer_ = {}; }

  /// Returns the integers among the entries; those of one entry are NAME.0, NAME.1 and so on.
  [[nodiscard]] std::map<std::string, std::int64_t> numbers() const {
    constexpr std::size_t most = 64;
    std::map<std::string, std::int64_t> result;
    for (const StateEntry& entry : entries_) {
      const std::size_t count = entry.bytes / sizeof(std::int64_t);
      if (entry.format != "int64" || count > most || entry.read_async) continue;
      for (std::size_t i = 0; i < count; ++i) {
        const std::string name = entry.shape.empty() ? entry.name : message(entry.name, '.', i);
        std::memcpy(&result[name], places_.at(entry.name).bytes.data() + i * sizeof(std::int64_t),
                    sizeof(std::int64_t));
      }
    }
    return result;
  }

 private:
  struct Place {
    std::size_t number = 0;  ///< of the entry
    std::span<std::byte> bytes{};
  };

  std::vector<StateEntry> entries_;
  std::map<std::string, Place> places_;
  std::vector<std::byte> host_entries_;
  bool is_async_ = false;
  OwnedBytes memory_;
  std::size_t size_ = 0;
  std::vector<std::byte> entry_buffer_;  ///< the entry that is being written
};

/// Returns the number of threads that write and read files during steps.
inline int background_threads() {
  constexpr int most = 4;  // more are not faster: disks limit them
  return std::clamp(Context<Cpu>(0).threads() / 4, 1, most);
}

/// Writes a state to a file. The checksum is that of the bytes in memory.
/// @throws IoError  naming the file and the system's error
inline FileDigest write_state_file(const std::filesystem::path& path, StateCopy& state) {
  std::vector<SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const StateEntry& entry : state.entries()) {
    metadata[entry_key + entry.name] = description_of(entry);
    if (entry.bytes != 0) tensors.push_back(tensor_of(entry));
  }
  SafetensorsWriter writer(path, std::move(tensors), metadata);
  FileDigest digest;
  const Context<Cpu> host(background_threads());
  const auto add = [&](std::span<const std::byte> bytes) {
    digest.bytes += bytes.size();
    digest.checksum = crc32c(bytes, digest.checksum, host);
  };
  add(std::as_bytes(std::span(writer.header())));
  for (const SafetensorsEntry& tensor : writer.tensors()) {
    const std::span<const std::byte> bytes = state.bytes(tensor.name);
    add(bytes);
    writer.write(tensor.name, 0, bytes, host);
  }
  writer.commit();
  return digest;
}

/// "rank-00003.safetensors".
inline std::string file_name_of_rank(int rank) {
  const std::string number = std::to_string(rank);
  return "rank-" + std::string(number.size() < 5 ? 5 - number.size() : 0, '0') + number +
         ".safetensors";
}

/// The entries of a file, without their functions for reading and writing.
class StateFile {
 public:
  /// @throws IoError  naming the file, if `write_state_file` did not write it
  explicit StateFile(const std::filesystem::path& path) : file_(path) {
    std::map<std::string, const SafetensorsEntry*> tensors;
    for (const SafetensorsEntry& tensor : file_.tensors()) tensors[tensor.name] = &tensor;
    const std::string key = entry_key;
    for (const auto& [name, description] : file_.metadata()) {
      if (!name.starts_with(key)) continue;
      StateEntry entry = described_entry(name.substr(key.size()), description, path.string());
      const auto found = tensors.find(entry.name);
      tensors_.push_back(found == tensors.end() ? nullptr : found->second);
      entry.bytes = found == tensors.end() ? 0 : found->second->bytes();
      entries_.push_back(std::move(entry));
    }
  }

  [[nodiscard]] const std::vector<StateEntry>& entries() const { return entries_; }

  /// Reads bytes of an entry.
  /// @param number   of the entry
  /// @param context  whose threads read them
  /// @throws IoError  naming the file, if it cannot be read
  void read(std::size_t number, std::uint64_t begin, std::span<std::byte> bytes,
            const Context<Cpu>& context) const {
    if (!bytes.empty()) file_.read(*tensors_[number], begin, bytes, context);
  }

 private:
  SafetensorsFile file_;
  std::vector<StateEntry> entries_;
  std::vector<const SafetensorsEntry*> tensors_;  ///< of each entry; null: it has no bytes
};

}  // namespace octavo OCTAVO_ABI::detail
