#include <octavo/precision/gpu_precisions.hpp>

#include <gtest/gtest.h>

#include <string>

namespace gpu_precisions_test {

using namespace octavo;

TEST(GpuPrecisions, AreThoseWhoseScalesTheGpuMultiplies) {
  EXPECT_EQ(precisions_of(features_of(80)), "fp32 or bf16");
  EXPECT_EQ(precisions_of(features_of(86)), "fp32 or bf16");
  EXPECT_EQ(precisions_of(features_of(89)), "fp32, bf16, fp8-delayed or fp8-tensorwise");
  EXPECT_EQ(precisions_of(features_of(90)),
            "fp32, bf16, fp8-delayed, fp8-tensorwise, fp8-rowwise or fp8-blockwise");
  for (const int capability : {100, 103, 120, 121}) {
    const std::string all = precisions_of(features_of(capability));
    EXPECT_NE(all.find("fp8-tensorwise"), std::string::npos) << all;
    EXPECT_NE(all.find("mxfp8"), std::string::npos) << all;
    EXPECT_EQ(all.find("rowwise"), std::string::npos) << all;
    EXPECT_EQ(all.find("blockwise"), std::string::npos) << all;
  }
}

/// The refusal of a precision on a GPU; empty if it runs.
template <class P>
std::string refusal(const std::string& card, int capability) {
  DeviceLimits<Cuda> limits;
  limits.gpu = features_of(capability);
  limits.card = card;
  try {
    require_products<P>(limits);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(GpuPrecisions, OthersAreRefusedInOneLineThatNamesThem) {
  EXPECT_EQ(refusal<Fp8Recipe<Tensorwise>>("GPU 0 (NVIDIA A100)", 80),
            "GPU 0 (NVIDIA A100) has no FP8 products; use fp32 or bf16");
  EXPECT_EQ(refusal<Mxfp8>("GPU 1 (NVIDIA L40S)", 89),
            "GPU 1 (NVIDIA L40S) has no mxfp8 products; use fp32, bf16, fp8-delayed or "
            "fp8-tensorwise");
  EXPECT_NE(refusal<Fp8Recipe<Blockwise>>("GPU 0 (NVIDIA B200)", 100), "");
  EXPECT_EQ(refusal<Fp8Recipe<Blockwise>>("GPU 0 (NVIDIA H200)", 90), "");
  EXPECT_EQ(refusal<Fp8Recipe<Delayed>>("GPU 0 (NVIDIA RTX 4090)", 89), "");
  EXPECT_EQ(refusal<Bf16>("GPU 0 (NVIDIA A100)", 80), "");
}

TEST(GpuPrecisions, EveryPrecisionRunsOnCpu) {
  EXPECT_NO_THROW(require_products<Mxfp8>(DeviceLimits<Cpu>{}));
}

}  // namespace gpu_precisions_test
