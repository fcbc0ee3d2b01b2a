/// @file
/// What a training run consists of, piece by piece and by name: what is saved, resumed and moved
/// between devices.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/layers/parameter_part.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// One piece of a session's state: a tensor on its device, or a number of the host.
struct StateEntry {
  std::string name;    ///< such as "model.blocks.0.qkv.weight" or "optimizer.steps"
  std::string format;  ///< of its elements: "fp32", "bf16", "8-bit", "E8M0", "uint32", "int64"
  std::vector<Index> shape;  ///< empty: one number
  std::size_t bytes = 0;
  /// Of the whole tensor, where ranks hold a part each: `shape`, of one dimension, is then of this
  /// rank's elements, which are those of the whole from `begin` on.
  std::vector<Index> whole = {};
  Index begin = 0;
  /// Which part of a parameter, or of its optimizer's state, the tensor is, where ranks share the
  /// layers: what stands above is of that part.
  ParameterPart part = {};
  /// Copies it to `bytes` bytes of the host; waits for it.
  std::function<void(std::byte*)> read_sync;
  /// Copies it from the host; waits for it.
  std::function<void(const std::byte*)> write_sync;
  /// Begins to copy it, on any one thread, between the session's `begin_reading` and `end_reading`;
  /// the target is of `allocate_for_reading`. None: only the thread of the session can read it.
  std::function<void(std::byte*)> read_beside = nullptr;
};

/// A number of the host, which the entry refers to.
[[nodiscard]] inline StateEntry number_entry(const std::string& name, std::int64_t& number) {
  StateEntry entry;
  entry.name = name;
  entry.format = "int64";
  entry.bytes = sizeof(number);
  entry.read_sync = [&number](std::byte* target) { std::memcpy(target, &number, sizeof(number)); };
  entry.write_sync = [&number](const std::byte* source) {
    std::memcpy(&number, source, sizeof(number));
  };
  return entry;
}

/// What must be the same on both sides: `text` stands where others have their format, and the entry
/// has no bytes.
[[nodiscard]] inline StateEntry text_entry(const std::string& name, const std::string& text) {
  StateEntry entry;
  entry.name = name;
  entry.format = text;
  entry.read_sync = [](std::byte*) {};
  entry.write_sync = [](const std::byte*) {};
  return entry;
}

namespace detail {

/// The name of what elements of a state are stored as.
template <class T>
std::string state_format() {
  if constexpr (std::is_same_v<T, std::uint32_t>) {
    return "uint32";
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return "int64";
  } else {
    return FormatTraits<T>::name;
  }
}

/// Bytes of a copy beside a session's work: others of the device stand behind one of them at most.
inline constexpr std::size_t bytes_read_at_once = std::size_t{64} << 20;

/// Collects what is shown to it; the contexts must outlive the entries' use.
template <Device D>
class StateCollector {
 public:
  /// @param beside  for `read_beside`
  StateCollector(const Context<D>& context, const Context<D>& beside)
      : context_(context), beside_(beside) {}

  /// @tparam Where  the device, or `Cpu` for what lives in the host's memory
  template <class T, int Rank, Device Where>
  void operator()(const std::string& name, TensorView<T, Rank, Where> view) {
    const std::vector<Index> shape(view.shape().begin(), view.shape().end());
    add(name, view, 0, shape);
  }

  /// This rank's part of a tensor: the elements from `begin` on of one of shape `whole`.
  template <class T, Device Where, class Shape>
  void operator()(const std::string& name, TensorView<T, 1, Where> part, Index begin,
                  const Shape& whole) {
    add(name, part, begin, {whole.begin(), whole.end()});
  }

  /// What must be the same on both sides; see `text_entry`.
  void say(const std::string& name, const std::string& text) {
    entries_.push_back(text_entry(name, text));
  }

  /// A number of the host, which the entry refers to.
  void operator()(const std::string& name, std::int64_t& number) {
    entries_.push_back(number_entry(name, number));
  }

  [[nodiscard]] std::vector<StateEntry> take() { return std::move(entries_); }

 private:
  template <class T, int Rank, Device Where>
  void add(const std::string& name, TensorView<T, Rank, Where> view, Index begin,
           std::vector<Index> whole) {
    constexpr bool is_on_host = std::is_same_v<Where, Cpu> && !std::is_same_v<D, Cpu>;
    StateEntry entry{name,
                     state_format<T>(),
                     {view.shape().begin(), view.shape().end()},
                     view.bytes(),
                     std::move(whole),
                     begin,
                     {},
                     {},
                     {}};
    if constexpr (is_on_host) {
      add_bytes_of_host(std::move(entry), view.data());
    } else {
      add_bytes(std::move(entry), view.data());
    }
  }
  /// @param data  where on the device the entry's bytes are
  void add_bytes(StateEntry entry, void* data) {
    const Context<D>& context = context_;
    const std::size_t bytes = entry.bytes;
    entry.read_sync = [data, bytes, &context](std::byte* target) {
      copy_to_host_sync(target, data, bytes, context);
    };
    entry.write_sync = [data, bytes, &context](const std::byte* source) {
      copy_to_device_sync(data, source, bytes, context);
    };
    entry.read_beside = [data, bytes, &beside = beside_](std::byte* target) {
      const auto* source = static_cast<const std::byte*>(data);
      for (std::size_t at = 0; at < bytes; at += bytes_read_at_once) {
        copy_to_host(target + at, source + at, std::min(bytes_read_at_once, bytes - at), beside);
      }
    };
    entries_.push_back(std::move(entry));
  }
  /// @param data  where in the host's memory they are, once the device has done what it was given
  void add_bytes_of_host(StateEntry entry, void* data) {
    const Context<D>& context = context_;
    const std::size_t bytes = entry.bytes;
    entry.read_sync = [data, bytes, &context](std::byte* target) {
      context.synchronize();
      if (bytes != 0) std::memcpy(target, data, bytes);
    };
    entry.write_sync = [data, bytes, &context](const std::byte* source) {
      context.synchronize();
      if (bytes != 0) std::memcpy(data, source, bytes);
    };
    entry.read_beside = [data, bytes](std::byte* target) {
      if (bytes != 0) std::memcpy(target, data, bytes);
    };
    entries_.push_back(std::move(entry));
  }

  const Context<D>& context_;
  const Context<D>& beside_;
  std::vector<StateEntry> entries_;
};

}  // namespace detail

/// A copy of one entry on the host.
struct SavedEntry {
  std::string format;
  std::vector<Index> shape;
  std::vector<std::byte> bytes;
  std::vector<Index> whole = {};  ///< see StateEntry
  Index begin = 0;
  ParameterPart part = {};

  friend bool operator==(const SavedEntry&, const SavedEntry&) = default;
};

/// A copy of a state on the host, by name. It belongs to no device.
using SavedState = std::map<std::string, SavedEntry>;

/// Copies a state to the host, and waits for it.
/// @param entries  such as a session's `state()`
[[nodiscard]] inline SavedState save_state_sync(std::span<const StateEntry> entries) {
  SavedState saved;
  for (const StateEntry& entry : entries) {
    SavedEntry copy{entry.format, entry.shape, std::vector<std::byte>(entry.bytes),
                    entry.whole,  entry.begin, entry.part};
    entry.read_sync(copy.bytes.data());
    const bool is_new = saved.emplace(entry.name, std::move(copy)).second;
    require<UsageError>(is_new, "two parts of the state are called ", entry.name,
                        "; name each parameter and layer once");
  }
  return saved;
}

/// Copies a saved state to where it belongs, and waits for it. The session that the entries are of
/// then goes on as the one that was saved. Nothing is written unless all fits.
/// @throws ConfigError  naming the first entry that the other side lacks, or that has another
///                      format, shape or number of bytes there
inline void load_state_sync(const SavedState& saved, std::span<const StateEntry> entries) {
  const auto text = [](const std::string& format, const std::vector<Index>& shape) {
    if (shape.empty()) return format;
    std::string result = format + " [";
    for (std::size_t i = 0; i < shape.size(); ++i) {
      result += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return result + "]";
  };
  for (const StateEntry& entry : entries) {
    const auto found = saved.find(entry.name);
    require<ConfigError>(found != saved.end(), "the saved state has no ", entry.name,
                         "; it is of another model, recipe or optimizer");
    const SavedEntry& copy = found->second;
    require<ConfigError>(copy.format == entry.format && copy.shape == entry.shape, entry.name,
                         " is ", text(copy.format, copy.shape), " in the saved state, but ",
                         text(entry.format, entry.shape),
                         " here; it is of another model, recipe or optimizer");
    require<ConfigError>(copy.whole == entry.whole && copy.begin == entry.begin, entry.name,
                         " is the part from element ", copy.begin, " on of ",
                         text(copy.format, copy.whole), " in the saved state, but from ",
                         entry.begin, " on of ", text(entry.format, entry.whole),
                         " here; it is of another rank, or of another number of ranks");
    require<ConfigError>(copy.part == entry.part, entry.name, " is part ", copy.part.place, " of ",
                         copy.part.degree, " in the saved state, but part ", entry.part.place,
                         " of ", entry.part.degree,
                         " here; it is of another rank, or of another TensorParallel");
    require<ConfigError>(copy.bytes.size() == entry.bytes, entry.name, " has ", copy.bytes.size(),
                         " bytes in the saved state, but ", entry.bytes,
                         " are needed; it is damaged, take another");
  }
  if (saved.size() != entries.size()) {
    SavedState rest = saved;
    for (const StateEntry& entry : entries) rest.erase(entry.name);
    throw ConfigError(message("the saved state has ", rest.begin()->first,
                              ", which is nothing of this session; it is of another model, recipe "
                              "or optimizer"));
  }
  for (const StateEntry& entry : entries) entry.write_sync(saved.at(entry.name).bytes.data());
}

}  // namespace octavo
