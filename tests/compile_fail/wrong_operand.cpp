// expect: matmul_weight_gradient(dy, x, dw, context): dy and x must be two TensorView<T, 2, D>
// expect: or two QuantizedView with Layout::transposed
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Input = QuantizedView<E4M3, PerTensor, Layout::transposed, Cpu>;
#else
using Input = TensorView<const Bf16, 2, Cpu>;  // quantised gradients with dense inputs
#endif

GemmRun multiply(QuantizedView<E5M2, PerTensor, Layout::transposed, Cpu> y_gradient, Input x,
                 const GemmOutput<float, Cpu>& w_gradient, const Context<Cpu>& context) {
  return matmul_weight_gradient(y_gradient, x, w_gradient, context);
}
