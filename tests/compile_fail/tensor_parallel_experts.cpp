// expect: TensorParallel: ranks cannot share experts; choose TensorParallel<1>, and DataParallel
// errors: 2
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Parallel = TensorParallel<1>;
#else
using Parallel = TensorParallel<2>;
#endif

constexpr LlamaConfig config = [] {
  LlamaConfig result = llama_tiny;
  result.experts = {.experts = 4, .choices = 2};
  return result;
}();

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<config, Bf16, Cpu, Bf16, Parallel>, AdamW<>>(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}
