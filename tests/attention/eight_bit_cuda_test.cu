// The 8-bit forward of attention on the Cuda device, against its definition in FP64.
#include "attention/attention_on_cuda.cuh"
#include "attention/eight_bit_formula.hpp"

#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace octavo {
namespace eight_bit_cuda_test {

using namespace attention_on_cuda;

using Begins = std::vector<Index>;

AttentionShape in_eight_bits(AttentionShape shape, Index window = 0, float scale = 0.0f) {
  shape.options = {window, scale, AttentionForward::eight_bit};
  return shape;
}

class EightBitAttentionOnCuda : public support::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const support::GpuContext context;
    if (!context.limits().gpu.warpgroup_mma) GTEST_SKIP() << support::lacks(context, "wgmma");
  }

  static void expect_the_formula(const AttentionShape& shape, const Begins& begins = {},
                                 float factor = 1.0f) {
    SCOPED_TRACE(message(text_of(shape), ", ", begins.size(), " documents"));
    std::printf("%s, %d documents\n", text_of(shape).c_str(), static_cast<int>(begins.size()));
    std::fflush(stdout);
    auto inputs = random_inputs<Bf16>(shape, 1);
    for (Bf16& value : inputs.qkv) value = Bf16(factor * static_cast<float>(value));
    Attention<Bf16, Cuda> attention(shape, inputs, {.cudnn = false}, begins);
    attention.run();
    const References expected = eight_bit_formula(shape, inputs, begins);
    expect_close("output", attention.results().output, expected.output, eight_bit_tolerance);
    expect_close("log_sum_exp", attention.results().log_sum_exp, expected.log_sum_exp,
                 log_sum_exp_tolerance);
  }
};

TEST_F(EightBitAttentionOnCuda, MatchesFormula) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, {4, 4, 64}}, AttentionShape{2, 1, {2, 1, 128}},
        AttentionShape{3, 17, {4, 2, 32}}, AttentionShape{2, 64, {8, 2, 64}},
        AttentionShape{1, 128, {8, 1, 128}}, AttentionShape{2, 192, {4, 2, 64}},
        AttentionShape{2, 320, {4, 1, 128}}, AttentionShape{1, 256, {4, 4, 96}},
        AttentionShape{2, 257, {8, 1, 32}}, AttentionShape{1, 257, {4, 1, 16}},
        AttentionShape{1, 1500, {4, 1, 128}}, AttentionShape{1, 1100, {2, 2, 64}}}) {
    expect_the_formula(in_eight_bits(shape));
    if (HasFatalFailure()) return;
  }
}

TEST_F(EightBitAttentionOnCuda, MatchesFormulaForDocumentsAndWindows) {
  for (const HeadLayout heads : {HeadLayout{4, 2, 64}, HeadLayout{4, 1, 128}}) {
    expect_the_formula(in_eight_bits({2, 130, heads, 9}), {1, 64, 128, 129, 194, 195});
    expect_the_formula(in_eight_bits({1, 700, heads, 8}), {128, 129, 193, 256, 511, 640});
    for (const Index window : {1, 50, 128, 300}) {
      expect_the_formula(in_eight_bits({2, 640, heads}, window));
      expect_the_formula(in_eight_bits({1, 700, heads, 8}, window), {128, 129, 193, 256, 511, 640});
      if (HasFatalFailure()) return;
    }
  }
}

// Partial tiles, heads that are narrower than a tile or rotated in several groups, and tiles of
// other magnitudes, some outside the range of scales.
TEST_F(EightBitAttentionOnCuda, RoundsQueriesKeysAndValuesAsTheCpuDoes) {
  for (const AttentionShape& shape :
       {AttentionShape{3, 17, {4, 2, 16}}, AttentionShape{2, 130, {4, 2, 64}},
        AttentionShape{1, 300, {2, 1, 72}}, AttentionShape{2, 128, {3, 1, 96}},
        AttentionShape{1, 257, {4, 2, 128}}}) {
    SCOPED_TRACE(text_of(shape));
    auto inputs = random_inputs<Bf16>(shape, 5);
    constexpr float magnitudes[] = {1.0f, 0.0f, 0x1p60f, 0x1p-60f, 300.0f};
    for (std::size_t i = 0; i < inputs.qkv.size(); ++i) {
      const auto head = static_cast<Index>(i) / shape.heads.head_dim;
      Bf16& value = inputs.qkv[i];
      value = Bf16(magnitudes[head % 5] * static_cast<float>(value));
    }
    Attention<Bf16, Cpu> cpu(in_eight_bits(shape), inputs);
    Attention<Bf16, Cuda> cuda(in_eight_bits(shape), inputs);
    cpu.run();
    cuda.run();
    EXPECT_TRUE(cpu.qkv() == cuda.qkv());
  }
}

TEST_F(EightBitAttentionOnCuda, AdaptsToInputMagnitude) {
  for (const float factor : {0x1p-4f, 0x1p-1f, 20.0f}) {
    expect_the_formula(in_eight_bits({1, 320, {4, 2, 128}}, 0, 0.0078125f / (factor * factor)), {},
                       factor);
  }
}

// Rounded probabilities of the forward move the gradients, on the Cpu device by 1.1 % and 2.2 %.
TEST_F(EightBitAttentionOnCuda, GradientsMatchRoundedOperands) {
  for (const auto& [factor, limit] : {std::pair{1.0f, 0.015}, {8.0f, 0.037}}) {
    const AttentionShape shape = in_eight_bits({1, 300, {4, 2, 64}});
    Inputs<Bf16> inputs = random_inputs<Bf16>(shape, 2);
    scale_scores(shape, factor, inputs);
    Attention<Bf16, Cuda> attention(shape, inputs);
    attention.run();
    expect_close_gradients(shape, inputs, attention.results().qkv_gradient, limit);
  }
}

TEST_F(EightBitAttentionOnCuda, BackwardProbabilitiesSumToOne) {
  for (const AttentionShape& shape :
       {in_eight_bits({2, 200, {4, 2, 64}}), in_eight_bits({1, 320, {8, 2, 128}}, 100)}) {
    auto inputs = random_inputs<Bf16>(shape, 3);
    for (Bf16& value : inputs.qkv) value = Bf16(4.0f * static_cast<float>(value));
    Attention<Bf16, Cuda> attention(shape, inputs);
    attention.run();
    expect_probabilities_sum_to_one(shape, inputs, attention.results().qkv_gradient);
  }
}

TEST_F(EightBitAttentionOnCuda, IsDeterministic) {
  const AttentionShape shape = in_eight_bits({2, 960, {8, 2, 128}});
  const auto inputs = random_inputs<Bf16>(shape, 2);
  const auto run = [&] {
    Attention<Bf16, Cuda> attention(shape, inputs);
    attention.run();
    return attention.results();
  };
  const Results<Bf16> expected = run();
  for (int again = 0; again < 3; ++again) EXPECT_TRUE(run() == expected);
}

TEST_F(EightBitAttentionOnCuda, NonfiniteInputsMakeOutputsNan) {
  expect_nan_from_nonfinite_inputs([](const AttentionShape& shape, const Inputs<Bf16>& inputs) {
    Attention<Bf16, Cuda> attention(shape, inputs);
    attention.run();
    return attention.results().output;
  });
}

}  // namespace eight_bit_cuda_test
}  // namespace octavo
