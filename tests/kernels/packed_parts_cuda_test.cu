// Sums and packed gradients of ranks on the Cuda device are those of the Cpu.
#include "cuda_support.cuh"

namespace octavo::packed_parts_cuda_test {

using support::TestDevice;

/// Numbers of every magnitude, by blocks of 128.
template <class T>
std::vector<T> values(Index count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> result;
  for (Index i = 0; i < count; ++i) {
    result.push_back(T(std::ldexp(normal(random), static_cast<int>(i / 128 % 40) - 20)));
  }
  return result;
}

template <class T, Device D>
std::vector<T> read(const T* memory, Index count, TestDevice<D>& device) {
  std::vector<T> result(static_cast<std::size_t>(count));
  copy_to_host_sync(result.data(), memory, result.size() * sizeof(T), device.context());
  return result;
}

/// sum_parts on a device.
template <Device D, class T>
std::vector<T> summed(const std::vector<T>& parts, const std::vector<T>& begin, bool accumulate) {
  TestDevice<D> device;
  const auto elements = static_cast<Index>(begin.size());
  const Index ranks = static_cast<Index>(parts.size()) / elements;
  T* sum = device.make(begin);
  // The last rank's part lies elsewhere.
  std::vector<T> others = parts;
  const std::vector<T> own(parts.end() - elements, parts.end());
  std::fill(others.end() - elements, others.end(), T(77.0f));
  const TensorView<const T, 2, D> received{device.make(others), {ranks, elements}};
  sum_parts(RankParts<T, D>(received, device.make(own), ranks - 1),
            TensorView<T, 1, D>{sum, {elements}}, accumulate, device.context());
  return read(sum, elements, device);
}

/// What pack_parts writes on a device, and what sum_packed_parts then makes of it.
template <class T>
struct Packed {
  std::vector<std::byte> bytes;
  std::vector<T> sum;
};
template <Device D, class T>
Packed<T> packed(const std::vector<T>& parts, Index elements) {
  TestDevice<D> device;
  const Index ranks = static_cast<Index>(parts.size()) / elements;
  const Index bytes = ranks * PackedPart::bytes(elements);
  const TensorView<std::byte, 2, D> all{device.template make_poisoned<std::byte>(bytes),
                                        {ranks, bytes / ranks}};
  T* sum = device.template make_poisoned<T>(elements);
  pack_parts(TensorView<const T, 2, D>{device.make(parts), {ranks, elements}}, all,
             device.context());
  std::vector<std::byte> content = read(all.data(), bytes, device);
  // The first rank's part lies elsewhere.
  std::vector<std::byte> others = content;
  const std::vector<std::byte> own(content.begin(), content.begin() + bytes / ranks);
  std::fill(others.begin(), others.begin() + bytes / ranks, std::byte{0x7f});
  const TensorView<const std::byte, 2, D> received{device.make(others), all.shape()};
  sum_packed_parts(RankParts<std::byte, D>(received, device.make(own), 0),
                   TensorView<T, 1, D>{sum, {elements}}, false, device.context());
  return {std::move(content), read(sum, elements, device)};
}

template <class T>
class RankSumsOnCuda : public support::OnGpu {};
using Formats = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RankSumsOnCuda, Formats);

TYPED_TEST(RankSumsOnCuda, PartSumsAreBitwiseEqualToCpu) {
  for (const Index elements : {1, 7, 256, 4097, 1100000, 1100001}) {
    for (const Index ranks : {1, 3}) {
      for (const bool accumulate : {false, true}) {
        const auto parts = values<TypeParam>(ranks * elements, 1);
        const auto begin = values<TypeParam>(elements, 2);
        const auto wanted = summed<Cpu>(parts, begin, accumulate);
        const auto found = summed<Cuda>(parts, begin, accumulate);
        EXPECT_EQ(0, std::memcmp(wanted.data(), found.data(), wanted.size() * sizeof(TypeParam)))
            << elements << " elements of " << ranks << " ranks";
      }
    }
  }
}

TYPED_TEST(RankSumsOnCuda, PackedPartsAreBitwiseEqualToCpu) {
  for (const Index elements : {128, 384, 25600, 1 << 20}) {
    const auto parts = values<TypeParam>(3 * elements, 3);
    const auto wanted = packed<Cpu>(parts, elements);
    const auto found = packed<Cuda>(parts, elements);
    EXPECT_TRUE(wanted.bytes == found.bytes) << elements << " elements";
    for (std::size_t i = 0; i < wanted.sum.size(); ++i) {
      const float exact = static_cast<float>(wanted.sum[i]);
      // One rounding less where the product and the sum are one operation; BF16 rounds at the end.
      const float allowed = std::is_same_v<TypeParam, float> ? 1e-5f : 8e-3f;
      ASSERT_NEAR(static_cast<float>(found.sum[i]), exact, allowed * std::abs(exact) + 1e-30f) << i;
    }
  }
}

TYPED_TEST(RankSumsOnCuda, NonFiniteValuesAffectOnlyTheirBlock) {
  auto parts = values<TypeParam>(3 * 384, 3);
  parts[384 + 130] = TypeParam(std::numeric_limits<float>::infinity());
  const auto found = packed<Cuda>(parts, 384);
  for (std::size_t i = 0; i < found.sum.size(); ++i) {
    EXPECT_EQ(std::isnan(static_cast<float>(found.sum[i])), i / 128 == 1) << i;
  }
}

}  // namespace octavo::packed_parts_cuda_test
