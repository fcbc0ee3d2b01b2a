// expect: Fp8Recipe: pure E5M2 has too little precision forwards
// expect: choose Hybrid (E4M3 forwards, E5M2 backwards) or E4M3Only
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Formats = Hybrid;
#else
using Formats = E5M2Only;
#endif

Fp8Recipe<Tensorwise, Formats> recipe;
