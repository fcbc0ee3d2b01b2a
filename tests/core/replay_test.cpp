#include <octavo/core/replay.hpp>

#include <gtest/gtest.h>

namespace replay_test {

using namespace octavo;

TEST(ReplayOnCpu, CountsOnlySuccessfulRuns) {
  const Context<Cpu> context(1);
  Replay<Cpu> replay;
  int calls = 0;
  const auto body = [&] {
    if (++calls == 2) throw ConfigError("a fault that the test asked for");
  };
  replay.run(context, body);
  EXPECT_THROW(replay.run(context, body), ConfigError);
  replay.run(context, body);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(replay.counts().runs, 2u);
  EXPECT_EQ(replay.counts().recordings, 0u);
  EXPECT_EQ(replay.counts().launches, 0u);
}

}  // namespace replay_test
