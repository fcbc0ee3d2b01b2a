// expect MASTER: MasterWeights: choose MasterWeights<Fp32> or MasterWeights<Bf16>
// expect MOMENT: Moments: choose Moments<Fp32>, Moments<Bf16> or Moments<EightBit>
// expect MUON: MasterWeights: choose MasterWeights<Fp32> or MasterWeights<Bf16>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_MASTER)
using Chosen = AdamW<MasterWeights<E4M3>>;
#elif defined(OCTAVO_COMPILE_FAIL_MOMENT)
using Chosen = AdamW<MasterWeights<Fp32>, Moments<E4M3>>;
#elif defined(OCTAVO_COMPILE_FAIL_MUON)
using Chosen = Muon<MasterWeights<E4M3>>;
#else
using Chosen = AdamW<MasterWeights<Bf16>, Moments<EightBit>>;
#endif

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<llama_tiny, Bf16, Cpu>, Chosen>(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}
