#include <octavo/session/operand_health.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace operand_health_test {

using octavo::OperandHealth;
using octavo::OperandReport;
using octavo::OperandTrouble;

OperandReport operand(const std::string& name, float amax, double saturated = 0,
                      double flushed = 0) {
  OperandReport report{};
  report.name = name;
  report.format = "E4M3";
  report.amax = amax;
  report.saturated = saturated;
  report.flushed = flushed;
  return report;
}

/// What is told of them.
std::vector<std::string> texts(const std::vector<OperandTrouble>& troubles) {
  std::vector<std::string> all;
  all.reserve(troubles.size());
  for (const OperandTrouble& trouble : troubles) all.push_back(trouble.text);
  return all;
}

/// Records that nobody is told of: those of a run's first steps.
OperandHealth settled(const std::vector<OperandReport>& operands) {
  OperandHealth health;
  for (int record = 0; record < OperandHealth::min_records; ++record) {
    EXPECT_TRUE(health.examine(operands).empty()) << record;
  }
  return health;
}

TEST(OperandHealth, IsSilentForSlowlyChangingAmaxes) {
  OperandHealth health;
  float amax = 1000;
  for (int record = 0; record < 40; ++record) {
    EXPECT_TRUE(health.examine({operand("a", amax, 0.001, 0.2)}).empty()) << record;
    amax *= 0.5f;
  }
}

TEST(OperandHealth, ReportsSaturatedOperandOnce) {
  const std::vector<OperandReport> operands{operand("a", 1),
                                            operand("blocks.3.qkv.input", 1, 0.02)};
  OperandHealth health = settled(operands);
  EXPECT_EQ(texts(health.examine(operands)),
            std::vector<std::string>{
                "blocks.3.qkv.input: 2 % of its values saturated to the maximum of E4M3"});
  EXPECT_TRUE(health.examine(operands).empty());
}

TEST(OperandHealth, MergesOperandsWithSameTrouble) {
  OperandHealth health = settled({operand("a", 1), operand("b", 1), operand("c", 1)});
  const std::vector<OperandTrouble> troubles =
      health.examine({operand("a", 1, 0, 0.75), operand("b", 1, 0, 0.9), operand("c", 1, 0, 0.6)});
  EXPECT_EQ(texts(troubles), std::vector<std::string>{
                                 "a: 75 % of its values became zero in E4M3; 2 more are flushed"});
  ASSERT_EQ(troubles.size(), 1u);
  EXPECT_EQ(troubles[0].kind, "flushed");
  EXPECT_EQ(troubles[0].operands, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(health.examine({operand("a", 1), operand("b", 1), operand("c", 1, 0.5)}).size(), 1u);
}

TEST(OperandHealth, ReportsAmaxFarFromUsualValue) {
  for (const float factor : {64.0f, 1.0f / 64.0f}) {
    OperandHealth health = settled({operand("a", 2)});
    const auto sentences = texts(health.examine({operand("a", 2 * factor)}));
    ASSERT_EQ(sentences.size(), 1u);
    EXPECT_EQ(sentences[0], factor > 1 ? "a: its amax is 128, 64 times its usual value"
                                       : "a: its amax is 0.03125, 64 times smaller than usual");
  }
}

TEST(OperandHealth, IgnoresZeroAmaxes) {
  OperandHealth health;
  for (int record = 0; record < 10; ++record) {
    EXPECT_TRUE(health.examine({operand("a", record % 2 == 0 ? 0.0f : 3.0f)}).empty());
  }
}

}  // namespace operand_health_test
