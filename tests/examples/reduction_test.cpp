// What `--reduce` and `--gather` choose, in a program that is built with all of it.
#include <train_llama/make_session.hpp>
#include <train_llama/options.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace reduction_test {

using namespace octavo;

/// What of a model the choice depends on.
struct Trained {
  static constexpr bool is_frozen = false;
};
struct Frozen {
  static constexpr bool is_frozen = true;
};

/// Whether a session of `Model` would have `Expected` do what ranks do together.
template <class Expected, class Model = Trained>
bool chooses(const std::string& reduce, bool gathers_fp8 = false) {
  trainer::SessionRequest request;
  request.reduce = reduce;
  request.gathers_fp8 = gathers_fp8;
  return trainer::detail::with_ranks<Model>(
      request, []<class Ranks>() { return std::is_same_v<Ranks, Expected>; });
}

TEST(Reduction, EachNameChoosesItsType) {
  EXPECT_TRUE(chooses<DataParallel<ReduceIn<>>>("stored"));
  EXPECT_TRUE(chooses<DataParallel<ReduceIn<Fp32>>>("fp32"));
  EXPECT_TRUE(chooses<DataParallel<ReduceIn<E4M3>>>("e4m3"));
  EXPECT_TRUE((chooses<DataParallel<ReduceIn<E4M3>>, Frozen>("e4m3")));
  EXPECT_THROW((void)chooses<DataParallel<>>("bf16"), UsageError);
}

TEST(Reduction, GatherFormatHasSeparateFlag) {
  EXPECT_TRUE((chooses<DataParallel<ReduceIn<>, GatherIn<E4M3>>>("stored", true)));
  EXPECT_TRUE((chooses<DataParallel<ReduceIn<Fp32>, GatherIn<E4M3>>>("fp32", true)));
  EXPECT_THROW((void)(chooses<DataParallel<>, Frozen>("stored", true)), UsageError);
}

TEST(Reduction, FlagOffersBuiltFormats) {
  EXPECT_EQ(trainer::reductions, (std::vector<std::string>{"stored", "fp32", "e4m3"}));
}

}  // namespace reduction_test
