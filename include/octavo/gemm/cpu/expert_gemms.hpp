/// @file
/// The GEMMs of a mixture of experts on the `Cpu` device: one GEMM per expert.
#pragma once

#include <octavo/gemm/cpu/matmul.hpp>
#include <octavo/gemm/expert_gemms.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// Returns the implementation of the experts' GEMMs in precision `P`, for the manifest.
template <LinearPrecision P>
const char* expert_implementation(Cpu) {
  return detail::sgemm_implementation;
}

/// Returns the maximum bytes of workspace that the experts' GEMMs need.
/// @param rows  as in expert_row_count
inline std::size_t expert_gemm_workspace(Index rows, Index experts, Index out, Index in,
                                         const DeviceLimits<Cpu>& limits) {
  return std::max({matmul_workspace(rows, experts * out, in, limits),
                   matmul_workspace(rows, experts * in, out, limits),
                   matmul_workspace(out, in, rows, limits)});
}

namespace detail {

/// An operand of the experts' GEMMs in FP32, with the factor that remains to be applied.
struct ExpertOperand {
  const float* data;
  Index columns;
  float scale;
};

template <class T>
ExpertOperand widened(TensorView<const T, 2, Cpu> source, float*& workspace,
                      const Context<Cpu>& context) {
  return {widen(source, workspace, context), source.extent(1), 1.0f};
}
template <class Format, class Granularity, Layout L>
ExpertOperand widened(QuantizedView<Format, Granularity, L, Cpu> source, float*& workspace,
                      const Context<Cpu>& context) {
  return {widen(source, workspace, context), source.inner(), tensor_scale_inverse(source)};
}

/// Returns the stored length of a row.
template <class T>
Index columns_of(TensorView<const T, 2, Cpu> view) {
  return view.extent(1);
}
template <class Format, class Granularity, Layout L>
Index columns_of(QuantizedView<Format, Granularity, L, Cpu> view) {
  return view.inner();
}

template <class T>
inline constexpr const char* operand_format = "";
template <class T>
inline constexpr const char* operand_format<TensorView<const T, 2, Cpu>> = FormatTraits<T>::name;
template <class Format, class Granularity, Layout L>
inline constexpr const char* operand_format<QuantizedView<Format, Granularity, L, Cpu>> =
    FormatTraits<Format>::name;

template <class A, class B>
GemmRun expert_run() {
  return {operand_format<A>, operand_format<B>, sgemm_implementation};
}

/// Calls `body(expert, first row, number of rows)`.
template <class Body>
void for_each_expert(const ExpertRows<Cpu>& rows, const Body& body) {
  for (Index e = 0; e < rows.experts(); ++e) {
    const Index begin = rows.offsets.data()[e];
    body(e, begin, rows.offsets.data()[e + 1] - begin);
  }
}

/// Multiplies each expert's rows of `x`, [rows, k], by that expert's weight.
/// @param part  number of elements of `w` from one expert's weight to the next
/// @param read  accesses one expert's weight
template <class T>
void multiply_expert_rows(const ExpertOperand& x, const ExpertOperand& w, Index part,
                          Transpose read, const ExpertRows<Cpu>& rows, TensorView<T, 2, Cpu> y,
                          float* workspace, const Context<Cpu>& context) {
  for_each_expert(rows, [&](Index e, Index begin, Index count) {
    const Index padding = begin + count;
    while (count > 0 && rows.pairs.data()[begin + count - 1] < 0) --count;
    std::fill(y.data() + (begin + count) * y.extent(1), y.data() + padding * y.extent(1), T(0.0f));
    multiply_tiles({x.data + begin * x.columns, x.columns, Transpose::no},
                   {w.data + e * part, w.columns, read}, x.columns, x.scale * w.scale,
                   GemmOutput<T, Cpu>{y.rows(begin, count), {}}, workspace, context);
  });
  const Index used = rows.offsets.data()[rows.experts()];
  std::fill(y.data() + used * y.extent(1), y.data() + y.size(), T(0.0f));
}

/// See experts_forward.
template <class X, class W, class T>
GemmRun experts_forward_body(X x, W w, const ExpertRows<Cpu>& rows, TensorView<T, 2, Cpu> y,
                             const Context<Cpu>& context) {
  const Index weights = rows.experts() * y.extent(1);
  float* workspace = matmul_memory(rows.rows(), weights, columns_of(x), context);
  const ExpertOperand left = widened(x, workspace, context);
  const ExpertOperand right = widened(w, workspace, context);
  multiply_expert_rows(left, right, y.extent(1) * right.columns, Transpose::yes, rows, y, workspace,
                       context);
  return expert_run<X, W>();
}

/// See experts_input_gradient. The experts' parts of a transposed weight are columns.
template <class Y, class W, class T>
GemmRun experts_input_gradient_body(Y y_gradient, W w, const ExpertRows<Cpu>& rows,
                                    TensorView<T, 2, Cpu> x_gradient, const Context<Cpu>& context) {
  constexpr bool quantized = requires { w.inner(); };
  const Index in = x_gradient.extent(1);
  const Index out = columns_of(y_gradient);
  float* workspace = matmul_memory(rows.rows(), rows.experts() * in, out, context);
  const ExpertOperand left = widened(y_gradient, workspace, context);
  const ExpertOperand right = widened(w, workspace, context);
  multiply_expert_rows(left, right, quantized ? out : out * in,
                       quantized ? Transpose::yes : Transpose::no, rows, x_gradient, workspace,
                       context);
  return expert_run<Y, W>();
}

/// See experts_weight_gradient. The experts' parts of transposed copies are columns.
template <class Y, class X, class G>
GemmRun experts_weight_gradient_body(Y y_gradient, X x, const ExpertRows<Cpu>& rows,
                                     TensorView<G, 2, Cpu> w_gradient, bool accumulate,
                                     const Context<Cpu>& context) {
  constexpr bool quantized = requires { x.inner(); };
  const Index in = w_gradient.extent(1);
  const Index out = w_gradient.extent(0) / rows.experts();
  float* workspace = matmul_memory(out, in, rows.rows(), context);
  const ExpertOperand left = widened(y_gradient, workspace, context);
  const ExpertOperand right = widened(x, workspace, context);
  for_each_expert(rows, [&](Index e, Index begin, Index count) {
    const TensorView<G, 2, Cpu> gradient = w_gradient.rows(e * out, out);
    if (count == 0) {
      if (!accumulate) std::fill_n(gradient.data(), gradient.size(), G(0.0f));
      return;
    }
    GemmOutput<G, Cpu> output{gradient, {}};
    if (accumulate) output.addend = gradient;
    multiply_tiles({left.data + begin * (quantized ? 1 : out), left.columns,
                    quantized ? Transpose::no : Transpose::yes},
                   {right.data + begin * (quantized ? 1 : in), right.columns,
                    quantized ? Transpose::yes : Transpose::no},
                   count, left.scale * right.scale, output, workspace, context);
  });
  return expert_run<Y, X>();
}

}  // namespace detail
}  // namespace octavo
