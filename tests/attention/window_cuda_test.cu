// Sliding windows and the scale of scores on the Cuda device, through cuDNN where the program has
// it and through own kernels, against the formula in FP64.
#include "attention/attention_on_cuda.cuh"

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace octavo {
namespace window_cuda_test {

using namespace attention_on_cuda;
using support::OnGpu;

using Begins = std::vector<Index>;

AttentionShape windowed(AttentionShape shape, Index window, float scale = 0.0f) {
  shape.options = {window, scale};
  return shape;
}

class WindowsOnCuda : public OnGpu, public testing::WithParamInterface<Library> {
 protected:
  static void expect_the_formula(const AttentionShape& shape, const Begins& begins = {}) {
    SCOPED_TRACE(message(text_of(shape), ", ", begins.size(), " documents"));
    std::printf("%s, %d documents, %s\n", text_of(shape).c_str(), static_cast<int>(begins.size()),
                name_of(GetParam()));
    std::fflush(stdout);
    const auto inputs = random_inputs<Bf16>(shape, 1);
    Attention<Bf16, Cuda> attention(shape, inputs, limits_of(GetParam()), begins);
    const DeviceLimits<Cuda> limits = attention_limits<Bf16>(shape, attention.context());
    if (GetParam() == Library::cudnn) {
      const std::string fallback = attention_fallback(AttentionPass::backward, shape, limits);
      if (!fallback.empty()) std::printf("  %s\n", fallback.c_str());
    }
    attention.run();
    expect_close(attention.results(), formula(shape, inputs, begins), bf16_tolerance);
  }
};

// Windows of one token, and within a tile, at its edge and across tiles of 64 and 128; lengths that
// are and are not multiples of tiles.
TEST_P(WindowsOnCuda, MatchFormula) {
  for (const Index window : {1, 2, 50, 64, 65, 127, 128, 129, 300}) {
    for (const HeadLayout heads : {HeadLayout{4, 2, 64}, HeadLayout{2, 1, 128},
                                   HeadLayout{2, 1, 256}, HeadLayout{2, 2, 24}}) {
      for (const Index tokens : {64, 257, 640}) {
        expect_the_formula(windowed({2, tokens, heads}, window));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(WindowsOnCuda, MatchFormulaForDocuments) {
  for (const Index window : {1, 30, 64, 100, 200}) {
    for (const HeadLayout heads :
         {HeadLayout{4, 2, 64}, HeadLayout{4, 1, 128}, HeadLayout{2, 1, 256}}) {
      expect_the_formula(windowed({2, 130, heads, 9}, window), {1, 64, 128, 129, 194, 195});
      expect_the_formula(windowed({1, 700, heads, 8}, window), {128, 129, 193, 256, 511, 640});
      expect_the_formula(windowed({1, 600, heads, 3}, window), {});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(WindowsOnCuda, MatchFormulaForAnyScale) {
  for (const float scale : {0.0625f, 0.2f}) {
    for (const Index window : {0, 100}) {
      expect_the_formula(windowed({1, 320, {4, 2, 128}}, window, scale));
      expect_the_formula(windowed({1, 320, {4, 1, 256}, 4}, window, scale), {77, 200});
      if (HasFatalFailure()) return;
    }
  }
}

#if defined(OCTAVO_WITH_CUDNN)
TEST_P(WindowsOnCuda, ThePlannedWorkspaceSuffices) {
  for (const bool deterministic : {false, true}) {
    for (const AttentionShape& shape :
         {windowed({1, 8192, {32, 8, 128}}, 4096), windowed({1, 8192, {4, 1, 256}}, 512),
          windowed({1, 4096, {4, 1, 256}}, 0), windowed({1, 8192, {32, 8, 128}, 16}, 1000)}) {
      Context<Cuda> context;
      set_limits(context, limits_of(GetParam(), deterministic));
      const DeviceLimits<Cuda> limits = attention_limits<Bf16>(shape, context);
      DeviceLimits<Cuda> planned = limits;
      planned.cudnn_support.clear();
      std::printf("%s: %s, %s needs %zu bytes of workspace, %zu are planned; %s\n",
                  text_of(shape).c_str(),
                  attention_implementation<Bf16>(AttentionPass::forward, shape, limits),
                  attention_implementation<Bf16>(AttentionPass::backward, shape, limits),
                  attention_workspace(shape, limits), attention_workspace(shape, planned),
                  attention_fallback(AttentionPass::backward, shape, limits).c_str());
      EXPECT_LE(attention_workspace(shape, limits), attention_workspace(shape, planned));
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Libraries, WindowsOnCuda, libraries,
                         [](const auto& test) { return std::string(name_of(test.param)); });

class OwnWindowsOnCuda : public OnGpu {};

TEST_F(OwnWindowsOnCuda, FullLengthWindowIsBitwiseEqualToNoWindow) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 257, {4, 2, 128}}, AttentionShape{1, 320, {4, 1, 64}},
        AttentionShape{1, 200, {2, 1, 256}}}) {
    const auto inputs = random_inputs<Bf16>(shape, 2);
    Attention<Bf16, Cuda> none(shape, inputs);
    none.run();
    for (const Index window : {shape.tokens, std::numeric_limits<Index>::max()}) {
      Attention<Bf16, Cuda> all(windowed(shape, window), inputs);
      all.run();
      EXPECT_TRUE(all.results() == none.results()) << text_of(shape);
    }
  }
}

TEST_F(OwnWindowsOnCuda, AreDeterministic) {
  const AttentionShape shape = windowed({1, 1000, {4, 1, 256}}, 130);
  const auto inputs = random_inputs<Bf16>(shape, 3);
  Attention<Bf16, Cuda> attention(shape, inputs);
  attention.run();
  const Results<Bf16> first = attention.results();
  attention.run();
  EXPECT_TRUE(attention.results() == first);
}

TEST_F(OwnWindowsOnCuda, MatchFormulaInFp32) {
  for (const Index window : {1, 40, 64}) {
    const AttentionShape shape = windowed({2, 130, {4, 2, 32}, 7}, window, 0.3f);
    const Begins begins{1, 64, 129, 200};
    const auto inputs = random_inputs<float>(shape, 4);
    Attention<float, Cuda> attention(shape, inputs, {.cudnn = false}, begins);
    attention.run();
    expect_close(attention.results(), formula(shape, inputs, begins), fp32_tolerance);
  }
}

}  // namespace window_cuda_test
}  // namespace octavo
