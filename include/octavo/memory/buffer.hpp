/// @file
/// Owning memory buffers, and copies between host and device.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/memory/host_memory.hpp>

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace octavo OCTAVO_ABI {

/// Every allocation starts at a multiple of this many bytes.
inline constexpr std::size_t allocation_alignment = 256;

/// Frees memory allocated by a device's `allocate`. The device is a value, not a type, so that a
/// buffer needs its device's header only to allocate.
struct OwnedBytesRelease {
  void (*release)(std::byte* memory, void* owner) = nullptr;
  void* owner = nullptr;  ///< accounts for the memory and outlives it; null: none

  void operator()(std::byte* memory) const { release(memory, owner); }
};

/// Memory of some device, freed automatically.
using OwnedBytes = std::unique_ptr<std::byte, OwnedBytesRelease>;

namespace detail {

/// Advice for errors if host memory is too small for offloaded state and activations.
inline constexpr const char* offload_advice =
    "; offload less, use a smaller batch or smaller moments, or share the optimizer's state among "
    "more ranks: plan_memory reports the memory of each";

/// @throws MemoryError  if the host does not have that much memory left
inline void require_host_memory(std::size_t bytes, const char* advice) {
  const std::size_t available = available_host_memory();
  require<MemoryError>(bytes <= available, "the host has ", available,
                       " bytes of free memory, not ", bytes, advice);
}

inline OwnedBytes allocate_plain(std::size_t bytes, const char* advice) {
  constexpr std::align_val_t alignment{allocation_alignment};
  require_host_memory(bytes, advice);
  void* taken = nullptr;
  try {
    taken = ::operator new(bytes, alignment);
  } catch (const std::bad_alloc&) {
    throw MemoryError(message("the system refuses ", bytes,
                              " bytes of memory, for example because of ulimit -v", advice));
  }
  return {static_cast<std::byte*>(taken), {[](std::byte* memory, void*) {
            ::operator delete(memory, std::align_val_t{alignment});
          }}};
}

}  // namespace detail

/// Allocates `bytes` > 0 of host memory.
/// @throws MemoryError  if the host does not have that much memory left; two allocations that have
/// not been written to may both succeed although there is memory for only one
[[nodiscard]] inline OwnedBytes allocate(std::size_t bytes, const Context<Cpu>&) {
  return detail::allocate_plain(bytes,
                                "; use a smaller batch or shorter sequences, or recompute more: "
                                "plan_memory --device cpu reports the memory of each");
}

/// Allocates `bytes` > 0 of host memory that device copies can access asynchronously.
/// @throws MemoryError  see `allocate`
[[nodiscard]] inline OwnedBytes allocate_on_host(std::size_t bytes, const Context<Cpu>&) {
  return detail::allocate_plain(bytes, detail::offload_advice);
}

/// Owns a block of memory on a device. Move-only.
template <Device D>
class Buffer {
 public:
  Buffer() = default;
  /// @throws CudaError    if the GPU does not have that much memory left
  /// @throws MemoryError  if the host does not
  Buffer(std::size_t bytes, const Context<D>& context) : bytes_(bytes) {
    if (bytes != 0) memory_ = allocate(bytes, context);
  }
  /// Takes ownership of `bytes` bytes that were allocated elsewhere.
  Buffer(OwnedBytes memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  OwnedBytes memory_;
  std::size_t bytes_ = 0;
};

/// Copies `bytes` from the host to the device, after all work enqueued so far; synchronises.
inline void copy_to_device_sync(void* target, const void* source, std::size_t bytes,
                                const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Copies `bytes` from the device to the host, after all work enqueued so far; synchronises.
inline void copy_to_host_sync(void* target, const void* source, std::size_t bytes,
                              const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Copies `bytes` from memory of `allocate_on_host` to the device.
inline void copy_to_device(void* target, const void* source, std::size_t bytes,
                           const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Copies `bytes` from the device to memory of `allocate_on_host`.
inline void copy_to_host(void* target, const void* source, std::size_t bytes, const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Copies `bytes` within the device; the ranges must not overlap.
inline void copy_on_device(void* target, const void* source, std::size_t bytes,
                           const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Sets `bytes` of device memory to zero.
inline void fill_zero(void* target, std::size_t bytes, const Context<Cpu>&) {
  if (bytes != 0) std::memset(target, 0, bytes);
}

/// Copies a step's inputs to the device without blocking the host. The source may be reused on
/// return. Specialised for each device; using it without the device's header does not compile.
template <Device D>
class Staging;

template <>
class Staging<Cpu> {
 public:
  /// Reserves the bytes of all copies between two calls of `begin`; unused here.
  Staging(std::size_t, const Context<Cpu>&) {}

  /// Begins a new set of copies. All previous copies must have completed, because the context was
  /// synchronised since then.
  void begin() {}

  void copy(void* target, const void* source, std::size_t bytes, const Context<Cpu>&) {
    if (bytes != 0) std::memcpy(target, source, bytes);
  }
};

}  // namespace octavo
