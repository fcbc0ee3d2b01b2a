// The Cuda device's texts are the Cpu's, and its steps are launched from one record.
#include <gtest/gtest.h>
#include <octavo/cuda.cuh>
#include <octavo/inference/session.hpp>
#include <octavo/precision/named_precisions.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/on_gpu.cuh"

namespace inference_cuda_test {

using namespace octavo;

constexpr InferenceShape shape{.longest = 96, .piece = 32};

template <class FamilyOf, class P>
struct Case {
  using Family = FamilyOf;
  using Precision = P;
  /// Of the largest logit: sums of another order, and results that are rounded to the format.
  static constexpr float bound = std::is_same_v<P, Fp32> ? 1e-5f : 3e-2f;
};

template <class Of>
class InferenceOnCuda : public testing::Test {
 protected:
  using Family = typename Of::Family;
  template <Device D>
  using Session = InferenceSession<Family, typename Of::Precision, D>;

  template <Device D>
  static void load(Session<D>& session) {
    session.load_sync([](const WeightInfo& weight, Index begin, std::span<float> values) {
      const RandomStream stream{3, std::hash<std::string>()(weight.name)};
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float random =
            uniform(random_word(stream, static_cast<std::uint64_t>(begin) + i)) - 0.5f;
        values[i] = weight.name.ends_with("norm.weight") ? 1 + random : 0.2f * random;
      }
    });
  }

  /// The logits behind a prompt in pieces, few tokens, and single ones.
  template <Device D>
  static std::vector<std::vector<float>> logits(Session<D>& session) {
    std::vector<std::vector<float>> all;
    std::uint64_t next = 0;
    for (const int count : {50, 5, 1, 1, 1, 1, 9, 1}) {
      std::vector<std::int32_t> tokens;
      for (int i = 0; i < count; ++i) {
        tokens.push_back(static_cast<std::int32_t>(
            random_word({5, 1}, next++) % static_cast<std::uint32_t>(Family::config.vocabulary)));
      }
      all.emplace_back(static_cast<std::size_t>(Family::config.vocabulary));
      session.append(tokens, all.back());
    }
    return all;
  }

  support::GpuContext on_gpu_;
  Context<Cpu> on_cpu_{2};
};

/// Both devices round activations differently, which can change the choice of experts in BF16.
/// There, each token chooses all experts.
constexpr LlamaConfig with_experts(int choices, int experts) {
  LlamaConfig config = llama_tiny;
  config.experts = {.experts = experts, .choices = choices};
  return config;
}
constexpr LlamaConfig two_of_five = with_experts(2, 5);
constexpr LlamaConfig three_of_three = with_experts(3, 3);

using Cases = testing::Types<Case<LlamaFamily<two_of_five>, Fp32>,
                             Case<LlamaFamily<three_of_three>, PrecisionNamed<"fp8-rowwise">>,
                             Case<LlamaFamily<llama_tiny>, Fp32>,
                             Case<LlamaFamily<llama_tiny>, PrecisionNamed<"fp8-rowwise-fp8-head">>,
                             Case<LlamaFamily<llama_tiny>, PrecisionNamed<"fp8-tensorwise">>,
                             Case<Gpt2Family<gpt2_tiny>, Bf16>>;
TYPED_TEST_SUITE(InferenceOnCuda, Cases);

TYPED_TEST(InferenceOnCuda, LogitsMatchCpu) {
  typename TestFixture::template Session<Cuda> gpu(shape, this->on_gpu_);
  typename TestFixture::template Session<Cpu> cpu(shape, this->on_cpu_);
  this->load(gpu);
  this->load(cpu);
  const auto expected = this->logits(cpu);
  const auto found = this->logits(gpu);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    float largest = 0;
    for (const float logit : expected[i]) largest = std::max(largest, std::abs(logit));
    for (std::size_t j = 0; j < expected[i].size(); ++j) {
      ASSERT_NEAR(found[i][j], expected[i][j], TypeParam::bound * largest) << i << ", token " << j;
    }
  }
}

TYPED_TEST(InferenceOnCuda, ReplayedStepsAreBitwiseEqual) {
  typename TestFixture::template Session<Cuda> session(shape, this->on_gpu_);
  this->load(session);
  const auto first = this->logits(session);
  EXPECT_EQ(session.replays().runs, 1U);
  EXPECT_EQ(session.replays().recordings, 1U);
  EXPECT_EQ(session.replays().launches, 4U);
  session.truncate(0);
  EXPECT_EQ(this->logits(session), first) << "other steps ran from the record";
  this->load(session);
  EXPECT_EQ(this->logits(session), first) << "the record reads weights that were set again";
  EXPECT_EQ(session.replays().recordings, 1U);
}

}  // namespace inference_cuda_test
