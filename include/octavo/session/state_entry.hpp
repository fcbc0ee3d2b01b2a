/// @file
/// Named entries of the state of a training run.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/layers/parameter_part.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/optim/state_visitor.hpp>
#include <octavo/session/state_reader.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// One entry of a session's state: a tensor on its device, or a number in host memory.
struct StateEntry {
  std::string name;    ///< such as "model.blocks.0.qkv.weight" or "optimizer.steps"
  std::string format;  ///< of its elements: "fp32", "bf16", "8-bit", "E8M0", "uint32", "int64"
  std::vector<Index> shape;  ///< empty: a scalar
  std::size_t bytes = 0;
  /// Shape of the whole tensor, if it is sharded: `shape` then has one dimension, the elements of
  /// this rank, which start at element `begin` of the whole.
  std::vector<Index> whole = {};
  Index begin = 0;
  /// With tensor parallelism, the part of a parameter or of its optimizer state that the tensor
  /// contains; the members above describe that part.
  ParameterPart part = {};
  /// Copies it to `bytes` bytes of host memory, and waits for it.
  std::function<void(std::byte*)> read_sync;
  /// Copies it from host memory, and waits for it.
  std::function<void(const std::byte*)> write_sync;
  /// Copies it asynchronously, until the session's `end_reading`; the same thread calls both, and
  /// may be any thread. The target must come from `allocate_for_reading`. None: only the session's
  /// thread can read it.
  std::function<void(std::byte*)> read_async = nullptr;
};

/// Returns an entry that refers to a number in host memory.
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

/// A value that must be equal on both sides: `text` takes the place of the format, and the entry
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

/// Returns the start of a message about an entry, such as "the adapters are of ".
inline std::string entry_is(const std::string& name) {
  if (name == "session.recipe") return "the recipe is ";
  if (name == "session.lora") return "the adapters are of ";
  return name + " is ";
}
/// Returns the advice for an entry that the saved state lacks, or that differs from it.
inline const char* entry_advice(const std::string& name) {
  if (name.starts_with("data.")) {
    return "; the text or the options of its batches have changed since: resume with the run's "
           "original ones";
  }
  if (name == "session.recipe" || name == "session.lora") {
    return "; create the session with the same";
  }
  return "; it is of a different model, recipe or optimizer";
}

/// Collects the entries that it visits. The context and the reader must outlive the entries.
template <Device D>
class StateCollector final : public StateVisitor<D> {
 public:
  /// @param reader  for `read_async`
  StateCollector(const Context<D>& context, StateReader<D>& reader)
      : context_(context), reader_(reader) {}

  void add(StateTensor tensor) override {
    StateEntry entry{std::move(tensor.name),
                     std::move(tensor.format),
                     std::move(tensor.shape),
                     tensor.bytes,
                     std::move(tensor.whole),
                     tensor.begin,
                     {},
                     {},
                     {}};
    if (tensor.is_on_host) {
      add_bytes_of_host(std::move(entry), tensor.data);
    } else {
      add_bytes(std::move(entry), tensor.data);
    }
  }
  void add(const std::string& name, std::int64_t& number) override {
    entries_.push_back(number_entry(name, number));
  }

  /// Adds a value that must be equal on both sides; see `text_entry`.
  void say(const std::string& name, const std::string& text) {
    entries_.push_back(text_entry(name, text));
  }

  [[nodiscard]] std::vector<StateEntry> take() { return std::move(entries_); }

 private:
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
    entry.read_async = [data, bytes, &reader = reader_](std::byte* target) {
      reader.add(static_cast<const std::byte*>(data), target, bytes);
    };
    entries_.push_back(std::move(entry));
  }
  /// @param data  where the entry's bytes are in host memory, once the device has finished its work
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
    entry.read_async = [data, bytes](std::byte* target) {
      if (bytes != 0) std::memcpy(target, data, bytes);
    };
    entries_.push_back(std::move(entry));
  }

  const Context<D>& context_;
  StateReader<D>& reader_;
  std::vector<StateEntry> entries_;
};

}  // namespace detail

}  // namespace octavo
