/// @file
/// Reading and writing safetensors files.
///
/// Source: https://github.com/huggingface/safetensors, "Format". Stricter than the reference
/// implementation only in that keys of an object must be unique.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/io/for_each_part.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// The description of a tensor in a safetensors file.
struct SafetensorsEntry {
  std::string name{};
  std::string dtype{};         ///< such as "BF16"; see safetensors_bits
  std::vector<Index> shape{};  ///< empty: a scalar
  std::uint64_t begin = 0;     ///< offset of its bytes, which are row-major, in the file
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
};

/// Returns the bits of an element; 0 for an unknown dtype.
[[nodiscard]] inline std::uint64_t safetensors_bits(std::string_view dtype) {
  struct Dtype {
    std::string_view name;
    std::uint64_t bits;
  };
  static constexpr std::array all{
      Dtype{"BOOL", 8},        Dtype{"F4", 4},          Dtype{"F6_E2M3", 6}, Dtype{"F6_E3M2", 6},
      Dtype{"U8", 8},          Dtype{"I8", 8},          Dtype{"F8_E5M2", 8}, Dtype{"F8_E4M3", 8},
      Dtype{"F8_E5M2FNUZ", 8}, Dtype{"F8_E4M3FNUZ", 8}, Dtype{"F8_E8M0", 8}, Dtype{"I16", 16},
      Dtype{"U16", 16},        Dtype{"F16", 16},        Dtype{"BF16", 16},   Dtype{"I32", 32},
      Dtype{"U32", 32},        Dtype{"F32", 32},        Dtype{"F64", 64},    Dtype{"I64", 64},
      Dtype{"U64", 64},        Dtype{"C64", 64}};
  const auto* found =
      std::find_if(all.begin(), all.end(), [&](const Dtype& each) { return each.name == dtype; });
  return found == all.end() ? 0 : found->bits;
}

namespace detail {

/// The maximum length of a header, according to the format.
inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;

/// Returns the bytes of a tensor.
/// @throws IoError  naming the tensor, for an unknown dtype, or if its bytes are not an integer or
///                  overflow
inline std::uint64_t safetensors_bytes(const std::string& place, const SafetensorsEntry& entry) {
  const auto fail = [&](const std::string& what) {
    throw IoError(message(place, ": tensor ", entry.name, " has ", what));
  };
  std::uint64_t bits = safetensors_bits(entry.dtype);
  if (bits == 0) fail("the dtype " + entry.dtype + ", which does not exist");
  for (const Index extent : entry.shape) {
    const auto factor = static_cast<std::uint64_t>(extent);
    if (factor != 0 && bits > std::numeric_limits<std::uint64_t>::max() / factor) {
      fail("a shape of more elements than can be counted");
    }
    bits *= factor;
  }
  if (bits % 8 != 0) fail(message(bits, " bits, which is not a whole number of bytes"));
  return bits / 8;
}

inline std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return value;
}

}  // namespace detail

/// A safetensors file that is open for reading. The header is verified: tensors are contiguous,
/// each has the bytes of its shape and dtype, and the file ends with the last.
class SafetensorsFile {
 public:
  /// Reads and verifies the header.
  /// @throws IoError  naming the file and the wrong tensor or byte
  explicit SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
    struct stat status{};
    descriptor_ = detail::open_regular_file(path_, status);
    try {
      read_header(static_cast<std::uint64_t>(status.st_size));
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
  }
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile() { ::close(descriptor_); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// In the order of their bytes.
  [[nodiscard]] const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Reads bytes of a tensor.
  /// @param entry  of `tensors()`
  /// @param begin  byte offset in the tensor
  /// @throws IoError  naming file and tensor, if the file has become shorter or cannot be read
  void read(const SafetensorsEntry& entry, std::uint64_t begin, std::span<std::byte> bytes) const {
    require<UsageError>(begin <= entry.bytes() && bytes.size() <= entry.bytes() - begin,
                        path_.string(), ": cannot read ", bytes.size(), " bytes at byte ", begin,
                        " of ", entry.name, ", which has ", entry.bytes());
    read_at(entry.begin + begin, bytes, entry.name);
  }
  /// Same, with several threads.
  /// @param context  whose threads read parts of the bytes
  void read(const SafetensorsEntry& entry, std::uint64_t begin, std::span<std::byte> bytes,
            const Context<Cpu>& context) const {
    for_each_part(bytes.size(), context, [&](std::size_t at, std::size_t size) {
      read(entry, begin + at, bytes.subspan(at, size));
    });
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw IoError(message(path_.string(), ": is not a complete safetensors file: ", what,
                          "; it is damaged or truncated: download it again"));
  }
  [[noreturn]] void unreadable() const {
    throw IoError(message(path_.string(), ": cannot be read: ", std::strerror(errno)));
  }

  void read_at(std::uint64_t offset, std::span<std::byte> bytes, const std::string& what) const {
    while (!bytes.empty()) {
      const ssize_t count =
          ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) unreadable();
      if (count == 0) fail(message("it ends at byte ", offset, ", in ", what));
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

  void read_header(std::uint64_t size) {
    if (size < 8) fail(message("it has ", size, " bytes, fewer than the 8 of its header's length"));
    std::array<std::byte, 8> prefix{};
    read_at(0, prefix, "the header's length");
    const std::uint64_t length = detail::little_endian(prefix);
    if (length > detail::longest_safetensors_header) {
      fail(message("the header must have at most ", detail::longest_safetensors_header,
                   " bytes, but has ", length));
    }
    if (length > size - 8) {
      fail(
          message("the header has ", length, " bytes, but only ", size - 8, " remain in the file"));
    }
    std::string text(length, '\0');
    read_at(8, std::as_writable_bytes(std::span(text)), "the header");
    JsonReader json(text, path_.string(), 8, "use another file");
    json.object([&](const std::string& key) {
      if (key == "__metadata__") {
        json.object([&](const std::string& name) { metadata_[name] = json.string(); });
      } else {
        read_entry(json, key);
      }
    });
    json.end();
    check_places(8 + length, size);
  }

  /// Reads the header's entry of a tensor, with offsets relative to the end of the header.
  void read_entry(JsonReader& json, const std::string& name) {
    SafetensorsEntry entry{.name = name};
    std::vector<std::int64_t> offsets;
    int known = 0;
    json.object([&](const std::string& key) {
      ++known;
      if (key == "dtype") {
        entry.dtype = json.string();
      } else if (key == "shape") {
        json.array([&] { entry.shape.push_back(json.natural()); });
      } else if (key == "data_offsets") {
        json.array([&] { offsets.push_back(json.natural()); });
      } else {
        json.fail(message("tensor ", name, " has ", key, ", which the format does not define"));
      }
    });
    if (known != 3) json.fail("tensor " + name + " lacks its dtype, shape or data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      json.fail("tensor " + name + " has data_offsets that are not a begin and an end");
    }
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    tensors_.push_back(std::move(entry));
  }

  /// Checks tensors against the file, and makes their offsets relative to its start.
  /// @param begin  of the first tensor
  /// @param size   of the file
  void check_places(std::uint64_t begin, std::uint64_t size) {
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t expected = 0;
    for (SafetensorsEntry& entry : tensors_) {
      if (entry.begin != expected) {
        fail(message("tensor ", entry.name, " begins at byte ", entry.begin,
                     " of the data, but the one before ends at ", expected));
      }
      const std::uint64_t bytes = detail::safetensors_bytes(path_.string(), entry);
      if (bytes != entry.bytes()) {
        fail(message("tensor ", entry.name, " has ", entry.bytes(), " bytes, but its shape and ",
                     entry.dtype, " need ", bytes));
      }
      expected = entry.end;
      entry.begin += begin;
      entry.end += begin;
    }
    if (expected != size - begin) {
      fail(message("the tensors have ", expected, " bytes, but ", size - begin,
                   " follow the header"));
    }
  }

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a safetensors file atomically (see AtomicFile): `commit` renames it to its path. Bytes
/// may be written in any order.
class SafetensorsWriter {
 public:
  /// Writes the header.
  /// @param tensors   names, dtypes and shapes; their offsets are assigned here
  /// @throws IoError     naming the file, if it cannot be written
  /// @throws UsageError  if two tensors have the same name
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsEntry> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}})
      : path_(path), tensors_(std::move(tensors)), file_(path) {
    // By descending element size, so that each tensor is aligned.
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
      const std::uint64_t bits = safetensors_bits(a.dtype);
      const std::uint64_t other = safetensors_bits(b.dtype);
      return bits != other ? bits > other : a.name < b.name;
    });
    JsonLine header;
    if (!metadata.empty()) {
      JsonLine pairs;
      for (const auto& [key, value] : metadata) pairs.add(key, value);
      header.add("__metadata__", pairs);
    }
    std::uint64_t end = 0;
    for (SafetensorsEntry& entry : tensors_) {
      entry.begin = end;
      end += detail::safetensors_bytes(path.string(), entry);
      entry.end = end;
      const std::array offsets{static_cast<std::int64_t>(entry.begin),
                               static_cast<std::int64_t>(end)};
      header.add(entry.name, JsonLine{}
                                 .add("dtype", entry.dtype)
                                 .add("shape", std::span<const Index>(entry.shape))
                                 .add("data_offsets", std::span<const std::int64_t>(offsets)));
    }
    std::string text = header.str();
    text.resize(static_cast<std::size_t>(round_up(static_cast<Index>(text.size()), 8)), ' ');
    std::string prefix;
    for (int byte = 0; byte < 8; ++byte) {
      prefix += static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * byte) & 0xff);
    }
    header_ = prefix + text;
    file_.write(header_);
    for (SafetensorsEntry& entry : tensors_) {
      entry.begin += header_.size();
      entry.end += header_.size();
      const bool is_new = places_.emplace(entry.name, Place{&entry, entry.bytes()}).second;
      require<UsageError>(is_new, path.string(), ": two tensors are called ", entry.name);
    }
  }

  /// Returns everything before the first tensor.
  [[nodiscard]] const std::string& header() const { return header_; }
  /// In the order of their bytes.
  [[nodiscard]] const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }

  /// Writes bytes of a tensor at byte `begin`. Each byte must be written once.
  /// @param context  whose threads write
  /// @throws UsageError  for an unknown tensor, or bytes beyond its end
  void write(const std::string& name, std::uint64_t begin, std::span<const std::byte> bytes,
             const Context<Cpu>& context = Context<Cpu>(1)) {
    const auto found = places_.find(name);
    require<UsageError>(found != places_.end(), path_.string(), ": has no tensor ", name);
    Place& place = found->second;
    const SafetensorsEntry* entry = place.entry;
    require<UsageError>(begin <= entry->bytes() && bytes.size() <= entry->bytes() - begin &&
                            bytes.size() <= place.missing,
                        path_.string(), ": the bytes passed for ", name,
                        " must not exceed its size");
    for_each_part(bytes.size(), context, [&](std::size_t at, std::size_t size) {
      file_.write_at(entry->begin + begin + at, bytes.subspan(at, size));
    });
    place.missing -= bytes.size();
  }

  /// @throws UsageError  if bytes of a tensor are missing
  void commit() {
    for (const auto& [name, place] : places_) {
      require<UsageError>(place.missing == 0, path_.string(), ": ", place.missing, " bytes of ",
                          name, " were not written");
    }
    file_.commit();
  }

 private:
  struct Place {
    const SafetensorsEntry* entry;
    std::uint64_t missing;  ///< bytes that were not written yet
  };

  std::filesystem::path path_;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string, Place> places_;
  std::string header_;
  AtomicFile file_;
};

}  // namespace octavo
