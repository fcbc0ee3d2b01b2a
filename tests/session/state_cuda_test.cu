// A session's state belongs to no device: from Cpu to Cuda and back not a bit of it changes, and
// every session goes on to the bit from it, on either device.
#include <octavo/cuda.cuh>
#include <octavo/session/state.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

#include <chrono>
#include <cstddef>
#include <thread>
#include <tuple>
#include <vector>

namespace octavo {
namespace state_cuda_test {

/// What ten steps say, and the state that they leave.
struct Steps {
  std::vector<double> losses;
  SavedState state;

  friend bool operator==(const Steps&, const Steps&) = default;
};

Steps ten_steps(TrainingSession& session, const SessionOptions& options) {
  Steps steps;
  for (unsigned i = 0; i < 10; ++i) {
    steps.losses.push_back(support::take_step(session, options, 100 + i).loss);
  }
  steps.state = save_state_sync(session.state().entries());
  return steps;
}

template <class Case>
class StateOnCuda : public support::OnGpuIn<std::tuple_element_t<0, Case>> {
 protected:
  template <Device D>
  using SessionOn = ModelSession<Llama<::support::small, std::tuple_element_t<0, Case>, D>,
                                 std::tuple_element_t<1, Case>>;

  /// The ten steps of a new session that took others before it was given `saved`.
  template <Device D>
  Steps go_on(const SavedState& saved, const SessionOptions& options, Context<D>& context) {
    SessionOn<D> session(options, context);
    for (unsigned i = 0; i < 2; ++i) support::take_step(session, options, 50 + i);
    load_state_sync(saved, session.state().entries());
    EXPECT_TRUE(save_state_sync(session.state().entries()) == saved) << D::name;
    return ten_steps(session, options);
  }
};

using Narrow = AdamW<MasterWeights<Bf16>, Moments<Bf16>>;
using Narrowest = AdamW<MasterWeights<Bf16>, Moments<EightBit>>;
using Cases = ::support::TestTypes<
    std::tuple<Fp32, AdamW<>>, std::tuple<Bf16, Narrow>, std::tuple<Fp8Recipe<Delayed>, AdamW<>>,
    std::tuple<Fp8Recipe<Tensorwise>, AdamW<>>, std::tuple<Fp8Recipe<Blockwise>, Narrowest>,
    std::tuple<::support::MixedPrecision, AdamW<>>>;
TYPED_TEST_SUITE(StateOnCuda, Cases);

TYPED_TEST(StateOnCuda, MovesBetweenCpuAndCudaBitwise) {
  const SessionOptions options = support::small_session(2);
  Context<Cpu> on_cpu(support::few_threads);
  Context<Cuda> on_gpu;
  on_gpu.set_deterministic(true);
  typename TestFixture::template SessionOn<Cpu> first(options, on_cpu);
  for (unsigned i = 0; i < 3; ++i) support::take_step(first, options, i);
  const SavedState saved = save_state_sync(first.state().entries());

  const Steps on_cuda = this->go_on(saved, options, on_gpu);
  EXPECT_TRUE(this->go_on(saved, options, on_gpu) == on_cuda);
  const Steps expected = ten_steps(first, options);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(on_cuda.losses[i], expected.losses[i], 2e-3 * expected.losses[i]) << "step " << i;
  }
  EXPECT_TRUE(this->go_on(saved, options, on_cpu) == expected);

  const Steps back = this->go_on(on_cuda.state, options, on_cpu);
  EXPECT_TRUE(this->go_on(on_cuda.state, options, on_cpu) == back);
  EXPECT_TRUE(this->go_on(back.state, options, on_gpu) == this->go_on(back.state, options, on_gpu));
}

// Another thread reads it to pinned memory, between steps that are launched from their record.
TYPED_TEST(StateOnCuda, ReadsSnapshotDuringSteps) {
  const SessionOptions options = support::small_session(2);
  Context<Cuda> context;
  context.set_deterministic(true);
  typename TestFixture::template SessionOn<Cuda> session(options, context);
  typename TestFixture::template SessionOn<Cuda> unread(options, context);
  unsigned step = 0;
  const auto take_steps = [&](TrainingSession& taken, unsigned count) {
    for (unsigned i = 0; i < count; ++i) support::take_step(taken, options, step + i);
  };
  for (const unsigned before : {1u, 4u}) {
    take_steps(session, before);
    take_steps(unread, before);
    step += before;
    const SavedState expected = save_state_sync(unread.state().entries());
    const std::vector<StateEntry> entries = session.state().entries();
    std::size_t size = 0;
    for (const StateEntry& entry : entries) size += entry.read_async ? entry.bytes : 0;
    const OwnedBytes memory = session.state().allocate_for_reading(size);
    session.state().begin_reading();
    std::thread reader([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // several steps
      std::size_t place = 0;
      for (const StateEntry& entry : entries) {
        if (!entry.read_async) continue;
        entry.read_async(memory.get() + place);
        place += entry.bytes;
      }
      session.state().end_reading();
    });
    take_steps(session, 3);
    reader.join();
    take_steps(unread, 3);
    step += 3;
    std::size_t place = 0;
    for (const StateEntry& entry : entries) {
      if (!entry.read_async) continue;
      const std::vector<std::byte> read(memory.get() + place, memory.get() + place + entry.bytes);
      EXPECT_TRUE(read == expected.at(entry.name).bytes) << entry.name;
      place += entry.bytes;
    }
    EXPECT_TRUE(save_state_sync(session.state().entries()) ==
                save_state_sync(unread.state().entries()));
  }
  EXPECT_EQ(session.replays().recordings, 1u);
  EXPECT_EQ(session.replays().launches + 2, unread.replays().launches);
}

}  // namespace state_cuda_test
}  // namespace octavo
