// Adapters are trained on the Cuda device as on the Cpu, and frozen weights that are set are cast
// anew beside a recorded step, which has no casts of them.
#include <octavo/cuda.cuh>
#include <octavo/precision/named_precisions.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

#include <string>
#include <vector>

namespace octavo {
namespace lora_cuda_test {

using ::support::TokenBatch;

SessionOptions options_of(Index micro_batches) {
  SessionOptions options = support::small_session(micro_batches);
  options.model.lora = {.rank = 4, .alpha = 8};
  return options;
}

StepResult take_step(TrainingSession& session, unsigned number) {
  const TokenBatch batch = ::support::step_batch(options_of(session.facts().micro_batches), number);
  return session.step({batch.tokens, batch.targets}, 3e-3);
}
double evaluate(TrainingSession& session) {
  const TokenBatch batch = ::support::step_batch(options_of(1), 1000);
  session.begin_evaluation();
  return session.evaluate({batch.tokens, batch.targets}).mean();
}

template <class Precision>
class LoraOnCuda : public support::OnGpuIn<Precision> {
 protected:
  template <Device D>
  using SessionOn = support::Session<Lora<Precision>, D>;
};
using Precisions = ::support::TestTypes<Fp32, Bf16, Fp8Recipe<Tensorwise>, Fp8Recipe<Blockwise>,
                                        PrecisionNamed<"fp8-delayed-fp8-head">, Fp8Recipe<Delayed>>;
TYPED_TEST_SUITE(LoraOnCuda, Precisions);

TYPED_TEST(LoraOnCuda, MatchesCpu) {
  const bool quantised = !std::is_same_v<TypeParam, Fp32> && !std::is_same_v<TypeParam, Bf16>;
  for (const Index micro_batches : {1, 2}) {
    Context<Cuda> on_gpu;
    Context<Cpu> on_cpu(support::few_threads);
    typename TestFixture::template SessionOn<Cuda> cuda(options_of(micro_batches), on_gpu);
    typename TestFixture::template SessionOn<Cpu> cpu(options_of(micro_batches), on_cpu);
    for (unsigned i = 0; i < 10; ++i) {
      const StepResult expected = take_step(cpu, i);
      const StepResult result = take_step(cuda, i);
      ASSERT_FALSE(result.skipped);
      ASSERT_NEAR(result.loss, expected.loss, 2e-3 * expected.loss) << "step " << i;
      ASSERT_NEAR(result.gradient_norm, expected.gradient_norm,
                  (quantised ? 0.1 : 0.02) * expected.gradient_norm)
          << "step " << i;
    }
    const double expected = evaluate(cpu);
    EXPECT_NEAR(evaluate(cuda), expected, 2e-3 * expected);
    EXPECT_EQ(cuda.replays().recordings, 1u);
  }
}

TYPED_TEST(LoraOnCuda, RecastsFrozenWeightsAfterSetDespiteReplay) {
  const std::string name = "blocks.1.gate_up.weight";
  std::vector<float> values(std::size_t{256} * 128);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.001f * static_cast<float>(i * 37 % 101) - 0.05f;
  }
  const auto loss = [&](unsigned steps_before) {
    Context<Cuda> context;
    context.set_deterministic(true);
    typename TestFixture::template SessionOn<Cuda> session(options_of(1), context);
    const TokenBatch batch = ::support::step_batch(options_of(1), 0);
    for (unsigned i = 0; i < steps_before; ++i) {
      (void)session.step({batch.tokens, batch.targets}, 0.0);
    }
    session.weights().set(name, values);
    return session.step({batch.tokens, batch.targets}, 0.0).loss;
  };
  EXPECT_EQ(loss(4), loss(0));
}

TYPED_TEST(LoraOnCuda, AllGemmsArePlannedBeforeFirstStep) {
  SessionOptions options = options_of(2);
  options.model.head_chunk = 96;
  options.gemm_choice = GemmChoice::rehearsed;
  Context<Cuda> context;
  typename TestFixture::template SessionOn<Cuda> session(options, context);
  const GemmPlanSummary chosen = session.gemm_plan_summary();
  EXPECT_GT(chosen.rehearsed, 0);
  for (unsigned i = 0; i < 3; ++i) take_step(session, i);
  EXPECT_EQ(session.gemm_plan_summary().text(), chosen.text())
      << "other products run than the manifest expects";
}

/// Both devices round activations differently, which can change the choice of experts. In FP8, each
/// token therefore chooses all experts.
constexpr LlamaConfig with_experts(int choices, int experts) {
  LlamaConfig config = ::support::small;
  config.experts = {.experts = experts, .choices = choices};
  config.experts.balance_coefficient = 0.1f;
  return config;
}
constexpr LlamaConfig two_of_five = with_experts(2, 5);
constexpr LlamaConfig three_of_three = with_experts(3, 3);

template <template <Device> class Model>
void expect_the_cpus_steps(double bound_of_norm) {
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  ModelSession<Model<Cuda>> cuda(options_of(1), on_gpu);
  ModelSession<Model<Cpu>> cpu(options_of(1), on_cpu);
  for (unsigned i = 0; i < 5; ++i) {
    const StepResult expected = take_step(cpu, i);
    const StepResult result = take_step(cuda, i);
    ASSERT_FALSE(result.skipped);
    ASSERT_NEAR(result.loss, expected.loss, 2e-3 * expected.loss) << "step " << i;
    ASSERT_NEAR(result.gradient_norm, expected.gradient_norm,
                bound_of_norm * expected.gradient_norm)
        << "step " << i;
  }
  EXPECT_EQ(cuda.replays().recordings, 1u);
}

template <Device D>
using InFp32 = Llama<two_of_five, Lora<Fp32>, D>;
template <Device D>
using InFp8 = Llama<three_of_three, Lora<Fp8Recipe<Tensorwise>>, D>;

class ExpertLoraOnCuda : public support::OnGpu {};
class Fp8ExpertLoraOnCuda : public support::OnGpuIn<Fp8Recipe<Tensorwise>> {};

TEST_F(ExpertLoraOnCuda, MatchesCpu) { expect_the_cpus_steps<InFp32>(0.02); }
TEST_F(Fp8ExpertLoraOnCuda, FollowsTheCpu) { expect_the_cpus_steps<InFp8>(0.1); }

}  // namespace lora_cuda_test
}  // namespace octavo
