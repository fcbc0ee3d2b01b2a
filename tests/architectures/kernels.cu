// Kernels of a training step, which scripts/check compiles to the machine code of GPUs that no test
// runs on: attention comes with its header; each function below instantiates the kernels of one
// operation.
#include <octavo/attention/cuda/compiled_attention.cuh>
#include <octavo/cuda.cuh>

namespace octavo::architectures {

template <class P, OperandKind Kind>
void cast(const Operand<P, Kind, Cuda>& operand, const Context<Cuda>& context) {
  quantize(operand, context);
}

template <class P, OperandKind Kind>
using Of = const Operand<P, Kind, Cuda>&;
using OnCuda = const Context<Cuda>&;

template void cast(Of<Fp8Recipe<Delayed>, OperandKind::output_gradient>, OnCuda);
template void cast(Of<Fp8Recipe<Rowwise>, OperandKind::input>, OnCuda);
template void cast(Of<Mxfp8, OperandKind::input>, OnCuda);
template void cast(Of<Nvfp4, OperandKind::output_gradient>, OnCuda);
template void cast(Of<Nvfp4, OperandKind::weight>, OnCuda);

template <class P>
void norm_and_gate(TensorView<const Bf16, 2, Cuda> x, const NormWeight<Bf16, Cuda>& weight,
                   const Operand<P, OperandKind::input, Cuda>& y,
                   const Operand<P, OperandKind::output_gradient, Cuda>& gradient,
                   TensorView<float, 1, Cuda> roots, const Context<Cuda>& context) {
  rms_norm_forward(x, weight, 1e-5f, y, roots, context);
  swiglu_forward(x, y, context);
  swiglu_backward(x, x, gradient, context);
}
template void norm_and_gate(TensorView<const Bf16, 2, Cuda>, const NormWeight<Bf16, Cuda>&,
                            Of<Fp8Recipe<Delayed>, OperandKind::input>,
                            Of<Fp8Recipe<Delayed>, OperandKind::output_gradient>,
                            TensorView<float, 1, Cuda>, OnCuda);

template <class P>
void gate_of_e4m3(TensorView<const E4M3, 2, Cuda> x, const Operand<P, OperandKind::input, Cuda>& y,
                  OperandStatistics* statistics, const Context<Cuda>& context) {
  swiglu_forward(x, y, statistics, context);
}
template void gate_of_e4m3(TensorView<const E4M3, 2, Cuda>,
                           Of<Fp8Recipe<Delayed>, OperandKind::input>, OperandStatistics*, OnCuda);

template <class T>
void loss(TensorView<T, 2, Cuda> logits, TensorView<const std::int32_t, 1, Cuda> targets,
          TensorView<float, 1, Cuda> losses, const Context<Cuda>& context) {
  cross_entropy(logits, targets, losses, logits.extent(1), TensorView<const float, 1, Cuda>{},
                context);
}
template void loss(TensorView<Bf16, 2, Cuda>, TensorView<const std::int32_t, 1, Cuda>,
                   TensorView<float, 1, Cuda>, OnCuda);

}  // namespace octavo::architectures
