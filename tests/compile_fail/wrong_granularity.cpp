// expect: matmul: the scales of the operands are incompatible; quantise both with one recipe
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using WeightScales = PerBlock<128, 128, float>;
#else
using WeightScales = PerTensor;
#endif

GemmRun multiply(QuantizedView<E4M3, PerBlock<1, 128, float>, Layout::row_major, Cpu> x,
                 QuantizedView<E4M3, WeightScales, Layout::row_major, Cpu> w,
                 const GemmOutput<Bf16, Cpu>& y, const Context<Cpu>& context) {
  return matmul_forward(x, w, y, context);
}
