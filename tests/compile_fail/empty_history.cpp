// expect: DelayedScaling: the amax history must have at least 1 entry
// expect: or choose Tensorwise, which keeps no history
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr int history = 1;
#else
constexpr int history = 0;
#endif

Fp8Recipe<DelayedScaling<history>> recipe;
DelayedScaling<history> scaling;
