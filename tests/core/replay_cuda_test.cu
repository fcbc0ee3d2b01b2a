// The record of a body of launches, and contexts that share a thread.
#include <octavo/cuda.cuh>

#include "kernels/cuda_support.cuh"

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace octavo {
namespace replay_cuda_test {

using support::TestDevice;

class ReplayOnCuda : public support::OnGpu {};
class ContextsOnCuda : public support::OnGpu {};

/// Counts up on the GPU: adds the number at `step` to the one at `sum`.
void add_step(TensorView<const float, 1, Cuda> step, TensorView<StepStatus, 1, Cuda> status,
              const Context<Cuda>& context) {
  add_losses(step, status, context);
}

/// A number on the GPU that a recorded body adds to a sum.
struct Sum {
  TestDevice<Cuda> device;
  TensorView<float, 1, Cuda> step = device.vector(std::vector<float>{0.0f});
  TensorView<StepStatus, 1, Cuda> status = device.vector(std::vector<StepStatus>{StepStatus{}});

  void add(float number) {
    copy_to_device_sync(step.data(), &number, sizeof(number), device.context());
    add_step(step, status, device.context());
  }
  void set_step(float number) {
    copy_to_device_sync(step.data(), &number, sizeof(number), device.context());
  }
  [[nodiscard]] double value() const { return device.read(status)[0].loss_sum; }
};

void expect_counts(const ReplayCounts& counts, std::uint64_t runs, std::uint64_t recordings,
                   std::uint64_t launches) {
  EXPECT_EQ(counts.runs, runs);
  EXPECT_EQ(counts.recordings, recordings);
  EXPECT_EQ(counts.launches, launches);
}

TEST_F(ReplayOnCuda, RunsThenRecordsThenLaunches) {
  Sum sum;
  Replay<Cuda> replay;
  int calls = 0;
  for (const float number : {1.0f, 10.0f, 100.0f, 1000.0f}) {
    sum.set_step(number);
    replay.run(sum.device.context(), [&] {
      ++calls;
      add_step(sum.step, sum.status, sum.device.context());
    });
  }
  EXPECT_EQ(sum.value(), 1111.0);
  EXPECT_EQ(calls, 2) << "as it is, and while recorded";
  expect_counts(replay.counts(), 1, 1, 3);
}

TEST_F(ReplayOnCuda, SurvivesExceptionsInFirstAndRecordedRuns) {
  Sum sum;
  sum.set_step(1.0f);
  Replay<Cuda> replay;
  const auto run = [&](bool faulty) {
    replay.run(sum.device.context(), [&] {
      add_step(sum.step, sum.status, sum.device.context());
      if (faulty) throw std::runtime_error("a fault");
    });
  };
  EXPECT_THROW(run(true), std::runtime_error);
  expect_counts(replay.counts(), 0, 0, 0);
  EXPECT_EQ(sum.value(), 1.0) << "what was launched before the fault has run";
  run(false);
  expect_counts(replay.counts(), 1, 0, 0);
  EXPECT_THROW(run(true), std::runtime_error);
  expect_counts(replay.counts(), 1, 0, 0);
  EXPECT_EQ(sum.value(), 2.0) << "a recording runs nothing";
  run(false);
  run(false);
  expect_counts(replay.counts(), 1, 1, 2);
  EXPECT_EQ(sum.value(), 4.0);
}

// Nobody may wait for a stream that is recorded: it breaks the recording itself.
TEST_F(ReplayOnCuda, SurvivesInvalidatedCapture) {
  Sum sum;
  sum.set_step(1.0f);
  Replay<Cuda> replay;
  const auto run = [&](bool faulty) {
    replay.run(sum.device.context(), [&] {
      add_step(sum.step, sum.status, sum.device.context());
      if (faulty) sum.device.context().synchronize();
    });
  };
  run(false);
  EXPECT_THROW(run(true), CudaError);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  run(false);
  run(false);
  expect_counts(replay.counts(), 1, 1, 2);
  EXPECT_EQ(sum.value(), 3.0);
}

TEST_F(ContextsOnCuda, InterleaveOnOneGpuAndThread) {
  Sum one;
  Sum other;
  for (int i = 0; i < 3; ++i) {
    one.add(1.0f);
    other.add(10.0f);
  }
  EXPECT_EQ(one.value(), 3.0);
  EXPECT_EQ(other.value(), 30.0);
}

TEST_F(ContextsOnCuda, ReportGpuNameAndCapability) {
  const Context<Cuda> context;
  cudaDeviceProp card{};
  ASSERT_EQ(cudaGetDeviceProperties(&card, 0), cudaSuccess);
  EXPECT_EQ(context.card(), card.name);
  EXPECT_EQ(context.capability(), 10 * card.major + card.minor);
}

class ContextsOnTwoGpus : public support::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
      GTEST_SKIP() << "this machine has " << count << " GPU";
    }
  }
};

// Buffers, matrix products and records, each by turns.
TEST_F(ContextsOnTwoGpus, InterleaveOnOneThread) {
  const std::vector<float> x = support::normal_values<float>(64 * 128, 1.0f, 1);
  const std::vector<float> weight = support::normal_values<float>(32 * 128, 1.0f, 2);
  struct OnOneGpu {
    Context<Cuda> context;
    Buffer<Cuda> memory;
    Replay<Cuda> replay;

    explicit OnOneGpu(int gpu) : context(gpu), memory(std::size_t{64} << 20, context) {
      context.bind_workspace({memory.data(), std::size_t{48} << 20});
    }
    [[nodiscard]] float* floats(std::size_t first) const {
      return reinterpret_cast<float*>(memory.data() + (std::size_t{48} << 20)) + first;
    }
    void multiply() {
      const TensorView<const float, 2, Cuda> left{floats(0), {64, 128}};
      const TensorView<const float, 2, Cuda> right{floats(64 * 128), {32, 128}};
      const TensorView<float, 2, Cuda> result{floats(2 * 64 * 128), {64, 32}};
      replay.run(context, [&] {
        (void)matmul_forward(left, right, GemmOutput<float, Cuda>{result, {}}, context);
      });
    }
  };
  OnOneGpu first(0);
  OnOneGpu second(1);
  for (OnOneGpu* one : {&first, &second}) {
    copy_to_device_sync(one->floats(0), x.data(), x.size() * sizeof(float), one->context);
    copy_to_device_sync(one->floats(x.size()), weight.data(), weight.size() * sizeof(float),
                        one->context);
  }
  for (int i = 0; i < 3; ++i) {
    first.multiply();
    second.multiply();
  }
  std::vector<float> results[2];
  int gpu = 0;
  for (OnOneGpu* one : {&first, &second}) {
    std::vector<float>& result = results[gpu];
    result.resize(64 * 32);
    copy_to_host_sync(result.data(), one->floats(2 * 64 * 128), result.size() * sizeof(float),
                      one->context);
    cudaPointerAttributes attributes{};
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, one->memory.data()), cudaSuccess);
    EXPECT_EQ(attributes.device, gpu++);
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    double expected = 0;
    for (std::size_t k = 0; k < 128; ++k) {
      expected +=
          static_cast<double>(x[i / 32 * 128 + k]) * static_cast<double>(weight[i % 32 * 128 + k]);
    }
    ASSERT_NEAR(results[0][i], expected, 1e-4) << i;
    ASSERT_NEAR(results[1][i], expected, 1e-4) << i;
  }
}

// The event of a mark belongs to the GPU that is current when it is created.
TEST_F(ContextsOnTwoGpus, MarkAfterWorkOnOtherGpu) {
  const Context<Cuda> first(0);
  const Lane<Cuda> lane(first);
  const Context<Cuda> second(1);
  for (const bool marks_main : {false, true}) {
    Lane<Cuda>::Mark mark;
    second.make_current();
    marks_main ? lane.mark_main(mark) : lane.mark(mark);
    second.make_current();
    lane.wait(mark);
    first.synchronize();
    EXPECT_TRUE(lane.is_reached(mark));
  }
}

// How much shared memory a kernel may have is set for each GPU. Here, work of the other GPU
// precedes each first launch.
TEST_F(ContextsOnTwoGpus, InterleaveKernelsWithMuchSharedMemory) {
  constexpr Index columns = 16384;  // 64 KiB of sums
  constexpr std::size_t workspace = std::size_t{16} << 20;
  const std::vector<float> ones(columns, 1.0f);
  struct OnOneGpu {
    Context<Cuda> context;
    Buffer<Cuda> memory;
    float* row;

    explicit OnOneGpu(int gpu, const std::vector<float>& values)
        : context(gpu),
          memory(workspace + 3 * values.size() * sizeof(float), context),
          row(reinterpret_cast<float*>(memory.data() + workspace)) {
      context.bind_workspace({memory.data(), workspace});
      fill_zero(row + columns, 2 * values.size() * sizeof(float), context);
      copy_to_device_sync(row, values.data(), values.size() * sizeof(float), context);
    }
    /// Adds the gradients for a row of ones.
    void add_gradients() const {
      const TensorView<const float, 2, Cuda> x{row, {1, columns}};
      const TensorView<const float, 1, Cuda> weight{row, {columns}};
      const TensorView<const float, 1, Cuda> inverse_rms{row, {1}};
      rms_norm_backward(x, x, weight, inverse_rms,
                        TensorView<float, 2, Cuda>{row + columns, {1, columns}},
                        TensorView<float, 1, Cuda>{row + 2 * columns, {columns}}, context);
    }
  };
  const OnOneGpu first(0, ones);
  const OnOneGpu second(1, ones);
  for (const OnOneGpu* one : {&first, &second}) one->add_gradients();
  for (const OnOneGpu* one : {&first, &second}) {
    std::vector<float> weight_gradient(columns);
    copy_to_host_sync(weight_gradient.data(), one->row + 2 * columns, columns * sizeof(float),
                      one->context);
    EXPECT_EQ(weight_gradient, ones) << "GPU " << one->context.gpu();
  }
}

}  // namespace replay_cuda_test
}  // namespace octavo
