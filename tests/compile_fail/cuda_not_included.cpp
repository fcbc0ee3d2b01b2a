// expect: the Cuda device is not included: include <octavo/cuda.cuh>, in a file that nvcc compiles
#include <octavo/octavo.hpp>

#include <cstdio>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using D = Cpu;
#else
using D = Cuda;
#endif

double train(const SessionOptions& options, std::span<const std::int32_t> tokens) {
  Context<D> context;
  ModelSession<Llama<llama_tiny, Bf16, D>> session(options, context);
  std::puts(session.manifest().text().c_str());
  generate(session, tokens, 64, {});
  return session.step(tokens, tokens, 1e-3).loss;
}
