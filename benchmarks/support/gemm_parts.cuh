// The matrix products of a training step of Llama-3-8B, through the library's own functions. Their
// operands are random numbers, quantised as the precision says; three sets of them take turns, at
// least 300 MB between two uses of one, so that none is found in L2.
#pragma once

#include <support/kernel_parts.cuh>

namespace benchmarks {

/// A linear layer and the rows that it works on at once.
struct LinearShape {
  const char* name;
  Index rows;
  Index out;
  Index in;
  bool adds_residual = false;  ///< the forward's result is added to the residual stream
};

inline constexpr std::array<LinearShape, 5> linear_shapes{
    {{"qkv", tokens, heads.columns(), hidden},
     {"output", tokens, hidden, hidden, true},
     {"gate_up", tokens, 2 * ffn, hidden},
     {"down", tokens, hidden, ffn, true},
     {"head", logit_rows, vocabulary, hidden}}};

inline constexpr std::array gemm_passes{GemmPass::forward, GemmPass::input_gradient,
                                        GemmPass::weight_gradient};

/// "E5M2 x E4M3" of the pass.
template <LinearPrecision P>
std::string formats_of(GemmPass pass) {
  if constexpr (QuantizedPrecision<P>) {
    const std::string forward = FormatTraits<OperandFormat<P, OperandKind::input>>::name;
    const std::string backward = FormatTraits<OperandFormat<P, OperandKind::output_gradient>>::name;
    return (pass == GemmPass::forward ? forward : backward) + " x " + forward;
  } else {
    return "bf16 x bf16";
  }
}

using Run = std::function<void(int turn)>;

/// The accumulation that a linear layer uses.
template <LinearPrecision P>
constexpr GemmAccumulation accumulation_of(GemmPass pass) {
  if (pass == GemmPass::input_gradient) return octavo::detail::input_gradient_accumulation<P>;
  if (pass == GemmPass::weight_gradient) return octavo::detail::weight_gradient_accumulation<P>;
  return GemmAccumulation::fast;
}

/// a · bᵀ of quantised operands.
template <class A, class B, class T>
void multiply(GemmAccumulation accumulation, const A& a, const B& b,
              const GemmOutput<T, Cuda>& result, const Gpu& gpu) {
  (void)octavo::detail::matmul_quantized_body(accumulation, a, b, result, gpu.context());
}

/// @tparam Y  format of the result
template <LinearPrecision P, class Y = Bf16>
Run forward_run(Gpu& gpu, const LinearShape& shape, GemmAccumulation accumulation) {
  const auto [name, rows, out, in, adds_residual] = shape;
  const Operands<P, OperandKind::input> x(gpu, rows, in);
  const Operands<P, OperandKind::weight> w(gpu, out, in);
  const auto y = gpu.make<Y>(rows * out);
  const auto residual = gpu.make<Y>(adds_residual ? rows * out : 0);
  return [=, &gpu](int turn) {
    GemmOutput<Y, Cuda> result{matrix(y[at(turn)], rows, out), {}};
    if (adds_residual) result.addend = input(residual[at(turn)], rows, out);
    if constexpr (QuantizedPrecision<P>) {
      multiply(accumulation, x[turn].row_major, w[turn].row_major, result, gpu);
    } else {
      (void)matmul_forward(constant(x[turn].values), constant(w[turn].values), result,
                           gpu.context());
    }
  };
}

template <LinearPrecision P>
Run input_gradient_run(Gpu& gpu, const LinearShape& shape, GemmAccumulation accumulation) {
  const auto [name, rows, out, in, adds_residual] = shape;
  const Operands<P, OperandKind::output_gradient> dy(gpu, rows, out);
  const Operands<P, OperandKind::weight> w(gpu, out, in);
  const auto dx = gpu.make<Bf16>(rows * in);
  return [=, &gpu](int turn) {
    const GemmOutput<Bf16, Cuda> result{matrix(dx[at(turn)], rows, in), {}};
    if constexpr (QuantizedPrecision<P>) {
      multiply(accumulation, dy[turn].row_major, w[turn].transposed, result, gpu);
    } else {
      (void)matmul_input_gradient(constant(dy[turn].values), constant(w[turn].values), result,
                                  gpu.context());
    }
  };
}

/// The weight's gradient is added to what is there, as in all micro-batches but the first.
template <LinearPrecision P>
Run weight_gradient_run(Gpu& gpu, const LinearShape& shape, GemmAccumulation accumulation) {
  const auto [name, rows, out, in, adds_residual] = shape;
  const Operands<P, OperandKind::output_gradient> dy(gpu, rows, out);
  const Operands<P, OperandKind::input> x(gpu, rows, in);
  const auto dw = gpu.make<Bf16>(out * in);
  return [=, &gpu](int turn) {
    GemmOutput<Bf16, Cuda> result{matrix(dw[at(turn)], out, in), {}};
    result.addend = result.result;
    if constexpr (QuantizedPrecision<P>) {
      multiply(accumulation, dy[turn].transposed, x[turn].transposed, result, gpu);
    } else {
      (void)matmul_weight_gradient(constant(dy[turn].values), constant(x[turn].values), result,
                                   gpu.context());
    }
  };
}

/// One of a linear layer's three products.
/// @param accumulation  of quantised operands, if their scales support it
template <LinearPrecision P>
Part gemm_part(Gpu& gpu, const LinearShape& shape, GemmPass pass, GemmAccumulation accumulation) {
  Part part{std::string(shape.name) + ' ' + name_of(pass), shape.rows, shape.out};
  part.operations =
      2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.out * shape.in);
  switch (pass) {
    case GemmPass::forward:
      part.run = forward_run<P>(gpu, shape, accumulation);
      break;
    case GemmPass::input_gradient:
      part.run = input_gradient_run<P>(gpu, shape, accumulation);
      break;
    case GemmPass::weight_gradient:
      part.run = weight_gradient_run<P>(gpu, shape, accumulation);
      break;
  }
  return part;
}

/// One of a linear layer's three products, accumulated as in the layer.
template <LinearPrecision P>
Part gemm_part(Gpu& gpu, const LinearShape& shape, GemmPass pass) {
  return gemm_part<P>(gpu, shape, pass, accumulation_of<P>(pass));
}

/// The best rate of square products of a precision, in operations a second.
template <LinearPrecision P>
double best_square_rate(Gpu& gpu) {
  double best = 0;
  for (const Index size : {4096, 8192, 16384}) {
    const Part part = gemm_part<P>(gpu, {"square", size, size, size}, GemmPass::forward);
    best = std::max(best, part.operations / gpu.seconds(part.run));
    gpu.free_arrays();
  }
  return best;
}

}  // namespace benchmarks
