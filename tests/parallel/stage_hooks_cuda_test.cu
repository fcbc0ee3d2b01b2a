// Work on a lane beside the backward, inside the recorded step.
#include <octavo/cuda.cuh>

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "support/copied_gradients.hpp"
#include "support/cuda_sessions.cuh"
#include "support/faulty_model.hpp"
#include "support/on_gpu.cuh"

namespace octavo {
namespace stage_hooks_cuda_test {

using ::support::TokenBatch;

template <class T>
void append(std::vector<std::byte>& bytes, TensorView<T, 1, Cuda> view,
            const Context<Cuda>& context) {
  const std::size_t begin = bytes.size();
  bytes.resize(begin + view.bytes());
  copy_to_host_sync(bytes.data() + begin, view.data(), view.bytes(), context);
}

/// The bits of all gradients, as the model has them or as they were copied.
template <class Session>
std::vector<std::byte> gradient_bits(Session& session, bool copied, const Context<Cuda>& context) {
  std::vector<std::byte> bytes;
  for (const auto& [run, parameters] : session.model().parameters()) {
    const auto gradients = copied ? session.collectives().copy_of(*run) : run->gradients();
    for (const auto* parameter : parameters) {
      append(bytes, gradients.rows(parameter->offset, parameter->weight.size()), context);
    }
  }
  return bytes;
}

template <class Precision>
class LaneOnCuda : public support::OnGpuIn<Precision> {};
using Precisions = testing::Types<Bf16, Fp8Recipe<Delayed>>;
TYPED_TEST_SUITE(LaneOnCuda, Precisions);

TYPED_TEST(LaneOnCuda, CopiesGradientsDuringBackward) {
  using Model = Llama<::support::small, TypeParam, Cuda>;
  for (const Index micro_batches : {1, 2}) {
    const SessionOptions options = support::small_session(micro_batches);
    support::GpuContext context;
    context.set_deterministic(true);
    ModelSession<Model, AdamW<>, ::support::CopiedGradients> session(options, context);
    ModelSession<Model> alone(options, context);
    for (unsigned i = 0; i < 5; ++i) {
      support::take_step(session, options, i);
      support::take_step(alone, options, i);
      EXPECT_TRUE(gradient_bits(session, true, context) == gradient_bits(session, false, context));
    }
    EXPECT_EQ(session.replays().recordings, 1u);
    EXPECT_EQ(session.replays().launches, 4u);
    EXPECT_TRUE(support::weight_bits(session, context) == support::weight_bits(alone, context));
  }
}

TYPED_TEST(LaneOnCuda, SurvivesStepThatThrowsBeforeJoin) {
  using Model = ::support::FaultyModel<Llama<::support::small, TypeParam, Cuda>>;
  const SessionOptions options = support::small_session(1);
  const auto weights = [&](int failing) {
    support::GpuContext context;
    context.set_deterministic(true);
    ModelSession<Model, AdamW<>, ::support::CopiedGradients> session(options, context);
    for (int i = 0; i < 4; ++i) {
      if (i == failing) {
        session.model().calls_until_error = 1;
        EXPECT_THROW((void)support::take_step(session, options, 99), ConfigError);
      }
      EXPECT_FALSE(support::take_step(session, options, static_cast<unsigned>(i)).skipped);
      EXPECT_TRUE(gradient_bits(session, true, context) == gradient_bits(session, false, context));
    }
    return support::weight_bits(session, context);
  };
  const std::vector<std::byte> undisturbed = weights(-1);
  for (const int failing : {0, 1}) EXPECT_TRUE(weights(failing) == undisturbed) << failing;
}

}  // namespace stage_hooks_cuda_test
}  // namespace octavo
