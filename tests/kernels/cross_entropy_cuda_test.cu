// Targets that are no token, on the Cuda device.
#include "kernels/cuda_support.cuh"

#include <cmath>
#include <limits>
#include <vector>

namespace octavo {
namespace cross_entropy_cuda_test {

using support::constant;

class CrossEntropyOnCuda : public support::OnGpu {};

/// Rows in the memory of a cluster, and rows that stay where they are.
template <class T>
void expect_nan(Index vocabulary, Index padded) {
  SCOPED_TRACE(message(vocabulary, " in ", padded));
  support::TestDevice<Cuda> device;
  const auto outside = static_cast<std::int32_t>(vocabulary);
  const std::vector<std::int32_t> targets{
      2,  outside, std::numeric_limits<std::int32_t>::max(), static_cast<std::int32_t>(padded),
      -1, 0};
  const auto rows = static_cast<Index>(targets.size());
  const auto logits = device.matrix(support::normal_values<T>(rows * padded, 3.0f, 1), padded);
  const TensorView<float, 1, Cuda> losses{device.make_poisoned<float>(rows), {rows}};
  const TensorView<const float, 1, Cuda> scale = device.vector(std::vector<float>{0.125f});
  const auto ids = constant(device.vector(targets));
  const auto expect_losses = [&] {
    const std::vector<float> found = device.read(losses);
    for (std::size_t t = 0; t < targets.size(); ++t) {
      EXPECT_EQ(std::isnan(found[t]), targets[t] >= outside) << t;
    }
    EXPECT_EQ(found[4], 0.0f);
  };
  cross_entropy(logits, ids, losses, vocabulary, {}, device.context());
  expect_losses();
  cross_entropy(logits, ids, losses, vocabulary, scale, device.context());
  expect_losses();
  const std::vector<T> gradient = device.read(logits);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(padded);
    const bool is_padding =
        i % static_cast<std::size_t>(padded) >= static_cast<std::size_t>(outside);
    const auto value = static_cast<float>(gradient[i]);
    ASSERT_EQ(std::isnan(value), !is_padding && targets[row] >= outside) << i;
    if (is_padding) ASSERT_EQ(value, 0.0f) << i;
  }
}

TEST_F(CrossEntropyOnCuda, TargetOutsideVocabularyYieldsNan) {
  for (const auto& [vocabulary, padded] :
       {std::pair<Index, Index>{3, 8}, {257, 384}, {1003, 1003}, {33000, 33024}}) {
    expect_nan<Bf16>(vocabulary, padded);
    expect_nan<float>(vocabulary, padded);
  }
}

}  // namespace cross_entropy_cuda_test
}  // namespace octavo
