// expect FORMAT: Decoder: the format of gradients must be Fp32 or Bf16
// expect PLACE: as in Llama<config, P, D, StorageOf<P>, TensorParallel<2>>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_FORMAT)
using Model = Llama<llama_tiny, Bf16, Cpu, E4M3>;
#elif defined(OCTAVO_COMPILE_FAIL_PLACE)
using Model = Llama<llama_tiny, Bf16, Cpu, TensorParallel<2>>;
#else
using Model = Llama<llama_tiny, Bf16, Cpu, Bf16, TensorParallel<2>>;
#endif

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
