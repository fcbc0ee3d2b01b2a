// expect: Layerwise: exactly one base precision is required in addition to First, Last, For and
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Precision = Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>>;
#else
using Precision = Layerwise<Bf16, Fp8Recipe<Delayed>>;
#endif

using Model = Llama<llama_tiny, Precision, Cpu>;

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
