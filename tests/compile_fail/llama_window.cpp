// expect WINDOW: LlamaConfig: window must be at least 0; 0 sets no window
// expect LAYER: LlamaConfig: first_windowed_layer must be 0 to layers
#include <octavo/octavo.hpp>

using namespace octavo;

constexpr LlamaConfig config = [] {
  LlamaConfig shape = llama_tiny;
#if defined(OCTAVO_COMPILE_FAIL_WINDOW)
  shape.window = -1;
#elif defined(OCTAVO_COMPILE_FAIL_LAYER)
  shape.window = 16;
  shape.first_windowed_layer = 5;
#else
  shape.window = 16;
  shape.first_windowed_layer = 4;
#endif
  return shape;
}();

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<config, Bf16, Cpu>, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}},
                                                        context);
}
