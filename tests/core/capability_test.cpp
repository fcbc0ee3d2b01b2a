#include <octavo/core/capability.hpp>

#include <gtest/gtest.h>

#include <string>

namespace capability_test {

using namespace octavo;

TEST(Capability, OnlyHopperIsServed) {
  EXPECT_TRUE(capability_served(90));
  for (const int other : {0, 50, 75, 80, 86, 89, 91, 100, 103, 110, 120, 121}) {
    EXPECT_FALSE(capability_served(other)) << other;
  }
}

/// What is said of a GPU that is refused.
std::string refusal(int gpu, const char* name, int capability) {
  try {
    require_served(gpu, name, capability);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "served";
}

TEST(Capability, GpusThatAreTooOldOrTooNewAreRefusedInOneLine) {
  EXPECT_EQ(refusal(0, "NVIDIA H200", 90), "served");
  EXPECT_EQ(refusal(3, "NVIDIA L40S", 89),
            "GPU 3 (NVIDIA L40S) has compute capability 8.9, but Octavo's kernels support only 9.0 "
            "(H100, H200): this GPU is too old; choose another GPU, or the Cpu device");
  EXPECT_EQ(refusal(0, "NVIDIA B200", 100),
            "GPU 0 (NVIDIA B200) has compute capability 10.0, but Octavo's kernels support only "
            "9.0 (H100, H200): this GPU is too new; choose another GPU, or the Cpu device");
  EXPECT_NE(refusal(0, "NVIDIA GeForce RTX 5090", 120).find("capability 12.0"), std::string::npos);
}

TEST(Capability, WhatIsNotServedHasAReason) {
  EXPECT_EQ(why_not_served(90), "");
  EXPECT_EQ(why_not_served(89),
            "Octavo's kernels support only 9.0 (H100, H200): this GPU is too old");
  EXPECT_EQ(why_not_served(100),
            "Octavo's kernels support only 9.0 (H100, H200): this GPU is too new");
}

}  // namespace capability_test
