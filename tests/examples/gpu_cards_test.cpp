#include <common/gpu_cards.hpp>
#include <octavo/core/error.hpp>

#include <gtest/gtest.h>

#include <string>

namespace gpu_cards_test {
namespace {

using programs::capability_given;
using programs::cards_named;

TEST(GpuCards, AreFoundByTheirNames) {
  EXPECT_EQ(cards_named("a100", "").size(), 2U);
  ASSERT_EQ(cards_named("A10", "").size(), 1U);  // not the A100, whose name begins with it
  EXPECT_EQ(cards_named("A10", "").front().capability, 86);
  for (const char* name : {"NVIDIA GeForce RTX 3090", "rtx3090", "3090"}) {
    ASSERT_EQ(cards_named(name, "").size(), 1U) << name;
    EXPECT_EQ(cards_named(name, "").front().capability, 86) << name;
  }
  for (const char* name : {"A6000", "RTX A6000", "GH200", "B300", "RTX PRO 6000", "H200"}) {
    EXPECT_EQ(cards_named(name, "").size(), 1U) << name;
  }
  EXPECT_THROW((void)cards_named("RTX", ""), octavo::ConfigError);
  EXPECT_THROW((void)cards_named("", ""), octavo::ConfigError);
}

TEST(GpuCards, ParsesCapabilityAndMemory) {
  for (const char* text : {"8.6:24GiB", "sm_86:24GiB", "compute_86:24", "sm_86:24GB"}) {
    const auto given = capability_given(text);
    ASSERT_TRUE(given && given->gib) << text;
    EXPECT_EQ(given->capability, 86) << text;
    EXPECT_EQ(*given->gib, 24) << text;
  }
  for (const char* text : {"9.0", "sm_90a", "sm_90"}) {
    const auto given = capability_given(text);
    ASSERT_TRUE(given) << text;
    EXPECT_EQ(given->capability, 90) << text;
    EXPECT_FALSE(given->gib) << text;
  }
  EXPECT_EQ(capability_given("12.0:32")->capability, 120);
  for (const char* text :
       {"", "A100", "3090", "86", "8.66", "sm_", "sm_x6", "sm_9000", "8.a", ":24"}) {
    EXPECT_FALSE(capability_given(text)) << text;
  }
  for (const char* text : {"7.5", "sm_70:32GiB", "sm_86:", "sm_86:x", "sm_86:-1", "sm_86:24MiB",
                           "sm_86:nan", "8.6:inf", "8.1", "sm_999:24GiB", "13.0"}) {
    EXPECT_THROW((void)capability_given(text), octavo::ConfigError) << text;
  }
}

}  // namespace
}  // namespace gpu_cards_test
