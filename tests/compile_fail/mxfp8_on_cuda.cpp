// expect: no GPU that this library supports multiplies the blocks of this scaling
// expect: wrap the precision in AllowFallback
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Precision = AllowFallback<Mxfp8>;
#else
using Precision = Mxfp8;
#endif

Linear<Precision, 256, 256, Bf16, Cuda> layer;
