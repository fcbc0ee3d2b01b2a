// expect: a precision must be Fp32, Bf16, Fp8Recipe<...>, Mxfp8, Nvfp4, AllowFallback<...> or
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Precision = Bf16;
#else
using Precision = int;
#endif

using Model = Llama<llama_tiny, Precision, Cpu>;

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
