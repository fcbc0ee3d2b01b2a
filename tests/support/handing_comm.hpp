/// @file
/// A communicator that hands everything on to another: what looks at some of it, or changes some,
/// derives from this.
#pragma once

#include <octavo/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace support {

class ForwardingComm : public octavo::Communicator<octavo::Cpu> {
 public:
  template <class T>
  using Elements = octavo::TensorView<T, 1, octavo::Cpu>;
  using Context = octavo::Context<octavo::Cpu>;

  /// @param ranks  outlive this
  explicit ForwardingComm(octavo::Communicator<octavo::Cpu>& ranks) : ranks_(ranks) {}

  [[nodiscard]] int rank() const override { return ranks_.rank(); }
  [[nodiscard]] int size() const override { return ranks_.size(); }
  void all_gather(Elements<const std::byte> part, Elements<std::byte> whole, const char* what,
                  const Context& context) override {
    ranks_.all_gather(part, whole, what, context);
  }
  void all_to_all(Elements<const std::byte> parts, Elements<std::byte> received, const char* what,
                  const Context& context) override {
    ranks_.all_to_all(parts, received, what, context);
  }
  void all_reduce_max(Elements<std::uint32_t> values, const char* what,
                      const Context& context) override {
    ranks_.all_reduce_max(values, what, context);
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    ranks_.all_gather_host_sync(part, whole, what);
  }
  [[nodiscard]] std::unique_ptr<octavo::Communicator<octavo::Cpu>> split(int group) override {
    return ranks_.split(group);
  }

 private:
  octavo::Communicator<octavo::Cpu>& ranks_;
};

}  // namespace support
