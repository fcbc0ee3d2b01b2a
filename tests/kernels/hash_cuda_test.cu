// Hashes of memory on the Cuda device are those of the Cpu.
#include "cuda_support.cuh"

namespace octavo::hash_cuda_test {

using support::TestDevice;

template <Device D>
std::uint64_t hash_of(const std::vector<std::uint64_t>& words) {
  TestDevice<D> device;
  const auto bytes = static_cast<Index>(words.size() * sizeof(std::uint64_t));
  const TensorView<std::uint64_t, 1, D> hash{device.template make_poisoned<std::uint64_t>(1), {1}};
  hash_bytes(
      TensorView<const std::byte, 1, D>{reinterpret_cast<std::byte*>(device.make(words)), {bytes}},
      hash, device.context());
  return device.read(hash)[0];
}

class HashOnCuda : public support::OnGpu {};

TEST_F(HashOnCuda, MatchesCpu) {
  std::mt19937_64 random(5);
  for (const std::size_t count : {2, 30, 514, 70'000, 3'000'002}) {
    std::vector<std::uint64_t> words(count);
    for (std::uint64_t& word : words) word = random();
    EXPECT_EQ(hash_of<Cuda>(words), hash_of<Cpu>(words)) << count << " words";
  }
}

}  // namespace octavo::hash_cuda_test
