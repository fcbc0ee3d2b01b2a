// expect: Lora: layers with adapters cannot be shared by ranks; choose TensorParallel<1>
// expect GPT2: Lora: a GPT-2 does not support adapters, because its LayerNorms cannot be frozen
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Model = Llama<llama_tiny, Lora<Bf16>, Cpu>;
#elif defined(OCTAVO_COMPILE_FAIL_GPT2)
using Model = Gpt2<gpt2_tiny, Lora<Bf16>, Cpu>;
#else
using Model = Llama<llama_tiny, Lora<Bf16>, Cpu, Bf16, TensorParallel<2>>;
#endif

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
