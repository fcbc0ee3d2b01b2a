#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

/// Counts what a program allocates through `new`. It replaces the global operators, so include it
/// in one file of a program.
namespace support {

inline std::atomic<bool> counting_allocations{false};
inline std::atomic<std::size_t> allocations{0};

inline void* counted_allocation(std::size_t size, std::size_t alignment) {
  if (counting_allocations) ++allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(size == 0 ? 1 : size)
                                                        : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

/// Number of allocations while `body` runs, on all threads.
template <class Body>
std::size_t count_allocations(const Body& body) {
  allocations = 0;
  counting_allocations = true;
  body();
  counting_allocations = false;
  return allocations;
}

}  // namespace support

// The other forms of new and delete call these, but for AddressSanitizer's own, which are not
// counted; one is here, as its memory is given back by a delete that is here. Not inlined: g++
// would take malloc and free at their calls for a mismatch of new and free.
// NOLINTBEGIN(misc-definitions-in-headers)
[[gnu::noinline]] void* operator new(std::size_t size) {
  return support::counted_allocation(size, 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return support::counted_allocation(size, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return support::counted_allocation(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
// NOLINTEND(misc-definitions-in-headers)
