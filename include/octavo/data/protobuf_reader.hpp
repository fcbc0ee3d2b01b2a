/// @file
/// Reading messages in Protocol Buffers' wire format.
#pragma once

#include <octavo/core/error.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Reads the fields of a message in order. Invalid data cause an IoError that names the byte.
/// Source: https://protobuf.dev/programming-guides/encoding/
class ProtobufReader {
 public:
  /// A field of a message.
  struct Field {
    std::uint64_t number = 0;
    std::uint64_t integer = 0;  ///< of a number
    std::string_view bytes{};   ///< of a text or message
    std::size_t at = 0;         ///< the place of `bytes` in the file
    bool is_bytes = false;      ///< false: a number
    bool is_float = false;      ///< a number of 32 bits
    const ProtobufReader* reader = nullptr;

    [[nodiscard]] float real() const {
      if (!is_float) reader->fail(message("field ", number, " must be a number of 32 bits"));
      return std::bit_cast<float>(static_cast<std::uint32_t>(integer));
    }
    [[nodiscard]] std::uint64_t natural() const {
      if (is_bytes || is_float) reader->fail(message("field ", number, " must be an integer"));
      return integer;
    }
    [[nodiscard]] std::string_view text() const {
      if (!is_bytes) reader->fail(message("field ", number, " must be a text or a message"));
      return bytes;
    }
    /// Returns a reader of the message in this field.
    [[nodiscard]] ProtobufReader fields() const { return {text(), reader->place_, at}; }
  };

  /// @param bytes   outlive the reader
  /// @param place   source of the bytes, for messages
  /// @param offset  of the first byte there
  ProtobufReader(std::string_view bytes, std::string place, std::size_t offset = 0)
      : bytes_(bytes), place_(std::move(place)), offset_(offset) {}

  /// Calls `body(field)` for each field.
  template <class Body>
  void each(const Body& body) {
    while (at_ < bytes_.size()) {
      const std::uint64_t key = variable();
      Field field{.number = key >> 3, .reader = this};
      const std::uint64_t kind = key & 7u;
      if (field.number == 0) fail("a field has the number 0");
      if (kind == 0) {
        field.integer = variable();
      } else if (kind == 1) {
        field.integer = fixed(8);
      } else if (kind == 5) {
        field.integer = fixed(4);
        field.is_float = true;
      } else if (kind == 2) {
        const std::uint64_t size = variable();
        if (size > bytes_.size() - at_) fail("the file ends within a field");
        field.at = offset_ + at_;
        field.bytes = bytes_.substr(at_, static_cast<std::size_t>(size));
        field.is_bytes = true;
        at_ += static_cast<std::size_t>(size);
      } else {
        fail(message("a field has the unknown type ", kind));
      }
      body(std::as_const(field));
    }
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw IoError(message(place_, ": at byte ", offset_ + at_, ": ", what,
                          "; download the file again, or use another"));
  }

 private:
  std::uint64_t fixed(std::size_t size) {
    if (size > bytes_.size() - at_) fail("the file ends within a number");
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;)
      value = (value << 8) | static_cast<std::uint8_t>(bytes_[at_ + i]);
    at_ += size;
    return value;
  }

  std::uint64_t variable() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail("the file ends within a number");
      const auto byte = static_cast<std::uint8_t>(bytes_[at_++]);
      value |= static_cast<std::uint64_t>(byte & 0x7fu) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number has more than 64 bits");
  }

  std::string_view bytes_;
  std::string place_;
  std::size_t offset_;
  std::size_t at_ = 0;
};

}  // namespace detail

}  // namespace octavo
