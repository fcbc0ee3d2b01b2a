/// @file
/// The typed exceptions that the library throws. Each message says what is wrong, with the
/// offending value, and what to do about it.
#pragma once

#include <octavo/core/version.hpp>

#include <sstream>
#include <stdexcept>
#include <string>

namespace octavo::inline OCTAVO_ABI {

/// Base of every exception that the library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A tensor's shape does not fit the operation.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// The program calls the library in a way that cannot work, whatever its user sets: a mistake in
/// the program.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A setting has a value that cannot work.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file cannot be read or written, or its content is not what it should be.
class IoError : public Error {
 public:
  using Error::Error;
};

/// What ran is not what the manifest of GEMMs announced.
class ManifestError : public Error {
 public:
  using Error::Error;
};

/// A device, `Cpu` or `Cuda`, has less memory left than is asked of it.
class MemoryError : public Error {
 public:
  using Error::Error;
};

/// A call of the CUDA runtime failed, or one of cuDNN where the machine is at fault.
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& what, int status = 0) : Error(what), status_(status) {}

  /// The `cudaError_t`, such as `cudaErrorIllegalAddress`; 0: a library's error, not the runtime's.
  [[nodiscard]] int status() const { return status_; }

 private:
  int status_;
};

/// A cuBLASLt call failed, or no algorithm serves the GEMM.
class CublasError : public Error {
 public:
  using Error::Error;
};

/// Ranks that train one model do not answer each other, or differ where they must be alike.
class CommError : public Error {
 public:
  using Error::Error;
};

/// Joins values to one message: `message("batch is ", 0, "; give at least 1")`.
template <class... Parts>
[[nodiscard]] std::string message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Throws `E` with the joined parts unless `condition` holds.
template <class E, class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw E(message(parts...));
}

}  // namespace octavo
