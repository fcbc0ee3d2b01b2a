// What the trainer says of the environment of its ranks, and how ranks learn that one has failed.
#include <train_llama/ranks.hpp>

#include "support/rank_processes.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ranks_test {

std::string said_of(const char* connections) {
  return trainer::slowing_environment([&](const char* variable) -> const char* {
    return std::string_view(variable) == "CUDA_DEVICE_MAX_CONNECTIONS" ? connections : nullptr;
  });
}

TEST(EnvironmentOfRanks, WarnsOfSingleDeviceConnection) {
  EXPECT_EQ(said_of(nullptr), "");
  EXPECT_EQ(said_of("8"), "");
  EXPECT_EQ(said_of("16"), "");
  EXPECT_EQ(said_of("1").find("CUDA_DEVICE_MAX_CONNECTIONS is 1: "), 0u);
  EXPECT_NE(said_of("1").find("; unset it"), std::string::npos);
}

TEST(EnvironmentOfRanks, RejectsLauncherWithoutMpiBuild) {
#if defined(OCTAVO_PROGRAM_HAS_MPI)
  GTEST_SKIP() << "this test is built with MPI";
#endif
  const std::array<std::pair<const char*, const char*>, 4> launched{
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}};
  for (const auto& [name, value] : launched) ::setenv(name, value, 1);
  try {
    const trainer::Ranks ranks({}, "a_program");
    ADD_FAILURE() << "there are ranks";
  } catch (const octavo::ConfigError& error) {
    EXPECT_TRUE(std::string_view(error.what())
                    .ends_with("; run scripts/install-dependencies ranks, and build again with "
                               "-DOCTAVO_MPI=ON"))
        << error.what();
  }
  for (const auto& [name, value] : launched) ::unsetenv(name);
}

/// Returns the ends of three ranks that set up a run: what `is_ready(ranks)` throws, or whether it
/// returned true.
std::vector<RankResult> set_up(const std::function<bool(trainer::Ranks&)>& is_ready) {
  constexpr int size = 3;
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&, rank] {
      trainer::Ranks ranks(launch_of(rank, size, port), std::chrono::seconds(20), "a_program");
      const bool ready = is_ready(ranks);
      throw std::runtime_error(ready ? "ready" : "not ready");
    });
  }
  return processes.wait(15);
}

void exchange(trainer::Ranks& ranks) {
  const std::byte part{};
  std::vector<std::byte> whole(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather_host_sync({&part, 1}, whole, "GPUs");
}

void expect_said_by_others(const std::vector<RankResult>& ends, const std::string& said) {
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(ends[rank].error_output.substr(0, said.size()), said) << "rank " << rank;
  }
}

TEST(SetUpOfRanks, IsReadyIfAllRanksAre) {
  const auto ends = set_up([](trainer::Ranks& ranks) {
    exchange(ranks);
    return ranks.all_succeeded("", true) && ranks.all_succeeded("", false);
  });
  expect_said_by_others(ends, "ready");
  EXPECT_EQ(ends[1].error_output, "ready");
}

TEST(SetUpOfRanks, OthersGetTheErrorOfARankThatFailsBeforeAnExchange) {
  const auto ends = set_up([](trainer::Ranks& ranks) {
    if (ranks.rank() == 1) return ranks.all_succeeded("the GPU is full", true);
    exchange(ranks);
    return ranks.all_succeeded("", true);
  });
  expect_said_by_others(ends, "rank 1 gave up: the GPU is full");
  EXPECT_EQ(ends[1].error_output, "not ready");
}

TEST(SetUpOfRanks, OthersGetTheErrorOfARankThatFailsAfterAllExchanges) {
  const auto ends = set_up([](trainer::Ranks& ranks) {
    exchange(ranks);
    return ranks.all_succeeded(ranks.rank() == 1 ? "the GPU is full" : "", true);
  });
  expect_said_by_others(ends, "rank 1 gave up: the GPU is full");
  EXPECT_EQ(ends[1].error_output, "not ready");
}

// All then end with the exit code of invalid input.
TEST(SetUpOfRanks, IsNotReadyOnAnyRankWithoutExchangesOrIfAllFail) {
  const auto without_exchanges = set_up([](trainer::Ranks& ranks) {
    return ranks.all_succeeded(ranks.rank() == 1 ? "no such file" : "", false);
  });
  const auto all_fail = set_up([](trainer::Ranks& ranks) {
    exchange(ranks);
    return ranks.all_succeeded("no such precision", true);
  });
  for (const auto& ends : {without_exchanges, all_fail}) {
    expect_said_by_others(ends, "not ready");
    EXPECT_EQ(ends[1].error_output, "not ready");
  }
}

}  // namespace ranks_test
