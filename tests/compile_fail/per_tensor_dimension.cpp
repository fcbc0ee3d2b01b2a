// expect: Fp8Recipe: a linear layer's input and output features must be multiples of 16
// expect: or wrap the recipe in AllowFallback
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr int features = 112;
#else
constexpr int features = 120;
#endif

Linear<Fp8Recipe<Delayed>, features, 256, Bf16, Cpu> layer;
