// What ranks must agree on: who differs is named, with what.
#include "support/thread_ranks.hpp"

#include <octavo/comm/same_on_all_ranks.hpp>
#include <octavo/comm/self_comm.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace same_on_all_ranks_test {

using Facts = std::vector<octavo::RankFact>;

/// What each rank says of facts that are a function of the rank; empty: all is well.
std::vector<std::string> said(int ranks, const std::function<Facts(int)>& facts_of) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    try {
      octavo::require_same_on_all_ranks(communicator, facts_of(communicator.rank()));
    } catch (const octavo::CommError& error) {
      errors[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]) << "ranks disagree";
  return errors;
}

TEST(SameOnAllRanks, AcceptsEqualFacts) {
  const Facts facts{{"model", "llama_tiny"}, {"empty", ""}, {"long", std::string(100'000, 'x')}};
  EXPECT_EQ(said(4, [&](int) { return Facts(facts); })[0], "");
  EXPECT_EQ(said(3, [](int) { return Facts{}; })[0], "");
  octavo::SelfComm<octavo::Cpu> alone;
  octavo::require_same_on_all_ranks(alone, facts);
}

TEST(SameOnAllRanks, ReportsRankThatDiffers) {
  const auto facts_of = [](int rank) {
    return Facts{{"model", "llama_tiny"}, {"micro-batches", rank == 2 ? "8" : "4"}};
  };
  EXPECT_EQ(said(4, facts_of)[0],
            "the ranks differ in micro-batches: rank 2 has '8', ranks 0, 1 and 3 have '4'; start "
            "all with the same program, flags and files");
}

TEST(SameOnAllRanks, ReportsAllFactsThatDiffer) {
  const auto facts_of = [](int rank) {
    return Facts{
        {"data", std::to_string(rank)}, {"same", "same"}, {"model", rank < 2 ? "a" : "ab"}};
  };
  EXPECT_EQ(said(3, facts_of)[0],
            "the ranks differ in data: rank 0 has '0', rank 1 has '1', rank 2 has '2'; in model: "
            "rank 2 has 'ab', ranks 0 and 1 have 'a'; start all with the same program, flags and "
            "files");
}

TEST(SameOnAllRanks, ShowsExcerptOfLongValues) {
  const auto facts_of = [](int rank) {
    std::string value(50'000, 'x');
    value += "here the seed is ";
    value += rank == 1 ? "17" : "18";
    return Facts{{"configuration", value + std::string(50'000, 'y')}};
  };
  const std::string error = said(2, facts_of)[0];
  EXPECT_NE(error.find("rank 0 has '...xxhere the seed is 18yyy"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 1 has '...xxhere the seed is 17yyy"), std::string::npos) << error;
  EXPECT_LT(error.size(), 500u);
}

TEST(SameOnAllRanks, MissingFactCountsAsDifferent) {
  const auto facts_of = [](int rank) {
    return rank == 1 ? Facts{} : Facts{{"GEMM plans", "ab12"}};
  };
  EXPECT_NE(said(3, facts_of)[0].find("in GEMM plans: rank 1 has '', ranks 0 and 2 have 'ab12'"),
            std::string::npos);
}

TEST(ThreadRanks, ThrowWhatTheFirstOfThemThrows) {
  const auto fail = [](support::ThreadComm& communicator) {
    const auto group = communicator.split(communicator.rank() % 2);
    if (communicator.rank() == 3) throw octavo::ConfigError("rank 3 fails");
    octavo::require_same_on_all_ranks(*group, {{"group", "its own"}});
    octavo::require_same_on_all_ranks(communicator, {{"rank 3", "missing"}});
    ADD_FAILURE() << "rank 3 is not missing";
  };
  EXPECT_THROW(support::on_ranks(4, fail), octavo::ConfigError);
}

}  // namespace same_on_all_ranks_test
