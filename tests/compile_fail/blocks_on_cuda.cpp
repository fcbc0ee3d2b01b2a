// expect: Linear: the Cuda device does not multiply the blocks of this scaling
// expect: wrap the precision in AllowFallback
#include <octavo/octavo.hpp>

#include <octavo/gemm/cuda/limits.hpp>

using namespace octavo;

struct BlocksOf64 {
  static constexpr const char* name = "blocks of 64";
  using InputGranularity = PerBlock<1, 64>;
  using WeightGranularity = PerBlock<64, 64>;
  static constexpr int shape_multiple = 64;
};

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Precision = AllowFallback<Fp8Recipe<BlocksOf64>>;
#else
using Precision = Fp8Recipe<BlocksOf64>;
#endif

Linear<Precision, 256, 256, Bf16, Cuda> layer;
