// expect: Fp8Recipe: the first argument must be a scaling: Delayed, Tensorwise, Rowwise
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Scale = Delayed;
#else
using Scale = int;
#endif

Fp8Recipe<Scale> recipe;
