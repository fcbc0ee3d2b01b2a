/// @file
/// Memory that is owned, and copies in and out of it.
#pragma once

#include <octavo/core/context.hpp>

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <utility>

namespace octavo {

/// Every allocation starts at a multiple of this many bytes.
inline constexpr std::size_t allocation_alignment = 256;

/// Owns a run of bytes on a device. Move-only. Specialised for each device.
template <Device D>
class Buffer;

template <>
class Buffer<Cpu> {
 public:
  Buffer() = default;
  Buffer(std::size_t bytes, const Context<Cpu>&) : bytes_(bytes) {
    if (bytes == 0) return;
    data_ = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{allocation_alignment}));
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{allocation_alignment});
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Copies `bytes` from the host to the device; the host memory may be reused on return.
inline void copy_to_device(void* target, const void* source, std::size_t bytes,
                           const Context<Cpu>&) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}

/// Copies `bytes` from the device to the host, after all that was enqueued; waits for it.
inline void copy_to_host_sync(void* target, const void* source, std::size_t bytes,
                              const Context<Cpu>&) {
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

}  // namespace octavo
