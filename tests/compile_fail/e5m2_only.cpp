// expect: Fp8Recipe: pure E5M2 has too little precision in the forward
// expect: choose Hybrid (E4M3 in the forward, E5M2 in the backward) or E4M3Only
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Formats = Hybrid;
#else
using Formats = E5M2Only;
#endif

Fp8Recipe<Tensorwise, Formats> recipe;
