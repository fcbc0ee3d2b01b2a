// A sharding that a session could not follow is refused.
#include <gtest/gtest.h>
#include <octavo/parallel/parallel.hpp>

#include <string>

#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace single_rank_test {

using namespace octavo;
using Model = support::SmallModel<Bf16>;

/// Why a session cannot be created; empty if it can.
template <class Session, class... Ranks>
std::string refusal(const Sharding& sharding, Ranks&... ranks) {
  SessionOptions options = support::small_options();
  options.sharding = sharding;
  Context<Cpu> context{1};
  try {
    const Session session(options, context, ranks...);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(SingleRank, RejectsShardingThatItWouldIgnore) {
  const Context<Cpu> context{1};
  for (const Sharding& sharding :
       {Sharding{.zero = Zero::gradients}, Sharding{.zero = Zero::weights},
        Sharding{.reduce_each_micro_batch = true}}) {
    const std::string text = refusal<ModelSession<Model>>(sharding);
    EXPECT_NE(text.find("pass DataParallel<>"), std::string::npos) << text;
    EXPECT_EQ((refusal<ModelSession<Model, AdamW<>, DataParallel<>>>(sharding)), "");
  }
  SessionOptions options = support::small_options();
  options.sharding.ranks = 2;
  EXPECT_THROW((void)(plan_memory<Model, AdamW<>>(options, context)), UsageError);
  EXPECT_GT((plan_memory<Model, AdamW<>, DataParallel<>>(options, context).peak), 0U);
}

TEST(Sharding, MustBeForTheRanksOfTheCommunicator) {
  const std::string text = refusal<ModelSession<Model>>({.ranks = 2});
  EXPECT_NE(text.find("but is 2"), std::string::npos) << text;
  support::on_ranks(2, [](support::ThreadComm& communicator) {
    using Session = ModelSession<Model, AdamW<>, DataParallel<>>;
    EXPECT_NE(refusal<Session>({.ranks = 4}, communicator), "");
    EXPECT_EQ(refusal<Session>({.ranks = 2}, communicator), "");
    EXPECT_EQ(refusal<Session>({}, communicator), "");
  });
}

}  // namespace single_rank_test
