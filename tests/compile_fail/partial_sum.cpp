// expect: PartialView: these are one rank's terms of a sum; compute the sum first
// expect NORM: no matching function for call to
#include <octavo/octavo.hpp>

using namespace octavo;

using Input = Operand<Fp8Recipe<Delayed>, OperandKind::input, Cpu>;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Terms = TensorView<Bf16, 2, Cpu>;
#else
using Terms = PartialView<Bf16, 2, Cpu>;
#endif

#if defined(OCTAVO_COMPILE_FAIL_NORM)
void norm(Terms y_gradient, TensorView<Bf16, 2, Cpu> x, TensorView<Bf16, 1, Cpu> vector,
          TensorView<float, 1, Cpu> inverse_rms, const Context<Cpu>& context) {
  rms_norm_backward(y_gradient, x, vector, inverse_rms, x, vector, context);
}
#else
void cast(Input input, Terms terms, const Context<Cpu>& context) {
  input.values = terms;
  quantize(input, context);
}
#endif
