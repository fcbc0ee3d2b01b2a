// What a linear layer says beforehand of its three GEMMs, by which algorithms are chosen for them.
#include <octavo/layers/linear.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

namespace linear_gemms_test {

using namespace octavo;

constexpr GemmScales of_input = GemmScales::tensor;
constexpr GemmScales of_weight = GemmScales::squares_of_128;
constexpr GemmScales of_output_gradient = GemmScales::none;

/// Of a layer of 24 features to 40, whose weight gradient alone is accumulated fast.
octavo::detail::LinearGemms layer(const char* weight_gradient_format) {
  return {40,
          24,
          "e4m3",
          "e5m2",
          "bf16",
          weight_gradient_format,
          "a library",
          "a recipe",
          {of_input, of_weight, of_output_gradient},
          GemmAccumulation::full,
          GemmAccumulation::fast};
}

TEST(LinearGemms, DescribeEachPass) {
  Manifest manifest;
  LinearUse use;
  use.adds = use.bias = use.recomputed = true;
  const std::array<std::size_t, 3> numbers =
      octavo::detail::add_gemms(manifest, "up", layer("fp32"), use);
  ASSERT_EQ(manifest.entries().size(), 3u);
  const auto entry = [&](GemmPass pass) -> const GemmEntry& {
    return manifest.entries()[numbers[static_cast<std::size_t>(pass)]];
  };
  for (const GemmPass pass :
       {GemmPass::forward, GemmPass::input_gradient, GemmPass::weight_gradient}) {
    const bool is_forward = pass == GemmPass::forward;
    EXPECT_EQ(entry(pass).pass, pass);
    EXPECT_EQ(entry(pass).accumulation,
              pass == GemmPass::input_gradient ? GemmAccumulation::full : GemmAccumulation::fast);
    EXPECT_EQ(entry(pass).adds, is_forward);
    EXPECT_EQ(entry(pass).bias, is_forward);
    EXPECT_EQ(entry(pass).recomputed, is_forward ? 1 : 0);
    EXPECT_EQ(entry(pass).scales_a, is_forward ? of_input : of_output_gradient);
    EXPECT_EQ(entry(pass).scales_b, pass == GemmPass::weight_gradient ? of_input : of_weight);
    EXPECT_EQ(entry(pass).output_format, pass == GemmPass::weight_gradient ? "fp32" : "bf16");
  }
}

TEST(LinearGemms, GradientsOfExpertsHaveFullAccumulation) {
  Manifest manifest;
  octavo::detail::LinearGemms gemms = layer("fp32");
  gemms.input_gradient = gemms.weight_gradient = GemmAccumulation::fast;
  LinearUse use;
  use.experts = 4;
  use.choices = 2;
  (void)octavo::detail::add_gemms(manifest, "up", gemms, use);
  for (const GemmEntry& entry : manifest.entries()) {
    if (entry.pass == GemmPass::forward) continue;
    EXPECT_EQ(entry.accumulation, GemmAccumulation::full) << name_of(entry.pass);
  }
}

TEST(LinearGemms, FrozenLayerHasTwoGemms) {
  Manifest manifest;
  (void)octavo::detail::add_gemms(manifest, "up", layer(nullptr), {});
  EXPECT_EQ(manifest.entries().size(), 2u);
}

}  // namespace linear_gemms_test
