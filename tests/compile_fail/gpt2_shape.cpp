// expect HEADS: Gpt2Config: hidden must be a multiple of heads
// expect ODD_HEAD: GroupedQueryAttention: head_dim must be even
// expect ODD_HEAD: or hidden or heads of a Gpt2Config
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_HEADS)
constexpr int hidden = 130;
#elif defined(OCTAVO_COMPILE_FAIL_ODD_HEAD)
constexpr int hidden = 132;  // 4 heads of 33
#else
constexpr int hidden = 128;
#endif

constexpr Gpt2Config config{
    .layers = 1, .hidden = hidden, .heads = 4, .vocabulary = 256, .positions = 64};

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Gpt2<config, Bf16, Cpu>, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}},
                                                       context);
}
