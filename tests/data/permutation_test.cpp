#include <octavo/data/permutation.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace permutation_test {

using octavo::Index;
using octavo::Permutation;

std::vector<Index> order_of(Index size, octavo::RandomStream stream) {
  const Permutation permutation(size, stream);
  std::vector<Index> order;
  for (Index place = 0; place < size; ++place) order.push_back(permutation(place));
  return order;
}

TEST(Permutation, HasEachNumberOnce) {
  for (const Index size : {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000, 4096, 4097}) {
    const auto order = order_of(size, {7, 3});
    const std::set<Index> numbers(order.begin(), order.end());
    EXPECT_EQ(numbers.size(), order.size());
    EXPECT_EQ(*numbers.begin(), 0);
    EXPECT_EQ(*numbers.rbegin(), size - 1);
  }
}

TEST(Permutation, DiffersBySeedAndByStream) {
  std::set<std::vector<Index>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::uint64_t stream = 0; stream < 10; ++stream) {
      orders.insert(order_of(64, {seed, stream}));
    }
  }
  EXPECT_EQ(orders.size(), 100u);
}

TEST(Permutation, IsUniform) {
  std::map<std::pair<Index, Index>, int> counts;
  constexpr int orders = 6000;
  for (int i = 0; i < orders; ++i) {
    const Permutation permutation(6, {1, static_cast<std::uint64_t>(i)});
    for (Index place = 0; place < 6; ++place) counts[{place, permutation(place)}] += 1;
  }
  EXPECT_EQ(counts.size(), 36u);
  // Six standard deviations of a count of 1000.
  for (const auto& [pair, count] : counts) EXPECT_NEAR(count, orders / 6.0, 175);
}

// Neighbours come from everywhere: runs do not survive.
TEST(Permutation, LeavesNoRuns) {
  const auto order = order_of(1 << 14, {5, 5});
  int runs = 0;
  for (std::size_t i = 1; i < order.size(); ++i) runs += order[i] == order[i - 1] + 1 ? 1 : 0;
  EXPECT_LT(runs, 10);  // about one is to be expected
}

TEST(Permutation, SupportsSizesTooLargeToStore) {
  constexpr Index size = (Index{1} << 45) + 12345;
  const Permutation permutation(size, {9, 1});
  std::set<Index> numbers;
  for (Index i = 0; i < 1000; ++i) {
    const Index number = permutation(size - 1 - i);
    EXPECT_GE(number, 0);
    EXPECT_LT(number, size);
    numbers.insert(number);
  }
  EXPECT_EQ(numbers.size(), 1000u);
  EXPECT_LT(*numbers.begin(), size / 50);
  EXPECT_GT(*numbers.rbegin(), size - size / 50);
}

}  // namespace permutation_test
