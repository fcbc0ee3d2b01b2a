#include <octavo/core/context.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>

namespace octavo {
namespace context_test {
namespace {

std::string refusal_of(int threads) {
  try {
    const Context<Cpu> context(threads);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ContextOnCpu, AcceptsPlausibleThreadCounts) {
  EXPECT_EQ(Context<Cpu>(3).threads(), 3);
  EXPECT_GE(Context<Cpu>(0).threads(), 1);
  EXPECT_EQ(Context<Cpu>(256).threads(), 256);
  for (const int threads : {-1, 100000, std::numeric_limits<int>::max()}) {
    const std::string refusal = refusal_of(threads);
    EXPECT_EQ(refusal.find("threads must be 0 (all) to "), 0u) << refusal;
    EXPECT_NE(refusal.find("is " + std::to_string(threads)), std::string::npos) << refusal;
  }
}

TEST(ContextOnCpu, ReadsThreadCountFromOmpNumThreads) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_EQ(Context<Cpu>(0).threads(), 3);
  EXPECT_EQ(Context<Cpu>(2).threads(), 2);
  for (const char* wrong : {"100000", "0", "-2", "some"}) {
    ::setenv("OMP_NUM_THREADS", wrong, 1);
    EXPECT_NE(refusal_of(0).find("OMP_NUM_THREADS must be 1 to "), std::string::npos) << wrong;
    EXPECT_EQ(Context<Cpu>(2).threads(), 2);
  }
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_GE(Context<Cpu>(0).threads(), 1);
  if (!kept.empty()) ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
}

}  // namespace
}  // namespace context_test
}  // namespace octavo
