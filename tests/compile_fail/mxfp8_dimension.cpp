// expect: Mxfp8: a linear layer's input and output features must be multiples of 32
// expect: or use AllowFallback<Mxfp8>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr int features = 96;
#else
constexpr int features = 112;
#endif

Linear<Mxfp8, features, 256, Bf16, Cpu> layer;
