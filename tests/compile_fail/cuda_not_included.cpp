// expect: the Cuda device is not included: include <octavo/cuda.cuh>, in a file that nvcc compiles
// other errors follow: of the types that are then incomplete
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using D = Cpu;
#else
using D = Cuda;
#endif

void train(const SessionOptions& options) {
  Context<D> context;
  ModelSession<Llama<llama_tiny, Bf16, D>> session(options, context);
}
