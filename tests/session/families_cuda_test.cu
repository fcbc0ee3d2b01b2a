// GPT-2, Qwen2, Qwen3 and Gemma 3 on the Cuda device, in every precision that it runs: they follow
// the Cpu, their gradients are as far from exact ones, and nothing that saves memory or time
// changes a bit.
#include <octavo/cuda.cuh>
#include <octavo/precision/named_precisions.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/gradients.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace octavo {
namespace families_cuda_test {

using ::support::TokenBatch;

constexpr Gpt2Config small_gpt2{.name = "small_gpt2",
                                .layers = 3,
                                .hidden = 128,
                                .heads = 2,
                                .vocabulary = 96,
                                .positions = 64};
constexpr LlamaConfig small_qwen3 = [] {
  LlamaConfig config = ::support::small;
  config.tied_embeddings = true;
  config.qk_norm = true;
  return config;
}();

constexpr LlamaConfig small_qwen2 = [] {
  LlamaConfig config = ::support::small;
  config.qkv_bias = true;
  config.window = 20;
  config.first_windowed_layer = 1;
  return config;
}();
constexpr Gemma3Config small_gemma3{.name = "small_gemma3",
                                    .layers = 3,
                                    .hidden = 128,
                                    .ffn = 256,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 32,
                                    .vocabulary = 96,
                                    .window = 20,
                                    .global_every = 2,
                                    .query_scalar = 32.0f};

template <class P>
struct Gpt2In {
  using Precision = P;
  template <class Q, Device D>
  using Session = ModelSession<Gpt2<small_gpt2, Q, D>>;
};
template <class P>
struct Qwen3In {
  using Precision = P;
  template <class Q, Device D>
  using Session = ModelSession<Qwen3<small_qwen3, Q, D>>;
};

template <class P>
struct Qwen2In {
  using Precision = P;
  template <class Q, Device D>
  using Session = ModelSession<Llama<small_qwen2, Q, D>>;
};
template <class P>
struct Gemma3In {
  using Precision = P;
  template <class Q, Device D>
  using Session = ModelSession<Gemma3<small_gemma3, Q, D>>;
};

template <class T>
class FamiliesOnCuda : public support::OnGpuIn<typename T::Precision> {
 protected:
  template <Device D>
  using SessionOn = typename T::template Session<typename T::Precision, D>;

  static std::vector<std::byte> weights_after(unsigned steps, const SessionOptions& options) {
    Context<Cuda> context;
    context.set_deterministic(true);
    SessionOn<Cuda> session(options, context);
    for (unsigned i = 0; i < steps; ++i) {
      EXPECT_FALSE(support::take_step(session, options, i).skipped);
    }
    return support::weight_bits(session, context);
  }
};

using All =
    ::support::TestTypes<Gpt2In<Fp32>, Gpt2In<Bf16>, Gpt2In<Fp8Recipe<Delayed>>,
                         Gpt2In<Fp8Recipe<Tensorwise>>, Gpt2In<Fp8Recipe<Rowwise>>,
                         Gpt2In<PrecisionNamed<"fp8-delayed-fp8-head">>,
                         Gpt2In<Fp8Recipe<Blockwise>>, Qwen3In<Bf16>, Qwen3In<Fp8Recipe<Delayed>>,
                         Qwen3In<Fp8Recipe<Tensorwise>>, Qwen3In<Fp8Recipe<Rowwise>>, Qwen2In<Bf16>,
                         Qwen2In<Fp8Recipe<Delayed>>, Gemma3In<Bf16>, Gemma3In<Fp8Recipe<Delayed>>,
                         Gemma3In<Fp8Recipe<Tensorwise>>>;
TYPED_TEST_SUITE(FamiliesOnCuda, All);

// One unit in the last place of every 16th weight, at the start, moves the norm of 20 steps on the
// Cpu by up to 2 % in FP8 and 0.3 % in BF16: so far apart may runs be that round differently. The
// next test holds single gradients to more. A Gemma 3, whose embeddings are multiplied by √128,
// moves its loss by up to 3.5 % in the same way, so it is compared for fewer steps.
TYPED_TEST(FamiliesOnCuda, MatchCpu) {
  using Precision = typename TypeParam::Precision;
  const bool quantised = !std::is_same_v<Precision, Fp32> && !std::is_same_v<Precision, Bf16>;
  const double near = quantised ? 0.04 : 0.01;
  const double near_loss = quantised ? 2e-3 : 1e-3;
  for (const Index micro_batches : {1, 2}) {
    const SessionOptions options = support::small_session(micro_batches);
    Context<Cuda> on_gpu;
    Context<Cpu> on_cpu(support::few_threads);
    typename TestFixture::template SessionOn<Cuda> cuda(options, on_gpu);
    typename TestFixture::template SessionOn<Cpu> cpu(options, on_cpu);
    constexpr bool is_gemma3 = std::is_same_v<TypeParam, Gemma3In<Precision>>;
    for (unsigned i = 0; i < (is_gemma3 ? 8u : 20u); ++i) {
      const StepResult expected = support::take_step(cpu, options, i);
      const StepResult result = support::take_step(cuda, options, i);
      ASSERT_FALSE(result.skipped);
      ASSERT_NEAR(result.loss, expected.loss, near_loss * expected.loss) << "step " << i;
      ASSERT_NEAR(result.gradient_norm, expected.gradient_norm, near * expected.gradient_norm)
          << "step " << i;
    }
    const TokenBatch batch = ::support::step_batch(support::small_session(1), 1000);
    cpu.begin_evaluation();
    cuda.begin_evaluation();
    const double expected = cpu.evaluate({batch.tokens, batch.targets}).mean();
    EXPECT_NEAR(cuda.evaluate({batch.tokens, batch.targets}).mean(), expected,
                near_loss * expected);
    EXPECT_EQ(cuda.replays().recordings, 1u);
  }
}

TYPED_TEST(FamiliesOnCuda, GradientErrorsMatchCpu) {
  using Exact = typename TypeParam::template Session<Fp32, Cpu>;
  const SessionOptions options = support::small_session(1);
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  const TokenBatch batch = ::support::step_batch(options, 0);
  const auto exact = ::support::nontrivial_gradients<Exact>(options, batch, on_cpu);
  const auto cuda = ::support::distances(
      ::support::nontrivial_gradients<typename TestFixture::template SessionOn<Cuda>>(
          options, batch, on_gpu),
      exact);
  const auto cpu = ::support::distances(
      ::support::nontrivial_gradients<typename TestFixture::template SessionOn<Cpu>>(options, batch,
                                                                                     on_cpu),
      exact);
  double largest = 0;
  for (std::size_t i = 0; i < cuda.size(); ++i) {
    EXPECT_LE(cuda[i].error, 1.5 * cpu[i].error + 1e-5) << cuda[i].name;
    largest = std::max(largest, cuda[i].error);
  }
  std::printf("  %s: %d gradients within %.1e of those of fp32\n",
              precision_name<typename TypeParam::Precision>().c_str(),
              static_cast<int>(cuda.size()), largest);
}

TYPED_TEST(FamiliesOnCuda, RecomputationAndRemadeCopiesChangeNoBit) {
  SessionOptions options = support::small_session(2);
  const std::vector<std::byte> kept = this->weights_after(4, options);
  EXPECT_TRUE(this->weights_after(4, options) == kept);
  for (const Recompute policy : {Recompute::norms, Recompute::ffn, Recompute::block}) {
    options.model.recompute = policy;
    EXPECT_TRUE(this->weights_after(4, options) == kept) << static_cast<int>(policy);
  }
  options.model.weight_copies = WeightCopies::remade;
  EXPECT_TRUE(this->weights_after(4, options) == kept);
}

// Products with biases among them.
TYPED_TEST(FamiliesOnCuda, AllGemmsArePlannedBeforeFirstStep) {
  SessionOptions options = support::small_session(2);
  options.model.head_chunk = 96;
  options.gemm_choice = GemmChoice::rehearsed;
  Context<Cuda> context;
  typename TestFixture::template SessionOn<Cuda> session(options, context);
  const GemmPlanSummary chosen = session.gemm_plan_summary();
  EXPECT_GT(chosen.rehearsed, 0);
  for (unsigned i = 0; i < 3; ++i) support::take_step(session, options, i);
  EXPECT_EQ(session.gemm_plan_summary().text(), chosen.text())
      << "other products run than the manifest expects";
  std::printf("  %s: %s\n", session.facts().precision.c_str(), chosen.text().c_str());
}

}  // namespace families_cuda_test
}  // namespace octavo
