// State is copied as it was, however much of it is put aside on the device.
#include <octavo/core/cuda/lane.cuh>
#include <octavo/memory/cuda/buffer.cuh>
#include <octavo/session/state_reader.hpp>

#include "support/on_gpu.cuh"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace octavo {
namespace state_reader_cuda_test {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// A number of 32 bits at each place, by `round`.
std::vector<std::uint32_t> numbers(std::size_t bytes, std::uint32_t round) {
  std::vector<std::uint32_t> result(bytes / sizeof(std::uint32_t));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<std::uint32_t>(i) * 2654435761u + round;
  }
  return result;
}

/// Reads 500 MiB that change as soon as they may, after the device has come to where it waits.
/// @param left  bytes of the device that are free then, at most; the rest is taken
/// @return  bytes that were put aside
std::size_t device_staged_bytes(std::size_t left) {
  constexpr std::size_t size = 500 * mebibyte;
  const Context<Cuda> context;
  Buffer<Cuda> state(size, context);
  const OwnedBytes copy = allocate_on_host(size, context);
  detail::StateReader<Cuda> reader(context);
  fill_zero(state.data(), 1, context);
  reader.begin();  // takes what a first copy takes
  reader.add(state.data(), copy.get(), 1);
  reader.finish();
  std::size_t most = 0;
  for (std::uint32_t round = 0; round < 2; ++round) {
    const std::vector<std::uint32_t> expected = numbers(size, round);
    copy_to_device_sync(state.data(), expected.data(), size, context);
    const std::size_t free = free_bytes(context);
    const Buffer<Cuda> others(free > left ? free - left : 0, context);
    reader.begin();
    std::thread thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      // Of no equal pieces, and one that is smaller than a piece.
      reader.add(state.data(), copy.get(), size / 3);
      reader.add(state.data() + size / 3, copy.get() + size / 3, size - size / 3 - 8);
      reader.add(state.data() + size - 8, copy.get() + size - 8, 8);
      reader.finish();
    });
    reader.wait();
    fill_zero(state.data(), size, context);
    thread.join();
    const auto* read = reinterpret_cast<const std::uint32_t*>(copy.get());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), read)) << "round " << round;
    most = std::max(most, reader.device_staged_bytes());
  }
  return most;
}

using StateReader = support::OnGpu;

TEST_F(StateReader, StagesUncopiedBytesOnDevice) {
  EXPECT_EQ(device_staged_bytes(~std::size_t{0}), 500 * mebibyte);
}

TEST_F(StateReader, StagesOnlyWhatFitsInDeviceMemory) {
  const std::size_t aside = device_staged_bytes(detail::min_free_bytes + 200 * mebibyte);
  EXPECT_GT(aside, 64 * mebibyte);
  EXPECT_LE(aside, 200 * mebibyte);
}

TEST_F(StateReader, WaitsForCopyWithoutDeviceMemory) {
  EXPECT_LT(device_staged_bytes(detail::min_free_bytes), mebibyte);
}

}  // namespace state_reader_cuda_test
}  // namespace octavo
