// Attention within documents on the Cuda device, and in sequences of any length: through cuDNN
// where the program has it and through own kernels, against the formula in FP64.
#include "attention/attention_on_cuda.cuh"

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {
namespace documents_cuda_test {

using namespace attention_on_cuda;
using support::OnGpu;

using Begins = std::vector<Index>;

struct Case {
  AttentionShape shape;
  Begins begins;
};

/// Documents of one token, of a tile of 64 or 128 and of one more or less, that begin in the midst
/// of tiles and at their edges, and of several tiles; heads that cuDNN lays out as one run and, not
/// in 16s, a document at a time; as many documents as are allowed, and fewer.
const std::vector<Case> cases{
    {{1, 64, {4, 2, 64}, 3}, {1, 63}},
    {{2, 130, {8, 1, 128}, 9}, {1, 64, 128, 129, 194, 195}},
    {{1, 700, {4, 2, 64}, 8}, {128, 129, 193, 256, 511, 640}},
    {{2, 384, {4, 4, 96}, 20}, {128, 256, 500, 600, 767}},
    {{1, 1000, {4, 1, 128}, 5}, {100, 101, 900}},
    {{3, 257, {2, 1, 24}, 12}, {5, 300, 301, 302, 303, 304, 400}},
    {{1, 300, {2, 2, 16}, 300}, {}},
};

std::string text_of(const Case& test) {
  return message(attention_on_cuda::text_of(test.shape), ", up to ", test.shape.most_documents,
                 " documents, ", test.begins.size(), " begin within sequences");
}

class DocumentsOnCuda : public OnGpu, public testing::WithParamInterface<Library> {
 protected:
  static Attention<Bf16, Cuda> make(const Case& test, const Inputs<Bf16>& inputs,
                                    bool deterministic = false) {
    return Attention<Bf16, Cuda>(test.shape, inputs, limits_of(GetParam(), deterministic),
                                 test.begins);
  }
  /// What attention is to run through; a shape that cuDNN refuses says why.
  static void expect_library(const AttentionShape& shape, const Context<Cuda>& context) {
    const DeviceLimits<Cuda> limits = attention_limits<Bf16>(shape, context);
    EXPECT_STREQ(attention_implementation<Bf16>(AttentionPass::forward, shape, limits),
                 must_run_in_cudnn(GetParam(), shape) ? "cudnn" : "octavo")
        << attention_fallback(AttentionPass::forward, shape, limits);
  }
};

TEST_P(DocumentsOnCuda, MatchFormulaOfEachDocument) {
  for (const Case& test : cases) {
    SCOPED_TRACE(text_of(test));
    std::printf("%s, %s\n", text_of(test).c_str(), name_of(GetParam()));
    const auto inputs = random_inputs<Bf16>(test.shape, 1);
    auto attention = make(test, inputs);
    expect_library(test.shape, attention.context());
    attention.run();
    expect_close(attention.results(), formula(test.shape, inputs, test.begins), bf16_tolerance);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DocumentsOnCuda, DeterministicModeMatchesFormula) {
  for (const Case& test : {cases[1], cases[2]}) {
    SCOPED_TRACE(text_of(test));
    const auto inputs = random_inputs<Bf16>(test.shape, 2);
    auto attention = make(test, inputs, true);
    attention.run();
    const Results<Bf16> first = attention.results();
    expect_close(first, formula(test.shape, inputs, test.begins), bf16_tolerance);
    attention.run();
    EXPECT_TRUE(attention.results() == first);
  }
}

// What lies on the GPU says where documents begin: a recorded graph serves any batch of its shape.
TEST_P(DocumentsOnCuda, OneRecordedGraphServesEveryDivision) {
  const AttentionShape shape{2, 320, {4, 2, 128}, 12};
  const auto inputs = random_inputs<Bf16>(shape, 3);
  auto attention = make({shape, {}}, inputs);
  attention.run();
  const cudaStream_t stream = attention.context().stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  attention.run();
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (const Begins& begins :
       {Begins{}, Begins{100}, Begins{1, 2, 3, 64, 128, 319, 321, 448, 500, 639}, Begins{512}}) {
    SCOPED_TRACE(message(begins.size(), " begin within sequences"));
    attention.divide(begins);
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    expect_close(attention.results(), formula(shape, inputs, begins), bf16_tolerance);
    if (HasFatalFailure()) break;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_P(DocumentsOnCuda, LargeScoresDoNotOverflow) {
  const Case test{{1, 192, {2, 1, 64}, 4}, {70, 130, 131}};
  auto inputs = random_inputs<Bf16>(test.shape, 4);
  for (Bf16& value : inputs.qkv) value = Bf16(20.0f * static_cast<float>(value));
  auto attention = make(test, inputs);
  attention.run();
  for (const Bf16 value : attention.results().qkv_gradient) {
    ASSERT_TRUE(std::isfinite(static_cast<float>(value)));
  }
  expect_close("output", attention.results().output,
               formula(test.shape, inputs, test.begins).output, bf16_tolerance);
}

#if defined(OCTAVO_WITH_CUDNN)
TEST_P(DocumentsOnCuda, ThePlannedWorkspaceSuffices) {
  for (const bool deterministic : {false, true}) {
    for (const AttentionShape& shape :
         {AttentionShape{1, 8192, {32, 8, 128}, 16}, AttentionShape{4, 1000, {16, 4, 128}, 40},
          AttentionShape{2, 1088, {4, 4, 64}, 2}, AttentionShape{3, 192, {6, 1, 24}, 9},
          AttentionShape{1, 4097, {8, 2, 64}}}) {
      Context<Cuda> context;
      set_limits(context, limits_of(GetParam(), deterministic));
      const DeviceLimits<Cuda> limits = attention_limits<Bf16>(shape, context);
      DeviceLimits<Cuda> planned = limits;
      planned.cudnn_support.clear();
      std::printf("%s, %d documents: %s needs %zu bytes of workspace, %zu are planned%s\n",
                  attention_on_cuda::text_of(shape).c_str(), static_cast<int>(shape.most_documents),
                  attention_implementation<Bf16>(AttentionPass::backward, shape, limits),
                  attention_workspace(shape, limits), attention_workspace(shape, planned),
                  attention_fallback(AttentionPass::backward, shape, limits).c_str());
      EXPECT_LE(attention_workspace(shape, limits), attention_workspace(shape, planned));
    }
  }
}
#endif

class LengthsOnCuda : public DocumentsOnCuda {};

TEST_P(LengthsOnCuda, MatchFormulaForAnyTokenCount) {
  for (const Index tokens : {1, 63, 65, 100, 1000, 4097}) {
    for (const Index most_documents : {0, 4}) {
      if (most_documents > tokens) continue;
      const AttentionShape shape{1, tokens, {2, 1, 64}, most_documents};
      const Begins begins = most_documents == 0 ? Begins{} : Begins{tokens / 3, tokens / 2 + 1};
      const Case test{shape, begins};
      SCOPED_TRACE(text_of(test));
      std::printf("%s, %s\n", text_of(test).c_str(), name_of(GetParam()));
      std::fflush(stdout);
      const auto inputs = random_inputs<Bf16>(shape, 5);
      auto attention = make(test, inputs);
      expect_library(shape, attention.context());
      attention.run();
      expect_close(attention.results(), formula(shape, inputs, begins), bf16_tolerance);
      if (HasFatalFailure()) return;
    }
  }
}

const auto name_test = [](const auto& test) {
  return std::string(attention_on_cuda::name_of(test.param));
};
INSTANTIATE_TEST_SUITE_P(Libraries, DocumentsOnCuda, libraries, name_test);
INSTANTIATE_TEST_SUITE_P(Libraries, LengthsOnCuda, libraries, name_test);

class OwnDocumentsOnCuda : public OnGpu {};

/// The rows of one document as a sequence.
template <class T>
std::vector<T> some_rows(const std::vector<T>& values, Index columns, Index first, Index count) {
  return {values.begin() + first * columns, values.begin() + (first + count) * columns};
}

// Their tiles are then those of a sequence, so every sum has the same order.
TEST_F(OwnDocumentsOnCuda, TileAlignedAreBitwiseEqualToSeparateRuns) {
  for (const HeadLayout heads : {HeadLayout{4, 2, 64}, HeadLayout{4, 1, 128}}) {
    const AttentionShape shape{1, 640, heads, 4};
    const Begins begins{0, 256, 384};
    const Index out_columns = heads.heads * heads.head_dim;
    const auto inputs = random_inputs<Bf16>(shape, 6);
    Attention<Bf16, Cuda> packed(shape, inputs, {.cudnn = false}, begins);
    packed.run();
    const Results<Bf16> all = packed.results();
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const Index first = begins[i];
      const Index count = (i + 1 < begins.size() ? begins[i + 1] : 640) - first;
      const Inputs<Bf16> own{some_rows(inputs.qkv, heads.columns(), first, count),
                             some_rows(inputs.output_gradient, out_columns, first, count)};
      Attention<Bf16, Cuda> alone({1, count, heads}, own);
      alone.run();
      EXPECT_TRUE(some_rows(all.output, out_columns, first, count) == alone.results().output);
      EXPECT_TRUE(some_rows(all.qkv_gradient, heads.columns(), first, count) ==
                  alone.results().qkv_gradient);
    }
  }
}

TEST_F(OwnDocumentsOnCuda, WholeSequencesAreBitwiseEqualToNoDocuments) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 257, {4, 2, 128}}, AttentionShape{3, 130, {4, 1, 32}}}) {
    const auto inputs = random_inputs<Bf16>(shape, 7);
    Attention<Bf16, Cuda> plain(shape, inputs);
    plain.run();
    AttentionShape divided = shape;
    divided.most_documents = 7;
    Attention<Bf16, Cuda> whole(divided, inputs, {.cudnn = false}, {});
    whole.run();
    EXPECT_TRUE(whole.results().output == plain.results().output);
    EXPECT_TRUE(whole.results().qkv_gradient == plain.results().qkv_gradient);
  }
}

TEST_F(OwnDocumentsOnCuda, MatchFormulaInFp32) {
  const Case test{{2, 130, {4, 2, 32}, 7}, {1, 64, 129, 200}};
  const auto inputs = random_inputs<float>(test.shape, 8);
  Attention<float, Cuda> attention(test.shape, inputs, {.cudnn = false}, test.begins);
  attention.run();
  expect_close(attention.results(), formula(test.shape, inputs, test.begins), fp32_tolerance);
}

// A shape that is met once is not worth a plan of cuDNN's.
TEST_F(OwnDocumentsOnCuda, OneTimeShapeUsesOwnKernels) {
  AttentionShape shape{1, 192, {4, 2, 64}};
  shape.once = true;
  const auto inputs = random_inputs<Bf16>(shape, 9);
  Attention<Bf16, Cuda> attention(shape, inputs, DeviceLimits<Cuda>());
  EXPECT_EQ(std::string_view(attention_implementation<Bf16>(
                AttentionPass::forward, shape, attention_limits<Bf16>(shape, attention.context()))),
            "octavo");
  attention.run();
  expect_close(attention.results(), formula(shape, inputs), bf16_tolerance);
}

}  // namespace documents_cuda_test
}  // namespace octavo
