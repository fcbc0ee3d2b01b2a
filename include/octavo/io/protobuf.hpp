/// @file
/// The part of the Protocol Buffers wire format that TensorBoard's events need.
#pragma once

#include <octavo/core/version.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI::detail {

/// Returns the bytes of a number in little-endian order.
template <std::unsigned_integral T>
void append_little_endian(std::string& bytes, T number) {
  for (std::size_t i = 0; i < sizeof number; ++i) {
    bytes += static_cast<char>(number >> (8 * i) & 0xff);
  }
}

/// Builds one message, field by field. Source: protobuf.dev, "Encoding".
class ProtobufMessage {
 public:
  ProtobufMessage& add_varint(unsigned field, std::uint64_t value) {
    return append_varint(field << 3).append_varint(value);
  }
  ProtobufMessage& add_double(unsigned field, double value) {
    append_varint(field << 3 | 1);
    append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  ProtobufMessage& add_float(unsigned field, float value) {
    append_varint(field << 3 | 5);
    append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  /// Adds a text or a message.
  ProtobufMessage& add_bytes(unsigned field, std::string_view value) {
    append_varint(field << 3 | 2).append_varint(value.size());
    bytes_ += value;
    return *this;
  }
  /// Adds a packed list.
  ProtobufMessage& add_doubles(unsigned field, std::span<const double> values) {
    append_varint(field << 3 | 2).append_varint(8 * values.size());
    for (const double value : values) {
      append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    }
    return *this;
  }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  ProtobufMessage& append_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }

  std::string bytes_;
};

}  // namespace octavo OCTAVO_ABI::detail
