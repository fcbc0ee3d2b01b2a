// expect: Gpt2: ranks cannot share its layers
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Parallel = TensorParallel<1>;
#else
using Parallel = TensorParallel<2>;
#endif

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Gpt2<gpt2_tiny, Bf16, Cpu, Bf16, Parallel>, AdamW<>>(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}
