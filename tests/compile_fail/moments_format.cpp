// expect: Moments: choose Moments<Fp32>, Moments<Bf16> or Moments<EightBit>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Format = Bf16;
#else
using Format = E4M3;
#endif

Moments<Format> moments;
