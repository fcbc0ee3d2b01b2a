// expect E5M2: Fp8Recipe: pure E5M2 has too little precision in the forward, and no
// expect NO_FORMATS: Fp8Recipe: the second argument must be Hybrid
// expect FAST_BLOCKS: Fp8Recipe: GemmAccumulation::fast needs one scale per tensor or row; choose
// expect FAST_WEIGHTS: Fp8Recipe: GemmAccumulation::fast needs one scale per tensor or row
// expect NO_SCALING: Fp8Recipe: the first argument must be a scaling
#include <octavo/octavo.hpp>

using namespace octavo;

// A model never makes a value of its recipe's type.
#if defined(OCTAVO_COMPILE_FAIL_E5M2)
using Precision = Fp8Recipe<Delayed, E5M2Only>;
#elif defined(OCTAVO_COMPILE_FAIL_NO_FORMATS)
using Precision = Fp8Recipe<Delayed, E4M3>;
#elif defined(OCTAVO_COMPILE_FAIL_FAST_BLOCKS)
using Precision = Fp8Recipe<Blockwise, E4M3Only, GemmAccumulation::fast>;
#elif defined(OCTAVO_COMPILE_FAIL_FAST_WEIGHTS)
using Precision = Fp8Recipe<Blockwise, E4M3Only, GemmAccumulation::full, GemmAccumulation::fast>;
#elif defined(OCTAVO_COMPILE_FAIL_NO_SCALING)
using Precision = Fp8Recipe<Bf16>;
#else
using Precision = Fp8Recipe<Delayed, E4M3Only>;
#endif

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<llama_tiny, Precision, Cpu>, AdamW<>>(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}
