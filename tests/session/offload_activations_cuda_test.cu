// Activations in the host's pinned memory change no bit of a training on the Cuda device: neither
// where the host enqueues a step, nor where its record is launched.
#include <octavo/cuda.cuh>
#include <octavo/session/state.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/test_types.hpp"

#include <cstddef>
#include <vector>

namespace octavo {
namespace offload_activations_cuda_test {

/// Wide enough that a copy takes longer than a block's kernels.
inline constexpr LlamaConfig wide = [] {
  LlamaConfig config = ::support::small;
  config.layers = 7;
  config.hidden = 512;
  config.heads = 8;
  config.kv_heads = 4;
  return config;
}();

template <class Precision>
class OffloadedActivationsOnCuda : public support::OnGpuIn<Precision> {
 protected:
  using Session = ModelSession<Llama<wide, Precision, Cuda>>;

  static SessionOptions options(bool offloads, Recompute recompute, Index micro_batches) {
    SessionOptions options = support::small_session(micro_batches);
    options.batch = {4, 1024};
    options.model.recompute = recompute;
    options.offload.activations = offloads;
    return options;
  }

  struct Outcome {
    std::vector<double> losses;
    SavedState state;
  };

  /// Takes steps: the first is enqueued by the host, the second is recorded, all but the first are
  /// launched from the record, and the last is enqueued by the host for its timeline.
  static Outcome train(const SessionOptions& options) {
    Context<Cuda> context;
    context.set_deterministic(true);
    Session session(options, context);
    EXPECT_EQ(session.facts().allocated_host_bytes > 0, options.offload.activations);
    Outcome outcome;
    const auto step = [&](unsigned number) {
      const StepResult result = support::take_step(session, options, number);
      EXPECT_FALSE(result.skipped);
      outcome.losses.push_back(result.loss);
    };
    for (unsigned number = 0; number < 4; ++number) step(number);
    SessionOptions one = options;
    one.micro_batches = 1;
    const ::support::TokenBatch seen = ::support::step_batch(one, 50);
    outcome.losses.push_back(session.evaluate({seen.tokens, seen.targets}).sum);
    for (unsigned number = 4; number < 6; ++number) step(number);
    EXPECT_EQ(session.replays().recordings, 1U);
    EXPECT_EQ(session.replays().launches, 5U);
    session.begin_timeline_sync();
    step(6);
    std::size_t copies = 0;
    for (const TimelineSpan& span : session.end_timeline()) copies += span.kind == SpanKind::copy;
    const std::size_t offloaded = options.offload.activations ? wide.layers - 2 : 0;
    EXPECT_EQ(copies, 2 * offloaded * static_cast<std::size_t>(options.micro_batches));
    outcome.state = save_state_sync(session.state().entries());
    return outcome;
  }
};

using Precisions = ::support::TestTypes<Bf16, Fp8Recipe<Delayed>, ::support::MixedPrecision>;
TYPED_TEST_SUITE(OffloadedActivationsOnCuda, Precisions);

TYPED_TEST(OffloadedActivationsOnCuda, ChangeNoBit) {
  for (const Index micro_batches : {1, 2}) {
    const auto kept = this->train(this->options(false, Recompute::ffn, micro_batches));
    for (const Recompute recompute : {Recompute::none, Recompute::ffn}) {
      const auto offloaded = this->train(this->options(true, recompute, micro_batches));
      EXPECT_EQ(offloaded.losses, kept.losses) << micro_batches << " micro-batches";
      EXPECT_TRUE(offloaded.state == kept.state) << micro_batches << " micro-batches";
    }
  }
}

}  // namespace offload_activations_cuda_test
}  // namespace octavo
