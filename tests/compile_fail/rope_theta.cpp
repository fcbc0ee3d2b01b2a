// expect: LlamaConfig: norm_epsilon and rope_theta must be positive and finite
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr float rope_theta = 10000.0f;
#else
constexpr float rope_theta = 0.0f;
#endif

constexpr LlamaConfig config{.layers = 1,
                             .hidden = 128,
                             .ffn = 256,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 32,
                             .vocabulary = 256,
                             .rope_theta = rope_theta};

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<config, Bf16, Cpu>, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}},
                                                        context);
}
