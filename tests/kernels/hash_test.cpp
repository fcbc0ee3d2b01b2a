// Hashes of memory: the definition's numbers, and that no bit and no place is left out.
#include <octavo/kernels/hash.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace hash_test {

using namespace octavo;

std::vector<std::uint64_t> random_words(std::size_t count) {
  std::mt19937_64 random(11);
  std::vector<std::uint64_t> words(count);
  for (std::uint64_t& word : words) word = random();
  return words;
}

std::uint64_t hash_of(const std::vector<std::uint64_t>& words, int threads = 1) {
  const Context<Cpu> context(threads);
  std::uint64_t hash = 1;  // is overwritten
  const auto bytes = static_cast<Index>(words.size() * sizeof(std::uint64_t));
  hash_bytes(TensorView<const std::byte, 1, Cpu>{reinterpret_cast<const std::byte*>(words.data()),
                                                 {bytes}},
             TensorView<std::uint64_t, 1, Cpu>{&hash, {1}}, context);
  return hash;
}

// The first numbers of splitmix64 from seed 0, as its reference implementation gives them: that of
// zeros is their sum.
TEST(Hash, ZerosHashToSumOfSplitmix64Outputs) {
  constexpr std::uint64_t first = 0xe220a8397b1dcdafu;
  constexpr std::uint64_t second = 0x6e789e6aa1b965f4u;
  EXPECT_EQ(hash_of({0, 0}), first + second);
  EXPECT_EQ(hash_of({}), 0u);
}

TEST(Hash, DependsOnEveryBit) {
  std::vector<std::uint64_t> words = random_words(6);
  std::set<std::uint64_t> hashes{hash_of(words)};
  for (std::uint64_t& word : words) {
    for (int bit = 0; bit < 64; ++bit) {
      word ^= std::uint64_t{1} << bit;
      hashes.insert(hash_of(words));
      word ^= std::uint64_t{1} << bit;
    }
  }
  EXPECT_EQ(hashes.size(), 1u + 6 * 64);
}

TEST(Hash, DependsOnWordOrder) {
  std::vector<std::uint64_t> words = random_words(6);
  const std::uint64_t before = hash_of(words);
  std::swap(words[1], words[4]);
  EXPECT_NE(hash_of(words), before);
}

TEST(Hash, DoesNotDependOnTheNumberOfThreads) {
  std::vector<std::uint64_t> words = random_words(50'000);
  const std::uint64_t one = hash_of(words, 1);
  EXPECT_EQ(hash_of(words, 5), one);
  words.back() ^= 1;
  EXPECT_NE(hash_of(words, 5), one);
}

TEST(Hash, RejectsOddWordCount) { EXPECT_THROW(hash_of({1, 2, 3}), ShapeError); }

}  // namespace hash_test
