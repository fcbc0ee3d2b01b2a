#include <octavo/core/context.hpp>

#include <gtest/gtest.h>

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

TEST(ContextOnCpu, TakesThreadsThatAMachineCanStart) {
  EXPECT_EQ(Context<Cpu>(3).threads(), 3);
  EXPECT_GE(Context<Cpu>(0).threads(), 1);
  EXPECT_EQ(Context<Cpu>(256).threads(), 256);
  for (const int threads : {-1, 100000, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(refusal_of(threads).find("threads is " + std::to_string(threads) + "; give 0 (all)"),
              0u)
        << threads;
  }
}

#if defined(_OPENMP)
TEST(ContextOnCpu, RefusesMoreThreadsOfOpenmpThanAMachineCanStart) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(100000);
  const std::string refusal = refusal_of(0);
  const int named = Context<Cpu>(2).threads();
  omp_set_num_threads(before);
  EXPECT_EQ(refusal.find("OpenMP offers 100000 threads; set OMP_NUM_THREADS"), 0u) << refusal;
  EXPECT_EQ(named, 2);
}
#endif

}  // namespace
}  // namespace context_test
}  // namespace octavo
