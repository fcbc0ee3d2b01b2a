#include <octavo/core/capability.hpp>

#include <gtest/gtest.h>

#include <string>

namespace capability_test {

using namespace octavo;

TEST(Capability, RejectsGpusBelowMinimumCapability) {
  EXPECT_EQ(capability_refusal(75),
            "Octavo needs compute capability 8.0 (A100) or later, but the GPU has 7.5");
  for (const int capability : {80, 86, 87, 89, 90, 100, 103, 110, 120, 121}) {
    EXPECT_EQ(capability_refusal(capability), "") << capability;
  }
}

TEST(Capability, EachGpuHasAnArchitecture) {
  EXPECT_EQ(architecture_for(80), "80");
  EXPECT_EQ(architecture_for(89), "89");
  EXPECT_EQ(architecture_for(90), "90a");
  EXPECT_EQ(architecture_for(103), "103");
  EXPECT_EQ(architecture_for(120), "120");
}

// Source: CUDA Programming Guide 13.0, "Technical Specifications per Compute Capability".
TEST(Capability, SharedMemoryMatchesProgrammingGuide) {
  for (const int capability : {86, 89, 120, 121}) {
    EXPECT_EQ(features_of(capability).shared_bytes, 99 * 1024) << capability;
  }
  for (const int capability : {80, 87}) {
    EXPECT_EQ(features_of(capability).shared_bytes, 163 * 1024) << capability;
  }
  for (const int capability : {90, 100, 103}) {
    EXPECT_EQ(features_of(capability).shared_bytes, 227 * 1024) << capability;
  }
}

TEST(Capability, CompiledFeaturesExcludeNewerInstructions) {
  const GpuFeatures own = compiled_features(features_of(90), {90, true});
  EXPECT_TRUE(own.warpgroup_mma && own.clusters && own.programmatic_launch);
  const GpuFeatures plain = compiled_features(features_of(90), {90, false});
  EXPECT_TRUE(!plain.warpgroup_mma && plain.clusters && plain.programmatic_launch);
  const GpuFeatures older = compiled_features(features_of(90), {80, false});
  EXPECT_FALSE(older.warpgroup_mma || older.clusters || older.programmatic_launch);
  // The experts' kernels would have no code to run.
  EXPECT_FALSE(older.fp8_gemms || older.row_scales || older.block_scales || older.mx_gemms);
  const GpuFeatures ada = compiled_features(features_of(90), {89, false});
  EXPECT_TRUE(ada.fp8_gemms && ada.row_scales && ada.block_scales);
  EXPECT_FALSE(ada.clusters || ada.programmatic_launch || ada.warpgroup_mma);
  EXPECT_TRUE(compiled_features(features_of(100), {100, false}).mx_gemms);
  EXPECT_FALSE(compiled_features(features_of(100), {80, false}).mx_gemms);
  EXPECT_EQ(older.shared_bytes, 227 * 1024);
}

TEST(Capability, CommonFeaturesAreIntersection) {
  const GpuFeatures ampere = common_features(features_of(90), features_of(80));
  EXPECT_EQ(ampere.capability, 80);
  EXPECT_EQ(ampere.shared_bytes, 163 * 1024);
  EXPECT_FALSE(ampere.fp8_gemms || ampere.row_scales || ampere.block_scales ||
               ampere.warpgroup_mma || ampere.clusters || ampere.programmatic_launch);
  const GpuFeatures blackwell = common_features(features_of(120), features_of(90));
  EXPECT_EQ(blackwell.capability, 90);
  EXPECT_EQ(blackwell.shared_bytes, 99 * 1024);
  EXPECT_TRUE(blackwell.fp8_gemms && blackwell.clusters && blackwell.programmatic_launch);
  EXPECT_FALSE(blackwell.mx_gemms || blackwell.row_scales || blackwell.warpgroup_mma);
}

}  // namespace capability_test
