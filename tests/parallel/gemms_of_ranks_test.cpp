// Ranks that chose other algorithms go on with those of rank 0, or say who cannot.
#include "support/thread_ranks.hpp"

#include <octavo/attention/libraries.hpp>
#include <octavo/comm/self_comm.hpp>
#include <octavo/parallel/gemms_of_ranks.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gemms_of_ranks_test {

using namespace octavo;
using Records = std::vector<GemmPlanRecord>;

/// The product of a number of rows, with an algorithm that is a number.
GemmPlanRecord record(Index rows, std::uint64_t algorithm) {
  GemmPlanRecord made;
  made.library = {"NVIDIA_H200", 132, 130100};
  made.key.m = rows;
  made.key.n = made.key.k = 64;
  made.microseconds = 10.5 * static_cast<double>(algorithm);
  made.algorithm.fill(algorithm);
  return made;
}

/// What a context does with records.
struct Plans {
  Records records;
  std::uint64_t refused = 0;  ///< an algorithm
  int taken = 0;

  void take(const Records& others) {
    ++taken;
    Records accepted = others;
    std::erase_if(accepted, [&](const auto& other) { return other.algorithm[0] == refused; });
    records = merged_gemm_plans(records, accepted);
  }
};

struct Rank {
  std::string libraries = "NVIDIA H200, cuBLASLt 13.1.0";
  Plans plans;
  std::string error{};
};

void share(std::vector<Rank>& ranks) {
  support::on_ranks(static_cast<int>(ranks.size()), [&](support::ThreadComm& communicator) {
    Rank& rank = ranks[static_cast<std::size_t>(communicator.rank())];
    try {
      octavo::detail::share_gemm_plans_sync(
          communicator, rank.libraries, [&] { return rank.plans.records; },
          [&](const Records& records) { rank.plans.take(records); });
    } catch (const CommError& error) {
      rank.error = error.what();
    }
  });
}

TEST(GemmsOfRanks, AllRanksTakePlansOfRankZero) {
  const Records first{record(16, 1), record(32, 2)};
  std::vector<Rank> ranks{{.plans = {first}},
                          {.plans = {{record(16, 3), record(32, 2)}}},
                          {.plans = {{record(32, 4)}}},
                          {.plans = {}}};
  share(ranks);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.plans.records, first);
    EXPECT_EQ(rank.plans.taken, &rank == &ranks.front() ? 0 : 1);
  }
}

TEST(GemmsOfRanks, ReportsRankWithAdditionalPlans) {
  std::vector<Rank> ranks{{.plans = {{record(16, 1)}}},
                          {.plans = {{record(16, 1), record(48, 5)}}},
                          {.plans = {{record(16, 1)}}}};
  share(ranks);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.error.find("the ranks differ in algorithms of GEMMs: rank 1 has '"), 0u);
    EXPECT_NE(rank.error.find("ranks 0 and 2 have '"), std::string::npos);
  }
}

TEST(GemmsOfRanks, ReportsRankThatRejectsPlans) {
  std::vector<Rank> ranks{{.plans = {{record(16, 1)}}}, {.plans = {{record(16, 3)}, 1}}};
  share(ranks);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.error.find("the ranks differ in algorithms of GEMMs: rank 0 has '"), 0u);
  }
}

TEST(GemmsOfRanks, ReportsDifferentLibrariesAndTakesNothing) {
  std::vector<Rank> ranks(3);
  ranks[2].libraries = "NVIDIA H200, cuBLASLt 13.0.2";
  ranks[2].plans.records = {record(16, 1)};
  share(ranks);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.error.find("the ranks differ in libraries: rank 2 has '"), 0u);
    EXPECT_EQ(rank.plans.taken, 0);
  }
  EXPECT_NE(ranks[0].error.find("13.0.2'"), std::string::npos);
}

TEST(GemmsOfRanks, OneRankKeepsItsPlans) {
  SelfComm<Cpu> alone;
  Plans plans{{record(16, 1)}};
  octavo::detail::share_gemm_plans_sync(
      alone, "", [&] { return plans.records; },
      [&](const Records& records) { plans.take(records); });
  EXPECT_EQ(plans.taken, 0);
}

TEST(GemmsOfRanks, CpuHasNoLibraries) {
  const Context<Cpu> context(1);
  EXPECT_EQ(libraries_text(context), "");
}

}  // namespace gemms_of_ranks_test
