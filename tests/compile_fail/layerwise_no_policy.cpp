// expect: a precision must be Fp32, Bf16, Fp8Recipe<...>, Mxfp8, Nvfp4, AllowFallback<...> or
// expect: PrecisionCheck<double>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Precision = Layerwise<First<1, Bf16>, Mxfp8>;
#else
using Precision = Layerwise<First<1, double>, Mxfp8>;
#endif

using Model = Llama<llama_tiny, Precision, Cpu>;

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
