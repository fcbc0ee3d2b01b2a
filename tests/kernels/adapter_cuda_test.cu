// What stands between adapters and their GEMMs on the Cuda device is to the bit what the Cpu makes.
#include "cuda_support.cuh"

namespace octavo::adapter_cuda_test {

using support::TestDevice;

/// Two adapters of rank 3 in a layer of 40 columns, of which the first 5 and 8 between have none.
AdapterLayout layout() {
  AdapterLayout result;
  result.parts[0] = {5, 11};
  result.parts[1] = {24, 16};
  result.count = 2;
  result.rank = 3;
  result.width = 8;
  result.scale = 5.0f / 3.0f;
  return result;
}
constexpr Index out = 40;

template <class T>
std::vector<T> values(Index count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> result;
  for (Index i = 0; i < count; ++i) result.push_back(T(normal(random)));
  return result;
}

template <Device D, class T>
std::vector<T> spread() {
  TestDevice<D> device;
  const AdapterLayout adapters = layout();
  const auto stacked = device.matrix(values<T>(adapters.rows() * adapters.rank, 1), adapters.rank);
  const TensorView<T, 2, D> result{device.template make_poisoned<T>(out * adapters.width),
                                   {out, adapters.width}};
  spread_adapters(support::constant(stacked), adapters, result, device.context());
  return device.read(result);
}

template <Device D, class T>
std::vector<T> gradient(bool accumulate) {
  TestDevice<D> device;
  const AdapterLayout adapters = layout();
  const auto of_spread = device.matrix(values<T>(out * adapters.width, 2), adapters.width);
  const auto result = device.matrix(values<T>(adapters.rows() * adapters.rank, 3), adapters.rank);
  stack_adapter_gradients(support::constant(of_spread), adapters, result, accumulate,
                          device.context());
  return device.read(result);
}

template <class T>
class AdaptersOnCuda : public support::OnGpu {};
using Formats = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(AdaptersOnCuda, Formats);

template <class T>
void expect_same(const std::vector<T>& found, const std::vector<T>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(static_cast<float>(found[i]), static_cast<float>(expected[i])) << i;
  }
}

TYPED_TEST(AdaptersOnCuda, SpreadWeightsMatchCpu) {
  expect_same(spread<Cuda, TypeParam>(), spread<Cpu, TypeParam>());
}

/// In FP32 the sum of a product and what was there is rounded once or twice; in BF16 that is too
/// little to be seen with these values.
TYPED_TEST(AdaptersOnCuda, GradientsMatchCpu) {
  expect_same(gradient<Cuda, TypeParam>(false), gradient<Cpu, TypeParam>(false));
  const auto found = gradient<Cuda, TypeParam>(true);
  const auto expected = gradient<Cpu, TypeParam>(true);
  if (!std::is_same_v<TypeParam, float>) return expect_same(found, expected);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto value = static_cast<float>(expected[i]);
    EXPECT_NEAR(static_cast<float>(found[i]), value, 0x1p-22f * (1.0f + std::abs(value))) << i;
  }
}

}  // namespace octavo::adapter_cuda_test
