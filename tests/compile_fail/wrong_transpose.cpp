// expect: matmul_forward(x, w, y, context): x and w must be two TensorView<T, 2, D>
// expect: or x and w two QuantizedView with Layout::row_major
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr Layout layout = Layout::row_major;
#else
constexpr Layout layout = Layout::transposed;
#endif

GemmRun multiply(QuantizedView<E4M3, PerTensor, Layout::row_major, Cpu> x,
                 QuantizedView<E4M3, PerTensor, layout, Cpu> w, const GemmOutput<Bf16, Cpu>& y,
                 const Context<Cpu>& context) {
  return matmul_forward(x, w, y, context);
}
