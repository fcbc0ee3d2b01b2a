/// @file
/// The typed exceptions that the library throws. Each message states what is wrong, the offending
/// value, and what to do about it.
#pragma once

#include <octavo/core/version.hpp>

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the text with "\0" in place of each NUL character, at which `what()` would end.
inline std::string without_nul(std::string text) {
  for (std::size_t at = 0; (at = text.find('\0', at)) != std::string::npos;)
    text.replace(at, 1, "\\0");
  return text;
}

}  // namespace detail

/// Base of all exceptions that the library defines.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(detail::without_nul(what)) {}
};

/// A tensor's shape does not fit the operation.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// The program calls the library incorrectly, regardless of the user's settings: a bug in the
/// program.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A setting has an invalid value.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A saved state belongs to a different session than the one that resumes from it.
class StateMismatchError : public ConfigError {
 public:
  /// @param subject  what differs: "model", "recipe", "optimizer" or "tensor_parallel" of a
  ///                 checkpoint, else the name of a StateEntry, such as "session.lora"
  /// @param saved    its value in the saved state; empty: it has none
  StateMismatchError(const std::string& what, std::string subject, std::string saved)
      : ConfigError(what), subject_(std::move(subject)), saved_(std::move(saved)) {}

  [[nodiscard]] const std::string& subject() const { return subject_; }
  [[nodiscard]] const std::string& saved() const { return saved_; }

 private:
  std::string subject_;
  std::string saved_;
};

/// A file cannot be read or written, or its content is not as expected.
class IoError : public Error {
 public:
  using Error::Error;
};

/// The GEMMs that ran differ from the manifest.
class ManifestError : public Error {
 public:
  using Error::Error;
};

/// A device, `Cpu` or `Cuda`, has less free memory than an allocation needs.
class MemoryError : public Error {
 public:
  using Error::Error;
};

/// A call of the CUDA runtime failed, or a call of cuDNN if the machine is at fault.
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& what, int status = 0) : Error(what), status_(status) {}

  /// The `cudaError_t`, such as `cudaErrorIllegalAddress`; 0 if the error comes from a library
  /// other than the runtime.
  [[nodiscard]] int status() const { return status_; }

 private:
  int status_;
};

/// A cuBLASLt call failed, or no algorithm supports the GEMM.
class CublasError : public Error {
 public:
  using Error::Error;
};

/// Ranks that train one model do not respond to each other, or differ in settings that must be
/// equal.
class CommError : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// A part of a message: text, a number, or a character. Not a template over the types of the parts,
/// so that a check costs one call and no extra code.
class MessagePart {
 public:
  // Implicit, so that a message is a list of its parts.
  MessagePart(std::string_view text) : text_(text) {}
  MessagePart(const std::string& text) : text_(text) {}
  MessagePart(const char* text) : text_(text) {}
  MessagePart(char letter) : kind_(Kind::letter), letter_(letter) {}
  MessagePart(double number) : kind_(Kind::real), real_(number) {}
  template <std::integral T>
  MessagePart(T number) : MessagePart(static_cast<long long>(number)) {}
  MessagePart(long long number) : kind_(Kind::whole), whole_(number) {}
  MessagePart(unsigned long number) : MessagePart(static_cast<unsigned long long>(number)) {}
  MessagePart(unsigned long long number) : kind_(Kind::natural), natural_(number) {}

  void append_to(std::string& message) const {
    switch (kind_) {
      case Kind::text:
        message += text_;
        break;
      case Kind::letter:
        message += letter_;
        break;
      case Kind::real:
        append_real(message);
        break;
      case Kind::whole:
        message += std::to_string(whole_);
        break;
      case Kind::natural:
        message += std::to_string(natural_);
        break;
    }
  }

 private:
  enum class Kind : unsigned char { text, letter, real, whole, natural };

  /// Writes six significant digits, as a stream does, and NaN without a sign.
  void append_real(std::string& message) const {
    if (real_ != real_) {
      message += "nan";
      return;
    }
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), real_,
                                   std::chars_format::general, 6);
    message.append(digits.data(), end.ptr);
  }

  Kind kind_ = Kind::text;
  char letter_ = 0;
  std::string_view text_{};
  double real_ = 0;
  long long whole_ = 0;
  unsigned long long natural_ = 0;
};

[[nodiscard]] inline std::string join(std::span<const MessagePart> parts) {
  std::string message;
  for (const MessagePart& part : parts) part.append_to(message);
  return message;
}

}  // namespace detail

/// Joins text, characters and numbers into one message: `message("batch must be at least 1, but is
/// ", 0)`.
template <class... Parts>
[[nodiscard]] std::string message(const Parts&... parts) {
  const std::array<detail::MessagePart, sizeof...(Parts)> all{detail::MessagePart(parts)...};
  return detail::join(all);
}

/// Returns the fewest digits that parse to the same number again. In messages six digits are
/// enough.
template <std::floating_point T>
[[nodiscard]] std::string shortest_text(T value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

/// Returns the number with this many digits after the decimal point, at most 100.
[[nodiscard]] inline std::string fixed_text(double value, int digits) {
  std::array<char, 512> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value,
                                     std::chars_format::fixed, digits)
                           .ptr};
}

/// Returns a number of bytes in a readable unit: "512 bytes", "1.5 KiB", "11.6 MiB", "15.0 GiB".
/// @param digits  after the decimal point
[[nodiscard]] inline std::string size_text(std::uint64_t bytes, int digits = 1) {
  constexpr std::array units{" KiB", " MiB", " GiB"};
  if (bytes < 1024) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  double most = 1024 - 0.5;  // a value that rounds to 1024 becomes 1 of the next unit
  for (int i = 0; i < digits; ++i) most = 1024 - (1024 - most) / 10;
  for (; value >= most && unit + 1 < units.size(); ++unit) value /= 1024;
  return fixed_text(value, digits) + units[unit];
}

/// Returns two numbers of bytes, with as many digits as they need to differ.
[[nodiscard]] inline std::array<std::string, 2> size_texts(std::uint64_t one, std::uint64_t other) {
  int digits = 1;
  while (digits < 12 && one != other && size_text(one, digits) == size_text(other, digits)) {
    ++digits;
  }
  return {size_text(one, digits), size_text(other, digits)};
}

/// Throws `E` with the joined parts unless `condition` holds.
template <class E, class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw E(message(parts...));
}

}  // namespace octavo
