/// @file
/// Which NCCL a program runs with.
#pragma once

#include <octavo/core/error.hpp>

#include <nccl.h>

#include <string>

namespace octavo::inline OCTAVO_ABI {

/// "2.28.9" of 22809.
[[nodiscard]] inline std::string nccl_version_text(int version) {
  return message(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

/// The version of NCCL's library.
/// @throws ConfigError  if it is older than the header that the program was compiled with, or of
///                      another major version
[[nodiscard]] inline int checked_nccl_version() {
  int version = 0;
  const ncclResult_t status = ncclGetVersion(&version);
  require<CommError>(status == ncclSuccess, "ncclGetVersion failed: ", ncclGetErrorString(status));
  const bool is_known = version / 10000 == NCCL_MAJOR && version / 100 >= NCCL_VERSION_CODE / 100;
  require<ConfigError>(is_known, "this program was compiled with NCCL ",
                       nccl_version_text(NCCL_VERSION_CODE), ", but finds the library ",
                       nccl_version_text(version), "; put one of that version or a later ",
                       NCCL_MAJOR, ".x before it in LD_LIBRARY_PATH, or compile with its header");
  return version;
}

}  // namespace octavo
