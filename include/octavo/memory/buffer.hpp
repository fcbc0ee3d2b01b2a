/// @file
/// Memory that is owned, and copies in and out of it.
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

/// Frees what a device's `allocate` gave. It is a value, not a type, so that a buffer needs no
/// header of its device until it allocates.
struct Release {
  void (*release)(std::byte* memory, void* owner) = nullptr;
  void* owner = nullptr;  ///< who knows of the memory, and outlives it; null: nobody

  void operator()(std::byte* memory) const { release(memory, owner); }
};

/// Bytes of some device that free themselves.
using OwnedBytes = std::unique_ptr<std::byte, Release>;

namespace detail {

/// What to do where the host's memory does not hold what was moved there.
inline constexpr const char* offload_advice =
    "; take BF16 or 8-bit moments, share the optimizer's state with more ranks, or leave it on the "
    "device: plan_memory says what each needs";

/// @throws MemoryError  if the host has not that much memory left
inline void require_host_memory(std::size_t bytes, const char* advice) {
  const std::size_t available = available_host_memory();
  require<MemoryError>(bytes <= available, "the host has ", available,
                       " bytes of memory left, not ", bytes, advice);
}

inline OwnedBytes allocate_plain(std::size_t bytes, const char* advice) {
  constexpr std::align_val_t alignment{allocation_alignment};
  require_host_memory(bytes, advice);
  void* taken = nullptr;
  try {
    taken = ::operator new(bytes, alignment);
  } catch (const std::bad_alloc&) {
    throw MemoryError(message("the system refuses ", bytes,
                              " bytes of memory, such as by a limit of ulimit -v", advice));
  }
  return {static_cast<std::byte*>(taken), {[](std::byte* memory, void*) {
            ::operator delete (memory, std::align_val_t{alignment});
          }}};
}

}  // namespace detail

/// `bytes` of the host, more than 0.
/// @throws MemoryError  if the host has not that much memory left; two runs of bytes that were not
///                      written to yet may both be granted where there is memory for one
[[nodiscard]] inline OwnedBytes allocate(std::size_t bytes, const Context<Cpu>&) {
  return detail::allocate_plain(
      bytes,
      "; take a smaller batch or shorter sequences, or recompute more: plan_memory --device cpu "
      "says what each needs");
}

/// `bytes` of the host, more than 0, which a device's copies reach while it does other work.
/// @throws MemoryError  see `allocate`
[[nodiscard]] inline OwnedBytes allocate_on_host(std::size_t bytes, const Context<Cpu>&) {
  return detail::allocate_plain(bytes, detail::offload_advice);
}

/// Owns a run of bytes on a device. Move-only.
template <Device D>
class Buffer {
 public:
  Buffer() = default;
  /// @throws CudaError    if the GPU has not that much memory left
  /// @throws MemoryError  if the host has not
  Buffer(std::size_t bytes, const Context<D>& context) : bytes_(bytes) {
    if (bytes != 0) memory_ = allocate(bytes, context);
  }
  /// Owns `bytes` that were allocated elsewhere.
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

/// Copies `bytes` from the host to the device, after all that was enqueued; waits for it.
inline void copy_to_device_sync(void* target, const void* source, std::size_t bytes,
                                const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Copies `bytes` from the device to the host, after all that was enqueued; waits for it.
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

/// Copies `bytes` from one place of the device to another that does not overlap it.
inline void copy_on_device(void* target, const void* source, std::size_t bytes,
                           const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Sets `bytes` of the device to zero.
inline void fill_zero(void* target, std::size_t bytes, const Context<Cpu>&) {
  if (bytes != 0) std::memset(target, 0, bytes);
}

/// Copies of a step's inputs to the device that the host does not wait for. The source may be
/// reused on return. Specialised for each device; of one that is not included compilers stop here.
template <Device D>
class Staging;

template <>
class Staging<Cpu> {
 public:
  /// Takes the bytes of all copies between two calls of `begin`, and needs none here.
  Staging(std::size_t, const Context<Cpu>&) {}

  /// All that was copied before has arrived: the context was synchronised since.
  void begin() {}

  void copy(void* target, const void* source, std::size_t bytes, const Context<Cpu>&) {
    if (bytes != 0) std::memcpy(target, source, bytes);
  }
};

}  // namespace octavo
