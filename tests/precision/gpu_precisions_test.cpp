#include <octavo/precision/gpu_precisions.hpp>

#include <gtest/gtest.h>

#include <string>

namespace gpu_precisions_test {

using namespace octavo;

bool has(const std::string& all, const char* name) { return all.find(name) != std::string::npos; }

TEST(GpuPrecisions, DependOnComputeCapability) {
  EXPECT_EQ(precisions_of(features_of(80)), "fp32 or bf16");
  EXPECT_EQ(precisions_of(features_of(86)), "fp32 or bf16");
  for (const int capability : {89, 90, 100, 103, 120, 121}) {
    const std::string all = precisions_of(features_of(capability));
    EXPECT_TRUE(has(all, "fp32, bf16, fp8-delayed") && has(all, "fp8-tensorwise")) << all;
    EXPECT_EQ(has(all, "fp8-rowwise"), capability == 90) << all;
    EXPECT_EQ(has(all, "fp8-blockwise"), capability == 90) << all;
    EXPECT_EQ(has(all, "mxfp8"), capability >= 100) << all;
  }
}

/// The refusal of a precision on a GPU; empty if it runs.
template <class P>
std::string refusal(const std::string& card, int capability) {
  DeviceLimits<Cuda> limits;
  limits.gpu = features_of(capability);
  limits.card = card;
  try {
    require_gemms<P>(limits);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(GpuPrecisions, RejectsUnsupportedRecipes) {
  EXPECT_EQ(refusal<Fp8Recipe<Tensorwise>>("GPU 0 (NVIDIA A100)", 80),
            "GPU 0 (NVIDIA A100) does not support FP8 GEMMs; use fp32 or bf16");
  EXPECT_EQ(
      refusal<Mxfp8>("GPU 1 (NVIDIA L40S)", 89),
      "GPU 1 (NVIDIA L40S) does not support mxfp8 GEMMs; use " + precisions_of(features_of(89)));
  EXPECT_NE(refusal<Fp8Recipe<Blockwise>>("GPU 0 (NVIDIA B200)", 100), "");
  EXPECT_EQ(refusal<Fp8Recipe<Blockwise>>("GPU 0 (NVIDIA H200)", 90), "");
  EXPECT_EQ(refusal<Fp8Recipe<Delayed>>("GPU 0 (NVIDIA RTX 4090)", 89), "");
  EXPECT_EQ(refusal<Bf16>("GPU 0 (NVIDIA A100)", 80), "");
}

TEST(GpuPrecisions, EightBitAttentionNeedsHopper) {
  DeviceLimits<Cuda> limits;
  EXPECT_NO_THROW(require_eight_bit_attention(limits));
  EXPECT_NO_THROW(require_eight_bit_attention(DeviceLimits<Cpu>{}));
  limits.gpu = features_of(80);
  limits.card = "GPU 0 (NVIDIA A100)";
  try {
    require_eight_bit_attention(limits);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "GPU 0 (NVIDIA A100) does not support 8-bit attention, which needs compute capability 9.0; "
        "use a precision without ForAttention<EightBitForward>, such as fp32 or bf16");
  }
}

/// What `require` complains about on a GPU of which the program's kernels use only some features.
template <class Require>
std::string complaint(int capability, KernelArchitecture kernels, const Require& require) {
  DeviceLimits<Cuda> limits;
  limits.gpu = compiled_features(features_of(capability), kernels);
  limits.card = "GPU 0";
  try {
    require(limits);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(GpuPrecisions, NameArchitectureIfOnlyKernelsLackFeature) {
  const auto tensorwise = [](const auto& limits) { require_gemms<Fp8Recipe<Tensorwise>>(limits); };
  const auto mx = [](const auto& limits) { require_gemms<Mxfp8>(limits); };
  const auto products = [](const auto& limits) { require_fp8_gemms(limits); };
  const auto attention = [](const auto& limits) { require_eight_bit_attention(limits); };
  EXPECT_EQ(
      complaint(89, {80, false}, tensorwise),
      "GPU 0 supports fp8-tensorwise GEMMs, but the program is compiled for other GPUs; build "
      "it with CMAKE_CUDA_ARCHITECTURES=89, or use fp32 or bf16");
  EXPECT_EQ(complaint(89, {80, false}, products),
            "GPU 0 supports FP8 GEMMs, but the program is compiled for other GPUs; build it with "
            "CMAKE_CUDA_ARCHITECTURES=89, or use fp32 or bf16");
  EXPECT_EQ(
      complaint(90, {90, false}, attention),
      "GPU 0 supports 8-bit attention, but the program is compiled for other GPUs; build it with "
      "CMAKE_CUDA_ARCHITECTURES=90a, or use a precision without ForAttention<EightBitForward>, "
      "such "
      "as " +
          precisions_of(features_of(90)));
  EXPECT_EQ(complaint(89, {80, false}, mx), "GPU 0 does not support mxfp8 GEMMs; use fp32 or bf16");
  EXPECT_EQ(complaint(89, {89, false}, products), "");
}

TEST(GpuPrecisions, EveryPrecisionRunsOnCpu) {
  EXPECT_NO_THROW(require_gemms<Mxfp8>(DeviceLimits<Cpu>{}));
}

}  // namespace gpu_precisions_test
