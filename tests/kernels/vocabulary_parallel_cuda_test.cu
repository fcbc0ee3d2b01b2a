// Ranks that have a part of the vocabulary each, on the Cuda device, against the Cpu.
#include "kernels/cuda_support.cuh"

#include <cmath>
#include <cstdint>
#include <vector>

namespace octavo {
namespace vocabulary_parallel_cuda_test {

using support::constant;
using support::normal_values;
using support::TestDevice;

class VocabularyParallelOnCuda : public support::OnGpu {};

/// What a rank finds: losses, then the gradients of its columns.
template <class T>
struct Found {
  std::vector<LogitSum> sums;
  std::vector<float> losses;
  std::vector<T> gradient;
};

/// Two ranks with `columns` each, of which the second one's are found.
template <class T, Device D>
Found<T> second_rank(Index vocabulary, Index columns, const std::vector<std::int32_t>& targets) {
  TestDevice<D> device;
  const auto tokens = static_cast<Index>(targets.size());
  const auto ids = constant(device.vector(targets));
  const TensorView<LogitSum, 1, D> sums{device.template make_poisoned<LogitSum>(2 * tokens),
                                        {2 * tokens}};
  const TensorView<float, 1, D> losses{device.template make_poisoned<float>(tokens), {tokens}};
  TensorView<T, 2, D> logits;
  VocabularyPart part;
  for (const Index rank : {0, 1}) {
    const auto seed = static_cast<unsigned>(rank + 1);
    logits = device.matrix(normal_values<T>(tokens * columns, 3.0f, seed), columns);
    part = {rank * columns, vocabulary};
    sum_logits(constant(logits), ids, part, sums.rows(rank * tokens, tokens), device.context());
  }
  const TensorView<const LogitSum, 2, D> all{sums.data(), {2, tokens}};
  const TensorView<const float, 1, D> scale = device.vector(std::vector<float>{0.125f});
  parallel_cross_entropy(all, logits, ids, losses, part, scale, device.context());
  return {device.read(sums), device.read(losses), device.read(logits)};
}

template <class T>
void compare(Index vocabulary, Index columns, double unit) {
  SCOPED_TRACE(message(vocabulary, " in 2 x ", columns));
  const auto last = static_cast<std::int32_t>(vocabulary - 1);
  const std::vector<std::int32_t> targets{
      0, last, -1, last + 1, 1'000'000'000, static_cast<std::int32_t>(columns / 2)};
  const auto cpu = second_rank<T, Cpu>(vocabulary, columns, targets);
  const auto cuda = second_rank<T, Cuda>(vocabulary, columns, targets);
  for (std::size_t i = 0; i < cpu.sums.size(); ++i) {
    EXPECT_EQ(cpu.sums[i].largest, cuda.sums[i].largest) << i;
    EXPECT_NEAR(cpu.sums[i].sum, cuda.sums[i].sum, 1e-5 * cpu.sums[i].sum) << i;
    EXPECT_EQ(cpu.sums[i].at_target, cuda.sums[i].at_target) << i;
  }
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const bool is_outside = targets[t] > last;
    EXPECT_EQ(std::isnan(cuda.losses[t]), is_outside) << t;
    if (!is_outside) EXPECT_NEAR(cpu.losses[t], cuda.losses[t], 1e-5) << t;
    for (Index c = 0; c < columns; ++c) {
      const auto at = static_cast<std::size_t>(static_cast<Index>(t) * columns + c);
      const double expected = static_cast<double>(static_cast<float>(cpu.gradient[at]));
      const double found = static_cast<double>(static_cast<float>(cuda.gradient[at]));
      ASSERT_EQ(std::isnan(found), std::isnan(expected)) << t << ' ' << c;
      if (!std::isnan(found)) ASSERT_NEAR(found, expected, unit * std::abs(expected) + 1e-8);
    }
  }
}

TEST_F(VocabularyParallelOnCuda, CrossEntropyMatchesCpu) {
  for (const auto& [vocabulary, columns] :
       {std::pair<Index, Index>{13, 8}, {8, 8}, {700, 384}, {1003, 502}, {40000, 20096}}) {
    compare<Bf16>(vocabulary, columns, 0x1p-7);
    compare<float>(vocabulary, columns, 2e-5);
  }
}

template <Device D>
std::vector<float> look_up(const std::vector<std::int32_t>& tokens, Index columns) {
  constexpr Index rows = 40;
  const auto count = static_cast<Index>(tokens.size());
  TestDevice<D> device(embedding_workspace(count));
  const TensorView<std::int32_t, 1, D> local{device.template make_poisoned<std::int32_t>(count),
                                             {count}};
  local_tokens(constant(device.vector(tokens)), rows, rows, local, device.context());
  const auto table = device.matrix(normal_values<float>(rows * columns, 1.0f, 1), columns);
  const TensorView<float, 2, D> y{device.template make_poisoned<float>(count * columns),
                                  {count, columns}};
  embedding_forward(constant(local), constant(table), y, device.context());
  // Whole numbers, whose sums are exact whatever their order.
  std::vector<float> gradients;
  for (Index i = 0; i < count * columns; ++i) gradients.push_back(static_cast<float>(i % 15 - 7));
  embedding_backward(constant(local), constant(device.matrix(gradients, columns)), table,
                     device.context());
  std::vector<float> found = device.read(y);
  const std::vector<float> sums = device.read(table);
  found.insert(found.end(), sums.begin(), sums.end());
  return found;
}

// Few tokens, which blocks search, and many, which are sorted; frequent ones among both.
TEST_F(VocabularyParallelOnCuda, SkipsTokensOfOtherRanks) {
  for (const Index count : {Index{5}, Index{1000}, Index{20000}}) {
    std::vector<std::int32_t> tokens;
    for (Index i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i % 3 == 0 ? 50 : i * 7 % 120));
    }
    for (const Index columns : {Index{8}, Index{37}}) {
      EXPECT_TRUE(look_up<Cpu>(tokens, columns) == look_up<Cuda>(tokens, columns))
          << count << " tokens, " << columns << " columns";
    }
  }
}

}  // namespace vocabulary_parallel_cuda_test
}  // namespace octavo
