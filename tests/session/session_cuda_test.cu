// Training sessions on the Cuda device, for every recipe that it runs: they follow the Cpu, give
// the same bits twice where they are asked to, and evaluate in the memory that they have.
#include <octavo/cuda.cuh>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/faulty_model.hpp"
#include "support/gradients.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo {
namespace session_cuda_test {

using ::support::step_batch;
using ::support::TokenBatch;

using support::Session;
using support::small_session;

template <class T>
class SessionOnCuda : public support::OnGpuIn<T> {
 protected:
  static StepResult step(TrainingSession& session, const SessionOptions& options, unsigned number) {
    return support::take_step(session, options, number);
  }

  /// The weights' bits after some steps of a deterministic session.
  static std::vector<std::byte> weights_after(unsigned steps, const SessionOptions& options) {
    support::GpuContext context;
    context.set_deterministic(true);
    Session<T, Cuda> session(options, context);
    for (unsigned i = 0; i < steps; ++i) EXPECT_FALSE(step(session, options, i).skipped);
    return support::weight_bits(session, context);
  }
};

using Precisions =
    ::support::TestTypes<Fp8Recipe<Rowwise>, Fp32, Bf16, Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>,
                         ::support::MixedPrecision, Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(SessionOnCuda, Precisions);

TYPED_TEST(SessionOnCuda, MatchesCpu) {
  for (const Index micro_batches : {1, 2}) {
    const SessionOptions options = small_session(micro_batches);
    Context<Cuda> on_gpu;
    Context<Cpu> on_cpu(support::few_threads);
    Session<TypeParam, Cuda> cuda(options, on_gpu);
    Session<TypeParam, Cpu> cpu(options, on_cpu);
    double worst = 0;
    for (unsigned i = 0; i < 20; ++i) {
      const StepResult expected = this->step(cpu, options, i);
      const StepResult result = this->step(cuda, options, i);
      ASSERT_FALSE(result.skipped);
      ASSERT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss) << "step " << i;
      ASSERT_NEAR(result.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm);
      worst = std::max(worst, std::abs(result.loss / expected.loss - 1));
    }
    const TokenBatch batch = step_batch(small_session(1), 1000);
    cpu.begin_evaluation();
    cuda.begin_evaluation();
    const double expected = cpu.evaluate({batch.tokens, batch.targets}).mean();
    const double evaluated = cuda.evaluate({batch.tokens, batch.targets}).mean();
    EXPECT_NEAR(evaluated, expected, 1e-3 * expected);
    std::printf("  %s, %d micro-batches: loss within %.1e of the Cpu's, evaluation within %.1e\n",
                cuda.facts().precision.c_str(), static_cast<int>(micro_batches), worst,
                std::abs(evaluated / expected - 1));
  }
}

// The loss and the norm of all gradients hide a constant factor on one, and errors in small ones.
TYPED_TEST(SessionOnCuda, GradientsMatchCpu) {
  const SessionOptions options = small_session(1);
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  const TokenBatch batch = step_batch(options, 0);
  const auto cuda =
      ::support::nontrivial_gradients<Session<TypeParam, Cuda>>(options, batch, on_gpu);
  const auto cpu = ::support::nontrivial_gradients<Session<TypeParam, Cpu>>(options, batch, on_cpu);
  const auto all = ::support::distances(cuda, cpu);
  ASSERT_EQ(all.size(), 30U);  // 3 blocks of 9 tensors, embedding, final norm, head
  for (const auto& one : ::support::beyond(all, ::support::device_gradient_bounds<TypeParam>())) {
    ADD_FAILURE() << one.name << ": error " << one.error << ", factor " << one.factor;
  }
  double error = 0;
  double factor = 0;
  for (const auto& one : all) {
    error = std::max(error, one.error);
    factor = std::max(factor, std::abs(one.factor - 1));
  }
  std::printf("  %s: gradients within %.1e of the Cpu's, constant factors within %.1e\n",
              precision_name<TypeParam>().c_str(), error, factor);
}

// Where rounding hides a factor of 1.05 on one gradient, several show it.
TYPED_TEST(SessionOnCuda, MeanGradientFactorsMatchCpu) {
  const SessionOptions options = small_session(1);
  const TokenBatch batch = step_batch(options, 0);
  Context<Cuda> on_gpu;
  on_gpu.set_deterministic(true);
  Context<Cpu> on_cpu(support::few_threads);
  ::support::MeanFactors of_cuda;
  ::support::MeanFactors of_cpu;
  for (unsigned seed = 3; seed < 3 + ::support::mean_factor_gradients; ++seed) {
    const auto exact =
        ::support::nontrivial_gradients<Session<Fp32, Cpu>>(options, batch, on_cpu, seed);
    of_cuda.add(
        ::support::nontrivial_gradients<Session<TypeParam, Cuda>>(options, batch, on_gpu, seed),
        exact);
    of_cpu.add(
        ::support::nontrivial_gradients<Session<TypeParam, Cpu>>(options, batch, on_cpu, seed),
        exact);
  }
  double worst = 0;
  for (const auto& [kind, mean] : of_cpu.means()) {
    const double ratio = of_cuda.means().at(kind) / mean;
    EXPECT_NEAR(ratio, 1.0, ::support::mean_factor_bound<TypeParam>()) << kind;
    worst = std::max(worst, std::abs(ratio - 1));
  }
  std::printf("  %s: mean factors within %.1e of the Cpu's\n", precision_name<TypeParam>().c_str(),
              worst);
}

// What a recipe's rounding costs is the same on both devices: neither's gradients are farther from
// those of FP32.
TYPED_TEST(SessionOnCuda, GradientErrorsMatchCpu) {
  const SessionOptions options = small_session(1);
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  const TokenBatch batch = step_batch(options, 0);
  const auto exact = ::support::nontrivial_gradients<Session<Fp32, Cpu>>(options, batch, on_cpu);
  const auto cuda = ::support::distances(
      ::support::nontrivial_gradients<Session<TypeParam, Cuda>>(options, batch, on_gpu), exact);
  const auto cpu = ::support::distances(
      ::support::nontrivial_gradients<Session<TypeParam, Cpu>>(options, batch, on_cpu), exact);
  double largest = 0;
  double of_cpu = 0;
  for (std::size_t i = 0; i < cuda.size(); ++i) {
    EXPECT_LE(cuda[i].error, 1.5 * cpu[i].error + 1e-5) << cuda[i].name;
    largest = std::max(largest, cuda[i].error);
    of_cpu = std::max(of_cpu, cpu[i].error);
  }
  std::printf("  %s: gradients within %.1e of those of fp32, the Cpu's within %.1e\n",
              precision_name<TypeParam>().c_str(), largest, of_cpu);
}

TYPED_TEST(SessionOnCuda, DeterministicRunsAreBitwiseEqual) {
  for (const Index micro_batches : {1, 2}) {
    const SessionOptions options = small_session(micro_batches);
    EXPECT_TRUE(this->weights_after(6, options) == this->weights_after(6, options));
  }
}

TYPED_TEST(SessionOnCuda, AllGemmsArePlannedBeforeFirstStep) {
  for (const Index micro_batches : {1, 2}) {
    SessionOptions options = small_session(micro_batches);
    options.model.head_chunk = 96;  // 256 tokens: the last chunk is a shorter one
    options.gemm_choice = GemmChoice::rehearsed;
    Context<Cuda> context;
    Session<TypeParam, Cuda> session(options, context);
    const GemmPlanSummary chosen = session.gemm_plan_summary();
    std::printf("  %s: %s\n", session.facts().precision.c_str(), chosen.text().c_str());
    EXPECT_GT(chosen.rehearsed, 0);
    for (unsigned i = 0; i < 3; ++i) this->step(session, options, i);
    const TokenBatch batch = step_batch(small_session(1), 1000);
    session.begin_evaluation();
    (void)session.evaluate({batch.tokens, batch.targets});
    EXPECT_EQ(session.gemm_plan_summary().text(), chosen.text())
        << "other products run than the manifest expects";
    EXPECT_EQ(session.gemm_plans().size(), static_cast<std::size_t>(chosen.rehearsed));
  }
}

TYPED_TEST(SessionOnCuda, ReusedGemmPlansReproduceBits) {
  SessionOptions options = small_session(2);
  options.gemm_choice = GemmChoice::rehearsed;
  std::vector<GemmPlanRecord> plans;
  const auto losses = [&] {
    Context<Cuda> context;
    context.set_cudnn(false);  // its backward adds in an order of its own
    take_gemm_plans(plans, context);
    Session<TypeParam, Cuda> session(options, context);
    plans = session.gemm_plans();
    std::vector<double> result;
    for (unsigned i = 0; i < 5; ++i) {
      const StepResult done = this->step(session, options, i);
      result.push_back(done.loss);
      result.push_back(done.gradient_norm);
    }
    return result;
  };
  const std::vector<double> first = losses();
  const std::vector<GemmPlanRecord> chosen = plans;
  EXPECT_EQ(losses(), first);
  EXPECT_EQ(plans, chosen);
}

// The first session rehearses, the second has all plans: the rehearsal is the difference.
TYPED_TEST(SessionOnCuda, RehearsalLeavesNoTrace) {
  SessionOptions options = small_session(2);
  options.gemm_choice = GemmChoice::rehearsed;
  Context<Cuda> rehearsing;
  Context<Cuda> knowing;
  for (Context<Cuda>* context : {&rehearsing, &knowing}) context->set_cudnn(false);
  Session<TypeParam, Cuda> first(options, rehearsing);
  take_gemm_plans(first.gemm_plans(), knowing);
  Session<TypeParam, Cuda> second(options, knowing);
  EXPECT_EQ(second.gemm_plan_summary().rehearsed, 0);
  for (const OperandReport& operand : first.operands()) EXPECT_EQ(operand.amax, 0) << operand.name;
  for (const GemmEntry& gemm : first.manifest().entries())
    EXPECT_EQ(gemm.executed, 0U) << gemm.layer;
  for (unsigned i = 0; i < 3; ++i) {
    const StepResult one = this->step(first, options, i);
    const StepResult other = this->step(second, options, i);
    EXPECT_EQ(one.loss, other.loss);
    EXPECT_EQ(one.gradient_norm, other.gradient_norm);
  }
}

TYPED_TEST(SessionOnCuda, RecomputationAndRemadeCopiesChangeNoBit) {
  SessionOptions options = small_session(2);
  const std::vector<std::byte> kept = this->weights_after(4, options);
  options.model.recompute = Recompute::block;
  options.model.weight_copies = WeightCopies::remade;
  EXPECT_TRUE(this->weights_after(4, options) == kept);
}

// Masked targets make the number of targets differ from step to step. The loss of the steps without
// any, the first and the sixth, is NaN on both.
TYPED_TEST(SessionOnCuda, OneRecordingServesAnyNumberOfTargets) {
  const SessionOptions options = small_session(2);
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  Session<TypeParam, Cuda> cuda(options, on_gpu);
  Session<TypeParam, Cpu> cpu(options, on_cpu);
  constexpr unsigned steps = 8;
  for (unsigned i = 0; i < steps; ++i) {
    TokenBatch batch = step_batch(options, i);
    for (std::size_t t = 0; t < batch.targets.size(); t += i + 1) batch.targets[t] = -1;
    if (i == 5) std::fill(batch.targets.begin(), batch.targets.end(), -1);
    const StepResult expected = cpu.step({batch.tokens, batch.targets}, 3e-4);
    const StepResult result = cuda.step({batch.tokens, batch.targets}, 3e-4);
    const bool has_targets = i != 0 && i != 5;
    ASSERT_EQ(std::isnan(expected.loss), !has_targets) << "step " << i;
    ASSERT_EQ(std::isnan(result.loss), !has_targets) << "step " << i;
    if (has_targets) {
      ASSERT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss) << "step " << i;
    }
    ASSERT_NEAR(result.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm);
  }
  EXPECT_EQ(cuda.replays().runs, 1u);
  EXPECT_EQ(cuda.replays().recordings, 1u);
  EXPECT_EQ(cuda.replays().launches, steps - 1);
}

// Documents begin elsewhere, and are more or fewer, from step to step.
TYPED_TEST(SessionOnCuda, OneRecordingServesAnyDivisionIntoDocuments) {
  SessionOptions options = small_session(2);
  options.batch.most_documents = 20;
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  Session<TypeParam, Cuda> cuda(options, on_gpu);
  Session<TypeParam, Cpu> cpu(options, on_cpu);
  constexpr unsigned steps = 8;
  const auto begins_of = [](unsigned step) {
    std::vector<Index> begins;
    for (Index row = 7; step > 0 && row < 512; row += 30 + 11 * static_cast<Index>(step)) {
      begins.push_back(row);
    }
    return begins;
  };
  for (unsigned i = 0; i < steps; ++i) {
    const TokenBatch text = step_batch(options, i);
    const std::vector<Index> begins = begins_of(i);
    const Batch batch{text.tokens, text.targets, begins};
    const StepResult expected = cpu.step(batch, 3e-4);
    const StepResult result = cuda.step(batch, 3e-4);
    ASSERT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss) << "step " << i;
    ASSERT_NEAR(result.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm);
  }
  EXPECT_EQ(cuda.replays().runs, 1u);
  EXPECT_EQ(cuda.replays().recordings, 1u);
  EXPECT_EQ(cuda.replays().launches, steps - 1);
  const TokenBatch text = step_batch(small_session(1), 1000);
  const std::vector<Index> begins = begins_of(3);
  const Batch batch{text.tokens, text.targets, std::span(begins).first(3)};
  cpu.begin_evaluation();
  cuda.begin_evaluation();
  const double expected = cpu.evaluate(batch).mean();
  EXPECT_NEAR(cuda.evaluate(batch).mean(), expected, 1e-3 * expected);
}

// 400 tokens, which FP8 needs in 16s, in sequences of 100, which no tile of attention has.
TYPED_TEST(SessionOnCuda, MatchesCpuForSequencesOfAnyLength) {
  SessionOptions options = small_session(1);
  options.batch = {4, 100};
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  Session<TypeParam, Cuda> cuda(options, on_gpu);
  Session<TypeParam, Cpu> cpu(options, on_cpu);
  for (unsigned i = 0; i < 6; ++i) {
    const StepResult expected = this->step(cpu, options, i);
    const StepResult result = this->step(cuda, options, i);
    ASSERT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss) << "step " << i;
    ASSERT_NEAR(result.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm);
  }
  const AttentionEntry& attention = cuda.manifest().attentions().front();
  bool by_cudnn = on_gpu.limits().cudnn && !std::is_same_v<TypeParam, Fp32>;
#if defined(OCTAVO_WITH_CUDNN)
  // Octavo does not let earlier versions run such sequences.
  by_cudnn = by_cudnn && detail::CudnnAttention::version() >= 91600;
#endif
  EXPECT_EQ(attention.expected, by_cudnn ? "cudnn" : "octavo") << attention.fallback;
}

TYPED_TEST(SessionOnCuda, StepThatThrowsChangesNoBitOfLaterSteps) {
  using Faulty = ModelSession<::support::FaultyModel<Llama<::support::small, TypeParam, Cuda>>>;
  const SessionOptions options = small_session(2);
  const auto weights = [&](int failing) {
    Context<Cuda> context;
    context.set_deterministic(true);
    Faulty session(options, context);
    for (int i = 0; i < 4; ++i) {
      if (i == failing) {
        session.model().calls_until_error = 1;
        const TokenBatch batch = step_batch(options, 99);
        EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 1e-2), ConfigError);
      }
      const TokenBatch batch = step_batch(options, static_cast<unsigned>(i));
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    }
    return support::weight_bits(session, context);
  };
  const std::vector<std::byte> undisturbed = weights(-1);
  // The first step runs as it is, the second is recorded, and a record cannot throw.
  for (const int failing : {0, 1}) EXPECT_TRUE(weights(failing) == undisturbed) << failing;
}

TYPED_TEST(SessionOnCuda, EvaluationTakesNoMemory) {
  const SessionOptions options = small_session(1);
  Context<Cuda> context;
  Session<TypeParam, Cuda> session(options, context);
  for (unsigned i = 0; i < 3; ++i) this->step(session, options, i);
  EXPECT_EQ(session.facts().card, context.card());
  EXPECT_FALSE(session.facts().card.empty());
  const std::size_t before = free_bytes(context);  // of the GPU: no other program may use it now
  const TokenBatch batch = step_batch(options, 1000);
  session.begin_evaluation();
  (void)session.evaluate({batch.tokens, batch.targets});
  EXPECT_EQ(free_bytes(context), before);
  this->step(session, options, 3);
  EXPECT_EQ(free_bytes(context), before);
}

TYPED_TEST(SessionOnCuda, SkipsNonFiniteStep) {
  const SessionOptions options = small_session(1);
  Context<Cuda> context;
  Session<TypeParam, Cuda> session(options, context);
  for (unsigned i = 0; i < 3; ++i) EXPECT_FALSE(this->step(session, options, i).skipped);
  using T = typename Llama<::support::small, TypeParam, Cuda>::T;
  T* poisoned = nullptr;
  session.model().visit([&](auto& parameter) {
    if (parameter.name == "blocks.1.down.weight") poisoned = parameter.weight.data();
  });
  ASSERT_NE(poisoned, nullptr);
  T healthy{};
  const T poison = T(std::nanf(""));
  copy_to_host_sync(&healthy, poisoned, sizeof(T), context);
  copy_to_device_sync(poisoned, &poison, sizeof(T), context);
  EXPECT_TRUE(this->step(session, options, 3).skipped);
  copy_to_device_sync(poisoned, &healthy, sizeof(T), context);
  EXPECT_FALSE(this->step(session, options, 4).skipped);
}

}  // namespace session_cuda_test
}  // namespace octavo
