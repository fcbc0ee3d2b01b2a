/// @file
/// The communicator of a single rank.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/memory/buffer.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// The communicator of a single rank, which already has all parts.
template <Device D>
class SelfComm final : public Communicator<D> {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }

  void all_gather(TensorView<const std::byte, 1, D> part, TensorView<std::byte, 1, D> whole,
                  const char*, const Context<D>& context) override {
    if (part.data() != whole.data())
      copy_on_device(whole.data(), part.data(), part.bytes(), context);
  }
  void all_to_all(TensorView<const std::byte, 1, D>, TensorView<std::byte, 1, D>, const char*,
                  const Context<D>&) override {}
  void all_reduce_max(TensorView<std::uint32_t, 1, D>, const char*, const Context<D>&) override {}
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char*) override {
    std::copy(part.begin(), part.end(), whole.begin());
  }
  [[nodiscard]] std::unique_ptr<Communicator<D>> split(int) override {
    return std::make_unique<SelfComm>();
  }
};

}  // namespace octavo
