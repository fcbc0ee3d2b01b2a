// expect: matmul_input_gradient(dy, w, dx, context): dy and w must be two TensorView<T, 2, D>
// expect: or dy a QuantizedView with Layout::row_major and w one with Layout::transposed
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
constexpr Layout layout = Layout::transposed;
#else
constexpr Layout layout = Layout::row_major;
#endif

GemmRun multiply(QuantizedView<E5M2, PerTensor, Layout::row_major, Cpu> y_gradient,
                 QuantizedView<E4M3, PerTensor, layout, Cpu> w,
                 const GemmOutput<Bf16, Cpu>& x_gradient, const Context<Cpu>& context) {
  return matmul_input_gradient(y_gradient, w, x_gradient, context);
}
