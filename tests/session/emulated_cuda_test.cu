// Steps of a model in an emulated precision on the Cuda device, which needs no FP8 or FP4 products,
// follow the Cpu.
#include <octavo/cuda.cuh>
#include <octavo/session/session.hpp>

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "support/on_gpu.cuh"
#include "support/small_model.hpp"

namespace octavo {
namespace emulated_session_cuda_test {

class EmulatedSessionOnCuda : public support::OnGpu {};

template <Device D>
using Session = ModelSession<Llama<llama_tiny, Emulated<Nvfp4>, D>>;

TEST_F(EmulatedSessionOnCuda, StepsMatchCpu) {
  SessionOptions options;
  options.batch = {2, 64};
  options.seed = 7;
  support::GpuContext on_gpu;
  Context<Cpu> on_cpu(4);
  Session<Cuda> cuda(options, on_gpu);
  Session<Cpu> cpu(options, on_cpu);
  for (unsigned i = 0; i < 3; ++i) {
    const auto batch = ::support::make_batch(128, llama_tiny.vocabulary, 100 + i);
    const StepResult expected = cpu.step({batch.tokens, batch.targets}, 3e-4);
    const StepResult result = cuda.step({batch.tokens, batch.targets}, 3e-4);
    std::printf("  step %u: loss %.5f, on the Cpu %.5f; norm %.5f, on the Cpu %.5f\n", i,
                double(result.loss), double(expected.loss), double(result.gradient_norm),
                double(expected.gradient_norm));
    EXPECT_FALSE(result.skipped);
    EXPECT_NEAR(result.loss, expected.loss, 3e-3 * expected.loss);
    EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 0.05 * expected.gradient_norm);
  }
  bool is_emulated = false;
  for (const GemmEntry& entry : cuda.manifest().entries()) {
    is_emulated = is_emulated || entry.expected.implementation == std::string("cublasLt in bf16");
  }
  EXPECT_TRUE(is_emulated);
}

}  // namespace emulated_session_cuda_test
}  // namespace octavo
