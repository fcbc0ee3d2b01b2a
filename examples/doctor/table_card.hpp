// A GPU in the table of recipes. Without fmt, which nvcc does not compile.
#pragma once

#include <octavo/core/capability.hpp>

#include <string>

namespace doctor {

struct TableCard {
  std::string name;
  octavo::GpuFeatures gpu;
};

}  // namespace doctor
