// expect: Linear: only the Cpu device supports Emulated yet
// expect BF16: Emulated: its argument must be a precision that quantises
// expect NESTED: without AllowFallback or another Emulated
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_BF16)
Linear<Emulated<Bf16>, 256, 256, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_NESTED)
Linear<Emulated<Emulated<Mxfp8>>, 256, 256, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_CONTROL)
Linear<AllowFallback<Emulated<Mxfp8>>, 256, 256, Bf16, Cuda> layer;
#else
Linear<Emulated<Mxfp8>, 256, 256, Bf16, Cuda> layer;
#endif
