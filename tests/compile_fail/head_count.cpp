// expect: GroupedQueryAttention: heads must be a multiple of kv_heads
// expect: change heads or kv_heads in the LlamaConfig
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr int kv_heads = 2;
#else
constexpr int kv_heads = 3;
#endif

constexpr LlamaConfig config{.layers = 1,
                             .hidden = 128,
                             .ffn = 256,
                             .heads = 4,
                             .kv_heads = kv_heads,
                             .head_dim = 32,
                             .vocabulary = 256};

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<config, Bf16, Cpu>, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}},
                                                        context);
}
