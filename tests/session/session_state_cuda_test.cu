// What lives on from step to step on the Cuda device: nothing that comes between two steps, no
// other session and no record of a step changes a bit of what a session trains.
#include <octavo/cuda.cuh>
#include <octavo/inference/generate.hpp>
#include <octavo/run/gemm_plan_file.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/gradients.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_types.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo {
namespace session_state_cuda_test {

using support::Session;
using support::small_session;
using ::support::step_batch;
using support::take_step;
using ::support::TokenBatch;
using support::weight_bits;

/// The weights with a NaN in the place of one element of every 1000.
template <class T>
std::vector<std::byte> poisoned(std::vector<std::byte> bytes) {
  const T nan = T(std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += 1000 * sizeof(T)) {
    std::memcpy(bytes.data() + i, &nan, sizeof(T));
  }
  return bytes;
}

template <class T>
class SessionStateOnCuda : public support::OnGpuIn<T> {
 protected:
  static constexpr unsigned steps = 4;

  /// The weights' bits after `steps` steps of a deterministic session, with `between(session,
  /// context, i)` before step i.
  template <class Between>
  static std::vector<std::byte> trained(const SessionOptions& options, const Between& between) {
    Context<Cuda> context;
    context.set_deterministic(true);
    Session<T, Cuda> session(options, context);
    for (unsigned i = 0; i < steps; ++i) {
      between(session, context, i);
      EXPECT_FALSE(take_step(session, options, i).skipped) << i;
    }
    return weight_bits(session, context);
  }
  static std::vector<std::byte> trained(const SessionOptions& options) {
    return trained(options, [](auto&, auto&, unsigned) {});
  }
};

using Precisions = ::support::TestTypes<Bf16, Fp8Recipe<Delayed>, Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(SessionStateOnCuda, Precisions);

// Before the first step, before the second, which is recorded, and before one that is replayed.
TYPED_TEST(SessionStateOnCuda, EvaluationAndGenerationBetweenStepsChangeNoBit) {
  const SessionOptions options = small_session(2);
  const TokenBatch text = step_batch(small_session(1), 1000);
  const auto evaluated = this->trained(options, [&](auto& session, auto&, unsigned) {
    session.begin_evaluation();
    EXPECT_GT(session.evaluate({text.tokens, text.targets}).mean(), 0);
    GenerateOptions few;
    few.tokens = 3;
    EXPECT_EQ(generate(session, std::span(text.tokens).first(20), 64, few).size(), 3u);
  });
  EXPECT_TRUE(evaluated == this->trained(options));
}

TYPED_TEST(SessionStateOnCuda, InterleavedSessionsAreIndependent) {
  SessionOptions options[] = {small_session(2), small_session(1)};
  options[1].batch = {2, 128};
  options[1].seed = 8;
  const std::vector<std::byte> alone[] = {this->trained(options[0]), this->trained(options[1])};
  for (const bool share : {true, false}) {
    SCOPED_TRACE(share ? "one context" : "two contexts");
    Context<Cuda> one;
    Context<Cuda> two;
    for (Context<Cuda>* context : {&one, &two}) context->set_deterministic(true);
    Context<Cuda>& other = share ? one : two;
    Session<TypeParam, Cuda> first(options[0], one);
    Session<TypeParam, Cuda> second(options[1], other);
    for (unsigned i = 0; i < this->steps; ++i) {
      take_step(first, options[0], i);
      take_step(second, options[1], i);
    }
    EXPECT_TRUE(weight_bits(first, one) == alone[0]);
    EXPECT_TRUE(weight_bits(second, other) == alone[1]);
  }
}

TYPED_TEST(SessionStateOnCuda, SkippedFirstStepLeavesNoTrace) {
  using T = typename Llama<::support::small, TypeParam, Cuda>::T;
  const SessionOptions options = small_session(2);
  const auto skipped = this->trained(options, [&](auto& session, auto& context, unsigned i) {
    if (i > 0) return;
    const std::vector<std::byte> healthy = weight_bits(session, context);
    support::set_weight_bits(session, poisoned<T>(healthy), context);
    EXPECT_TRUE(take_step(session, options, 99).skipped);
    support::set_weight_bits(session, healthy, context);
  });
  EXPECT_TRUE(skipped == this->trained(options));
}

/// The logits that follow texts of many lengths: some of them in cuDNN's multiple of 64 tokens,
/// some padded.
template <class Precision, Device D>
std::vector<std::vector<float>> logits_of_lengths() {
  const SessionOptions options = small_session(1);
  Context<D> context;
  Session<Precision, D> session(options, context);
  ::support::set_nontrivial_weights(session.model(), 3, context);
  session.begin_evaluation();
  const TokenBatch text = step_batch(options, 0);
  std::vector<std::vector<float>> logits;
  for (const std::size_t length : {1u, 15u, 16u, 17u, 49u, 63u, 64u}) {
    std::vector<float> next(static_cast<std::size_t>(::support::small.vocabulary));
    session.next_token_logits(std::span(text.tokens).first(length), next);
    logits.push_back(std::move(next));
  }
  return logits;
}

/// The norm of a - b.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

/// How far the logits of one length may be from the Cpu's, as a share of their norm. On an H100
/// FP8's were within 0.114.
template <class Precision>
constexpr double logits_bound() {
  if constexpr (std::is_same_v<Precision, Fp32>) return 1e-4;
  return QuantizedPrecision<Precision> ? 0.15 : 0.03;
}

/// Both devices round as their precision does, the one where the other does not: over all lengths
/// each is as far from FP32 as the other, and they are no farther from each other than two
/// independent errors of that size.
template <class Precision>
void expect_the_cpus_logits() {
  const auto exact = logits_of_lengths<Fp32, Cpu>();
  const auto cpu = logits_of_lengths<Precision, Cpu>();
  const auto cuda = logits_of_lengths<Precision, Cuda>();
  double norm = 0;
  double rounding = 0;
  double cudas = 0;
  double apart = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const std::vector<float> zeros(exact[i].size());
    const double error = distance(cuda[i], cpu[i]);
    EXPECT_LE(error, logits_bound<Precision>() * distance(cpu[i], zeros)) << "text " << i;
    norm = std::hypot(norm, distance(exact[i], zeros));
    rounding = std::hypot(rounding, distance(cpu[i], exact[i]));
    cudas = std::hypot(cudas, distance(cuda[i], exact[i]));
    apart = std::hypot(apart, error);
  }
  if constexpr (!std::is_same_v<Precision, Fp32>) {
    EXPECT_LE(cudas, 1.25 * rounding);
    EXPECT_LE(apart, std::numbers::sqrt2 * rounding);
  }
  std::printf("  %s: logits within %.1e of fp32's, the Cpu's within %.1e, %.1e apart\n",
              precision_name<Precision>().c_str(), cudas / norm, rounding / norm, apart / norm);
}

TYPED_TEST(SessionStateOnCuda, LogitsMatchCpu) { expect_the_cpus_logits<TypeParam>(); }

class SessionOnCudaInFp32 : public support::OnGpu {};

// Longer than a sequence, so that every length is met and the window moves.
TEST_F(SessionOnCudaInFp32, GeneratedTextMatchesCpu) {
  expect_the_cpus_logits<Fp32>();
  const SessionOptions options = small_session(1);
  GenerateOptions drawn;
  drawn.tokens = 70;
  drawn.seed = 5;
  const TokenBatch text = step_batch(options, 0);
  const auto generated = [&]<Device D>(Context<D>& context) {
    Session<Fp32, D> session(options, context);
    ::support::set_nontrivial_weights(session.model(), 3, context);
    return generate(session, std::span(text.tokens).first(3), options.batch.tokens, drawn);
  };
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  for (const double temperature : {0.0, 0.8}) {
    drawn.sampling.temperature = temperature;
    EXPECT_EQ(generated(on_gpu), generated(on_cpu)) << "temperature " << temperature;
  }
}

/// A step and what makes it special.
struct Work {
  const char* name;
  double rate = 3e-4;
  std::size_t masked_every = 0;  ///< of so many targets one is ignored; 0: none
  bool poisons = false;
};

// Without momentum, in FP32, all that a step leaves is its weights: so each step of a session that
// recorded its second one can be taken by a fresh session, whose first step is never recorded.
TEST_F(SessionOnCudaInFp32, ReplayedStepsMatchEnqueuedSteps) {
  SessionOptions options = small_session(2);
  options.optimizer = AdamWSettings{.beta1 = 0, .beta2 = 0};
  const Work works[] = {{"first"},
                        {"recorded"},
                        {"masked", 3e-4, 3},
                        {"all masked", 3e-4, 1},
                        {"skipped", 3e-4, 0, true},
                        {"another rate", 1e-2},
                        {"no rate", 0.0, 5}};
  const auto take = [&](auto& session, const Work& work, unsigned number) {
    TokenBatch batch = step_batch(options, number);
    for (std::size_t t = 0; work.masked_every > 0 && t < batch.targets.size();
         t += work.masked_every) {
      batch.targets[t] = -1;
    }
    return session.step({batch.tokens, batch.targets}, work.rate);
  };
  Context<Cuda> context;
  Context<Cuda> another;
  for (Context<Cuda>* one : {&context, &another}) one->set_deterministic(true);
  Session<Fp32, Cuda> recorded(options, context);
  unsigned number = 0;
  for (const Work& work : works) {
    SCOPED_TRACE(work.name);
    const std::vector<std::byte> healthy = weight_bits(recorded, context);
    const auto before = work.poisons ? poisoned<float>(healthy) : healthy;
    support::set_weight_bits(recorded, before, context);
    const StepResult result = take(recorded, work, number);
    Session<Fp32, Cuda> fresh(options, another);
    support::set_weight_bits(fresh, before, another);
    const StepResult expected = take(fresh, work, number);
    EXPECT_EQ(fresh.replays().recordings, 0u);
    EXPECT_EQ(result.skipped, work.poisons);
    EXPECT_EQ(expected.skipped, work.poisons);
    if (!work.poisons) {
      const bool has_targets = work.masked_every != 1;  // without any the loss is NaN
      EXPECT_EQ(std::isnan(expected.loss), !has_targets);
      EXPECT_EQ(std::isnan(result.loss), !has_targets);
      if (has_targets) {
        EXPECT_EQ(result.loss, expected.loss);
      }
      EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
    }
    const std::vector<std::byte> after = weight_bits(recorded, context);
    EXPECT_TRUE(after == weight_bits(fresh, another));
    EXPECT_EQ(after == before, work.poisons || work.rate == 0) << "a step that moves nothing";
    if (work.poisons) support::set_weight_bits(recorded, healthy, context);
    ++number;
  }
  EXPECT_EQ(recorded.replays().recordings, 1u);
  EXPECT_EQ(recorded.replays().launches, std::size(works) - 1);
}

class SessionAttentionOnCuda : public support::OnGpu {};

TEST_F(SessionAttentionOnCuda, UsesAndReportsDeterministicBackward) {
  const SessionOptions options = small_session(1);
  for (const bool deterministic : {false, true}) {
    Context<Cuda> context;
    context.set_deterministic(deterministic);
    Session<Bf16, Cuda> session(options, context);
    EXPECT_FALSE(take_step(session, options, 0).skipped);
    const LlamaConfig& model = ::support::small;
    const DeviceLimits<Cuda> limits =
        attention_limits<Bf16>({options.batch.sequences,
                                options.batch.tokens,
                                {model.heads, model.kv_heads, model.head_dim}},
                               context);
    const bool has_cudnn = !limits.cudnn_support.empty() &&
                           limits.cudnn_support[0].second.refusal.empty() &&
                           (!deterministic || limits.cudnn_support[0].second.backward <=
                                                  limits.max_deterministic_workspace);
    int backwards = 0;
    for (const AttentionEntry& entry : session.manifest().attentions()) {
      if (std::string_view(entry.pass) != "backward") continue;
      ++backwards;
      EXPECT_EQ(entry.executed, 1u);
      const char* cudnn = deterministic ? "cudnn deterministic" : "cudnn";
      EXPECT_EQ(entry.expected, has_cudnn ? cudnn : "octavo") << entry.fallback;
      EXPECT_EQ(entry.fallback.empty(), has_cudnn || !context.limits().cudnn);
      std::printf("  %s %s\n", entry.expected.c_str(), entry.fallback.c_str());
    }
    EXPECT_EQ(backwards, ::support::small.layers);
  }
}

constexpr LlamaConfig tied = [] {
  LlamaConfig config = ::support::small;
  config.name = "tied";
  config.tied_embeddings = true;
  return config;
}();

class TiedSessionOnCuda
    : public support::OnGpuIn<Fp8Recipe<Tensorwise>, ::support::TemporaryFolder> {};

TEST_F(TiedSessionOnCuda, LoadsAllGemmPlansFromFile) {
  SessionOptions options = small_session(2);
  options.model.head_chunk = 96;
  options.gemm_choice = GemmChoice::rehearsed;
  const auto file = folder_ / "plans";
  std::vector<double> losses[2];
  for (std::vector<double>& run : losses) {
    Context<Cuda> context;
    context.set_cudnn(false);  // its backward adds in an order of its own
    take_gemm_plans(load_gemm_plans(file), context);
    ModelSession<Llama<tied, Fp8Recipe<Tensorwise>, Cuda>> session(options, context);
    const GemmPlanSummary chosen = session.gemm_plan_summary();
    if (&run == &losses[0]) {
      EXPECT_GT(chosen.rehearsed, 0);
    } else {
      EXPECT_GT(chosen.recorded, 0);
      EXPECT_EQ(chosen.rehearsed, 0);
    }
    for (unsigned i = 0; i < 3; ++i) run.push_back(take_step(session, options, i).loss);
    const TokenBatch batch = step_batch(small_session(1), 1000);
    session.begin_evaluation();
    run.push_back(session.evaluate({batch.tokens, batch.targets}).mean());
    EXPECT_EQ(session.gemm_plan_summary().text(), chosen.text())
        << "other products run than the manifest expects";
    store_gemm_plans(file, session.gemm_plans());
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace session_state_cuda_test
}  // namespace octavo
