// Steps of llama_tiny on the Cuda device follow the Cpu, and so do the logits of a generation, for
// whichever GPU the test is compiled: CMAKE_CUDA_ARCHITECTURES=80-virtual tests the code for an
// A100.
#include <octavo/cuda.cuh>
#include <octavo/inference/session.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "support/on_gpu.cuh"
#include "support/small_model.hpp"

namespace octavo {
namespace {

template <class P, Device D>
using Session = ModelSession<Llama<llama_tiny, P, D>>;
// nvcc writes LlamaFamily<llama_tiny> for g++ under a name that it does not declare.
template <LlamaConfig Config, class P, Device D>
using InferenceOf = InferenceSession<LlamaFamily<Config>, P, D>;

template <class P>
class FollowsCpuOnCuda : public support::OnGpuIn<P> {};

using Precisions = testing::Types<Bf16, Fp32, Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>,
                                  Layerwise<Fp8Recipe<Delayed>, ForActivation<E4M3>>>;
TYPED_TEST_SUITE(FollowsCpuOnCuda, Precisions);

TYPED_TEST(FollowsCpuOnCuda, StepsMatchCpu) {
  SessionOptions options;
  options.batch = {2, 64};
  options.seed = 7;
  support::GpuContext on_gpu;
  Context<Cpu> on_cpu(4);
  Session<TypeParam, Cuda> cuda(options, on_gpu);
  Session<TypeParam, Cpu> cpu(options, on_cpu);
  for (unsigned i = 0; i < 3; ++i) {
    const auto batch = ::support::make_batch(128, llama_tiny.vocabulary, 100 + i);
    const StepResult expected = cpu.step({batch.tokens, batch.targets}, 3e-4);
    const StepResult result = cuda.step({batch.tokens, batch.targets}, 3e-4);
    std::printf("  step %u: loss %.5f, on the Cpu %.5f; norm %.5f, on the Cpu %.5f\n", i,
                double(result.loss), double(expected.loss), double(result.gradient_norm),
                double(expected.gradient_norm));
    EXPECT_FALSE(result.skipped);
    EXPECT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss);
    EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm);
  }
}

TYPED_TEST(FollowsCpuOnCuda, LogitsMatchCpu) {
  constexpr InferenceShape shape{.longest = 96, .piece = 32};
  support::GpuContext on_gpu;
  Context<Cpu> on_cpu(4);
  InferenceOf<llama_tiny, TypeParam, Cuda> gpu(shape, on_gpu);
  InferenceOf<llama_tiny, TypeParam, Cpu> cpu(shape, on_cpu);
  const auto value = [](const WeightInfo& weight, Index begin, std::span<float> values) {
    const RandomStream stream{3, std::hash<std::string>()(weight.name)};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float random =
          uniform(random_word(stream, static_cast<std::uint64_t>(begin) + i)) - 0.5f;
      values[i] = weight.name.ends_with("norm.weight") ? 1 + random : 0.2f * random;
    }
  };
  gpu.load_sync(value);
  cpu.load_sync(value);
  std::uint64_t next = 0;
  for (const int count : {50, 5, 1, 1, 1}) {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(
          random_word({5, 1}, next++) % static_cast<std::uint32_t>(llama_tiny.vocabulary)));
    }
    std::vector<float> found(static_cast<std::size_t>(llama_tiny.vocabulary));
    std::vector<float> expected(found.size());
    gpu.append(tokens, found);
    cpu.append(tokens, expected);
    float largest = 0;
    float worst = 0;
    for (std::size_t j = 0; j < found.size(); ++j) {
      largest = std::max(largest, std::abs(expected[j]));
      worst = std::max(worst, std::abs(found[j] - expected[j]));
    }
    std::printf("  %d tokens: logits within %.1e of the largest\n", count, double(worst / largest));
    EXPECT_LE(worst, 3e-2f * largest) << count;
  }
}

}  // namespace
}  // namespace octavo
