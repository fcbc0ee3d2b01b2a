// Attention on the Cuda device, through cuDNN where the program has it and through own kernels:
// against the formula in FP64 and against the Cpu device, for odd lengths and all sizes of groups.
#include "attention/attention_on_cuda.cuh"

#include <cstdio>
#include <map>
#include <ostream>
#include <string>
#include <type_traits>

namespace octavo {
namespace attention_cuda_test {

using namespace attention_on_cuda;
using support::OnGpu;

constexpr AttentionShape shapes[] = {
    {1, 1, {4, 4, 64}},    {2, 1, {2, 1, 128}},   {3, 17, {4, 2, 32}},   {2, 17, {2, 2, 128}},
    {2, 64, {8, 2, 64}},   {1, 64, {8, 1, 128}},  {2, 192, {4, 2, 64}},  {2, 320, {4, 1, 128}},
    {1, 256, {4, 4, 96}},  {2, 130, {8, 1, 128}}, {1, 130, {4, 4, 96}},  {2, 130, {4, 2, 64}},
    {2, 257, {4, 2, 128}}, {2, 257, {8, 1, 32}},  {1, 257, {4, 1, 16}},  {1, 1024, {4, 1, 128}},
    {1, 1024, {2, 2, 64}}, {1, 1024, {8, 1, 32}}, {1, 1, {2, 1, 256}},   {2, 130, {4, 2, 256}},
    {1, 257, {2, 1, 192}}, {1, 200, {4, 1, 136}}, {1, 1024, {4, 1, 256}}};

/// The formula of a shape's values among random inputs, computed once for all libraries.
/// @param seed  of the inputs
const References& formula_of(const AttentionShape& shape, const Inputs<Bf16>& inputs,
                             unsigned seed) {
  static std::map<std::string, References> known;
  const std::string key = message(text_of(shape), ", seed ", seed);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, formula(shape, inputs)).first->second;
}

/// The parameter: what attention may run through.
class AttentionOnCuda : public OnGpu, public testing::WithParamInterface<Library> {
 protected:
  /// Attention that runs through what the parameter says.
  static Attention<Bf16, Cuda> make(const AttentionShape& shape, const Inputs<Bf16>& inputs) {
    return Attention<Bf16, Cuda>(shape, inputs, limits_of(GetParam()));
  }
};

TEST_P(AttentionOnCuda, MatchesFormulaAndCpu) {
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(text_of(shape));
    std::printf("%s, %s\n", text_of(shape).c_str(), name_of(GetParam()));
    const auto inputs = random_inputs<Bf16>(shape, 1);
    const References& expected = formula_of(shape, inputs, 1);
    Attention<Bf16, Cpu> cpu(shape, inputs);
    cpu.run();
    auto cuda = make(shape, inputs);
    cuda.run();
    const Results<Bf16> results = cuda.results();
    expect_close(results, expected, bf16_tolerance);
    // Both sides round.
    expect_close(results, replaced(expected, cpu.results()),
                 {2 * bf16_tolerance.value, 2 * bf16_tolerance.magnitude, 2 * bf16_tolerance.norm});
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionOnCuda, DeterministicModeRepeatsBitwise) {
  const DeviceLimits<Cuda> limits = limits_of(GetParam(), true);
  for (const AttentionShape& shape :
       {AttentionShape{2, 960, {8, 2, 128}}, AttentionShape{1, 2048, {4, 4, 64}},
        AttentionShape{3, 704, {6, 2, 64}}, AttentionShape{3, 700, {6, 2, 64}}}) {
    SCOPED_TRACE(text_of(shape));
    const auto inputs = random_inputs<Bf16>(shape, 2);
    Attention<Bf16, Cuda> first(shape, inputs, limits);
    const DeviceLimits<Cuda> attended = attention_limits<Bf16>(shape, first.context());
    EXPECT_STREQ(attention_implementation<Bf16>(AttentionPass::backward, shape, attended),
                 must_run_in_cudnn(GetParam(), shape) ? "cudnn deterministic" : "octavo");
    first.run();
    const Results<Bf16> expected = first.results();
    for (int again = 0; again < 3; ++again) {
      first.run();
      EXPECT_TRUE(first.results() == expected);
      Attention<Bf16, Cuda> second(shape, inputs, limits);
      second.run();
      EXPECT_TRUE(second.results() == expected);
    }
  }
}

TEST_P(AttentionOnCuda, DeterministicModeMatchesFormula) {
  const AttentionShape shape{2, 320, {4, 2, 128}};
  const auto inputs = random_inputs<Bf16>(shape, 9);
  Attention<Bf16, Cuda> attention(shape, inputs, limits_of(GetParam(), true));
  attention.run();
  expect_close(attention.results(), formula_of(shape, inputs, 9), bf16_tolerance);
}

// What is kept for one shape is of no use for one that differs in a single number.
TEST_P(AttentionOnCuda, DistinguishesShapesInOneContext) {
  const AttentionShape largest{3, 320, {8, 4, 128}};
  const auto inputs = random_inputs<Bf16>(largest, 5);
  auto attention = make(largest, inputs);
  for (const AttentionShape& shape :
       {largest, AttentionShape{2, 320, {8, 4, 128}}, AttentionShape{3, 256, {8, 4, 128}},
        AttentionShape{3, 320, {4, 4, 128}}, AttentionShape{3, 320, {8, 2, 128}},
        AttentionShape{3, 320, {8, 4, 64}}, largest}) {
    SCOPED_TRACE(text_of(shape));
    attention.reshape(shape);
    attention.run();
    expect_close(attention.results(), formula_of(shape, inputs, 5), bf16_tolerance);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionOnCuda, RunsFromAGraph) {
  const AttentionShape shape{2, 256, {4, 2, 128}};
  const auto inputs = random_inputs<Bf16>(shape, 3);
  const References& expected = formula_of(shape, inputs, 3);
  auto attention = make(shape, inputs);
  attention.run();
  const Results<Bf16> direct = attention.results();
  const cudaStream_t stream = attention.context().stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  attention.run();
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 2; ++i) {
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    const Results<Bf16> replayed = attention.results();
    EXPECT_TRUE(replayed.output == direct.output);
    EXPECT_TRUE(replayed.log_sum_exp == direct.log_sum_exp);
    expect_close(replayed, expected, bf16_tolerance);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_P(AttentionOnCuda, LargeScoresDoNotOverflow) {
  const AttentionShape shape{1, 192, {2, 1, 64}};
  auto inputs = random_inputs<Bf16>(shape, 4);
  for (Bf16& value : inputs.qkv) value = Bf16(20.0f * static_cast<float>(value));
  auto attention = make(shape, inputs);
  attention.run();
  for (const Bf16 value : attention.results().qkv_gradient) {
    ASSERT_TRUE(std::isfinite(static_cast<float>(value)));
  }
  expect_close("output", attention.results().output, formula(shape, inputs).output, bf16_tolerance);
}

#if defined(OCTAVO_WITH_CUDNN)
/// What any machine plans is at least what cuDNN asks for here.
TEST_P(AttentionOnCuda, ThePlannedWorkspaceSuffices) {
  for (const bool deterministic : {false, true}) {
    for (const AttentionShape& shape :
         {AttentionShape{1, 8192, {32, 8, 128}}, AttentionShape{4, 2048, {16, 4, 128}},
          AttentionShape{2, 1088, {4, 4, 64}}, AttentionShape{3, 192, {6, 1, 96}}}) {
      Context<Cuda> context;
      set_limits(context, limits_of(GetParam(), deterministic));
      const DeviceLimits<Cuda> limits = attention_limits<Bf16>(shape, context);
      DeviceLimits<Cuda> planned = limits;
      planned.cudnn_support.clear();
      std::printf("%s: %s needs %zu bytes of workspace, %zu are planned\n", text_of(shape).c_str(),
                  attention_implementation<Bf16>(AttentionPass::backward, shape, limits),
                  attention_workspace(shape, limits), attention_workspace(shape, planned));
      EXPECT_LE(attention_workspace(shape, limits), attention_workspace(shape, planned));
    }
  }
}
#endif
INSTANTIATE_TEST_SUITE_P(Libraries, AttentionOnCuda, libraries,
                         [](const auto& test) { return std::string(name_of(test.param)); });

class AttentionOnCudaInFp32 : public OnGpu {};

TEST_F(AttentionOnCudaInFp32, MatchesFormula) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 1, {2, 1, 32}}, AttentionShape{2, 130, {4, 2, 32}},
        AttentionShape{1, 65, {4, 1, 128}}, AttentionShape{1, 70, {2, 1, 256}}}) {
    SCOPED_TRACE(text_of(shape));
    const auto inputs = random_inputs<float>(shape, 6);
    Attention<float, Cuda> attention(shape, inputs);
    attention.run();
    expect_close(attention.results(), formula(shape, inputs), fp32_tolerance);
  }
}

class AttentionOnCudaErrors : public OnGpu {};

// Also where cuDNN would run it: a session refuses such a model before it takes any memory.
TEST_F(AttentionOnCudaErrors, NamesUnsupportedHeadDimBeforeRunning) {
  const Context<Cuda> context;
  for (const Index tokens : {16, 64}) {
    try {
      (void)attention_limits<Bf16>({1, tokens, {1, 1, 264}}, context);
      FAIL() << "no exception";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("head_dim is 264"), std::string::npos);
    }
  }
}

#if !defined(OCTAVO_WITH_CUDNN)
TEST_F(AttentionOnCudaErrors, RejectsCudnnIfNotBuiltIn) {
  Context<Cuda> context;
  EXPECT_THROW(context.set_cudnn(true), ConfigError);
}
#endif

}  // namespace attention_cuda_test
}  // namespace octavo
