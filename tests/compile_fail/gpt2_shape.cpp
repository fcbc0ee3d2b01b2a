// expect: Gpt2Config: hidden must be a multiple of heads
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr int hidden = 128;
#else
constexpr int hidden = 130;
#endif

constexpr Gpt2Config config{
    .layers = 1, .hidden = hidden, .heads = 4, .vocabulary = 256, .positions = 64};

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Gpt2<config, Bf16, Cpu>, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}},
                                                       context);
}
