// expect: the Cuda device is not included; include <octavo/cuda.cuh>, in a file that nvcc compiles
// errors: 2, the other of the staging that is then incomplete, at which compilers stop
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
