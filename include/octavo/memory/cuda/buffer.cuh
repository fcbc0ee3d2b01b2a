/// @file
/// GPU memory buffers, and copies between host and GPU. Host code.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/memory/buffer.hpp>

#include <cstring>

namespace octavo OCTAVO_ABI {

/// Returns the bytes of free GPU memory.
[[nodiscard]] inline std::size_t free_bytes(const Context<Cuda>& context) {
  context.make_current();
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

/// Allocates `bytes` > 0 of GPU memory. Allocating and freeing synchronise with the GPU,
/// so do neither in a step.
/// @throws MemoryError  if the GPU does not have that much memory left
[[nodiscard]] inline OwnedBytes allocate(std::size_t bytes, const Context<Cuda>& context) {
  context.make_current();
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc", " for ", bytes, " bytes on GPU ", context.gpu(),
        ", which has ", free_bytes(context),
        " free; choose a smaller batch, a recompute policy, BF16 optimizer state or a smaller "
        "model, or end other programs on this GPU");
  return {static_cast<std::byte*>(memory), {[](std::byte* taken, void*) { cudaFree(taken); }}};
}

/// Allocates `bytes` > 0 of pinned host memory, which GPU copies access asynchronously.
/// Slow, because every page is pinned.
/// @throws MemoryError  if the host does not have that much memory left, or does not allow it to be
///                      pinned
[[nodiscard]] inline OwnedBytes allocate_on_host(std::size_t bytes, const Context<Cuda>& context) {
  detail::require_host_memory(bytes, detail::offload_advice);
  context.make_current();
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes), "cudaMallocHost", " for ", bytes,
        " bytes of pinned memory, but the host has ", available_host_memory(), " bytes left",
        detail::offload_advice);
  return {static_cast<std::byte*>(memory), {[](std::byte* taken, void*) { cudaFreeHost(taken); }}};
}

/// Copies `bytes` from memory of `allocate_on_host` to the device.
/// @note enqueues; does not synchronise
inline void copy_to_device(void* target, const void* source, std::size_t bytes,
                           const Context<Cuda>& context) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, context.stream()),
        "cudaMemcpyAsync to the device");
}

/// Copies `bytes` from the device to memory of `allocate_on_host`.
/// @note enqueues; does not synchronise
inline void copy_to_host(void* target, const void* source, std::size_t bytes,
                         const Context<Cuda>& context) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, context.stream()),
        "cudaMemcpyAsync to the host");
}

/// Copies `bytes` from the host to the device, after all work enqueued so far. Synchronises,
/// because pinned memory could otherwise be read after this function returns. Not for use in a
/// step: see Staging.
inline void copy_to_device_sync(void* target, const void* source, std::size_t bytes,
                                const Context<Cuda>& context) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, context.stream()),
        "cudaMemcpyAsync to the device");
  context.synchronize();
}

/// Copies `bytes` from the device to the host, after all work enqueued so far; synchronises.
inline void copy_to_host_sync(void* target, const void* source, std::size_t bytes,
                              const Context<Cuda>& context) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, context.stream()),
        "cudaMemcpyAsync to the host");
  context.synchronize();
}

/// Copies `bytes` within the device; the ranges must not overlap.
/// @note enqueues; does not synchronise
inline void copy_on_device(void* target, const void* source, std::size_t bytes,
                           const Context<Cuda>& context) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, context.stream()),
        "cudaMemcpyAsync on the device");
}

/// Sets `bytes` of the device to zero.
/// @note enqueues; does not synchronise
inline void fill_zero(void* target, std::size_t bytes, const Context<Cuda>& context) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(target, 0, bytes, context.stream()), "cudaMemsetAsync");
}

/// See Staging. Copies through pinned host memory.
template <>
class Staging<Cuda> {
 public:
  /// @param bytes  maximum of all copies between two calls of `begin`
  /// @throws CudaError  if the host does not have that much memory left
  Staging(std::size_t bytes, const Context<Cuda>& context) : bytes_(bytes) {
    context.make_current();
    void* memory = nullptr;
    check(cudaMallocHost(&memory, bytes), "cudaMallocHost", " for ", bytes,
          " bytes; choose a smaller batch");
    memory_ = {static_cast<std::byte*>(memory),
               {[](std::byte* taken, void*) { cudaFreeHost(taken); }}};
  }

  void begin() { used_ = 0; }

  /// @throws ShapeError  if more is copied than fits
  void copy(void* target, const void* source, std::size_t bytes, const Context<Cuda>& context) {
    if (bytes == 0) return;
    require<ShapeError>(bytes <= bytes_ - used_, "Staging: ", bytes, " bytes do not fit in the ",
                        bytes_ - used_, " bytes left of ", bytes_, "; make it larger");
    std::byte* const staged = memory_.get() + used_;
    std::memcpy(staged, source, bytes);
    used_ += bytes;
    check(cudaMemcpyAsync(target, staged, bytes, cudaMemcpyHostToDevice, context.stream()),
          "cudaMemcpyAsync to the device");
  }

 private:
  OwnedBytes memory_;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

}  // namespace octavo
