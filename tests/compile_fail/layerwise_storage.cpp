// expect: Layerwise: all parts must have the same storage format; combine FP8 recipes with
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Precision = Layerwise<Head<Bf16>, Mxfp8>;
#else
using Precision = Layerwise<Head<Fp32>, Mxfp8>;
#endif

using Model = Llama<llama_tiny, Precision, Cpu>;

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
