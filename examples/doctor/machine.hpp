// Facts about the machine that are available without CUDA.
#pragma once

#include <dlfcn.h>
#include <octavo/core/error.hpp>

#include <fstream>
#include <string>

namespace doctor {

/// Returns the version of NVIDIA's driver, such as "580.95.05", or "" if there is none.
inline std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    const bool numeric = word.find_first_not_of("0123456789.") == std::string::npos;
    if (numeric && word.find('.') != std::string::npos) return word;
  }
  return {};
}

/// Returns the version of NCCL if it is installed; only training on several GPUs needs it.
inline std::string nccl_version() {
  void* library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "not found (needed only for several GPUs)";
  using GetVersion = int(int*);
  const auto get_version = reinterpret_cast<GetVersion*>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return "found, of unknown version";
  return octavo::message(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace doctor
