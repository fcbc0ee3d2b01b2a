// expect: Fp8Recipe<Blockwise>: a linear layer's input and output features must be multiples of 128
// expect: choose Fp8Recipe<Tensorwise>, or use AllowFallback<Fp8Recipe<Blockwise>>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr int features = 384;
#else
constexpr int features = 320;
#endif

Linear<Fp8Recipe<Blockwise>, features, 256, Bf16, Cpu> layer;
