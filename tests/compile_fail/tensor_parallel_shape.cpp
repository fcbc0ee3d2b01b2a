// expect: TensorParallel: heads and kv_heads of the LlamaConfig must be multiples of the degree
// expect FFN: TensorParallel: ffn of the LlamaConfig must be a multiple of the degree
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr LlamaConfig config = llama_tiny;
#elif defined(OCTAVO_COMPILE_FAIL_FFN)
constexpr LlamaConfig config{.layers = 1,
                             .hidden = 128,
                             .ffn = 129,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 32,
                             .vocabulary = 256};
#else
constexpr LlamaConfig config{.layers = 1,
                             .hidden = 128,
                             .ffn = 256,
                             .heads = 4,
                             .kv_heads = 1,
                             .head_dim = 32,
                             .vocabulary = 256};
#endif

using Model = Llama<config, Bf16, Cpu, Bf16, TensorParallel<2>>;

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}
