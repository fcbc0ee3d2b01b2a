// expect: Linear: the Cuda device does not multiply the blocks of this scaling
// expect BF16: Emulated: its argument must be a precision that quantises
// expect NESTED: without AllowFallback or another Emulated
#include <octavo/octavo.hpp>

#include <octavo/gemm/cuda/limits.hpp>

using namespace octavo;

struct BlocksOf64 {
  static constexpr const char* name = "blocks of 64";
  using InputGranularity = PerBlock<1, 64>;
  using WeightGranularity = PerBlock<64, 64>;
  static constexpr int shape_multiple = 64;
};

#if defined(OCTAVO_COMPILE_FAIL_BF16)
Linear<Emulated<Bf16>, 256, 256, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_NESTED)
Linear<Emulated<Emulated<Mxfp8>>, 256, 256, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_CONTROL)
Linear<AllowFallback<Emulated<Fp8Recipe<BlocksOf64>>>, 256, 256, Bf16, Cuda> layer;
#else
Linear<Emulated<Fp8Recipe<BlocksOf64>>, 256, 256, Bf16, Cuda> layer;
#endif
