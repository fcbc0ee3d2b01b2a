// Prints how a consumer's files are compiled.

#include <octavo/core/context.hpp>
#include <octavo/core/version.hpp>
#if defined(OCTAVO_WITH_CUDA)
#include <octavo/core/cuda/context.cuh>
#endif

#include <cstdio>

int main() {
  const octavo::Context<octavo::Cpu> context(2);
  std::printf("octavo %s, %d threads", octavo::version_string, context.threads());
#if defined(OCTAVO_WITH_CUDA)
  // The CUDA runtime is linked by name, not only by nvcc.
  int runtime = 0;
  octavo::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  std::printf(", cuda %d", runtime > 0);
  std::printf(", cudnn %d", octavo::DeviceLimits<octavo::Cuda>{}.cudnn);
#endif
  std::puts("");
}
