/// @file
/// Products of a few rows on the `Cpu` device: a weight is widened a tile at a time, by the thread
/// that multiplies it.
#pragma once

#include <octavo/gemm/cpu/matmul.hpp>
#include <octavo/gemm/few_rows.hpp>

namespace octavo::inline OCTAVO_ABI {

/// What runs `few_rows_forward` on the `Cpu` device.
inline const char* few_rows_implementation(Cpu) { return detail::sgemm_implementation; }

/// Bytes of workspace that `few_rows_forward` needs for weights of `k` columns.
inline std::size_t few_rows_workspace(Index k, const DeviceLimits<Cpu>& limits) {
  const Index tile = detail::matmul_tile_columns * (k + most_few_rows);
  return static_cast<std::size_t>(round_up(most_few_rows * k, 64) + limits.threads * tile) *
         sizeof(float);
}

namespace detail {

/// result = round(alpha · x · wᵀ + addend + bias).
/// @param widen_weight  widens row `row` of the weight to FP32: (row, target)
template <class T, class Y, class WidenWeight>
void multiply_few_rows(TensorView<const T, 2, Cpu> x, float alpha, const WidenWeight& widen_weight,
                       const GemmOutput<Y, Cpu>& y, const Context<Cpu>& context) {
  const Index rows = x.extent(0);
  const Index k = x.extent(1);
  const Index n = y.result.extent(1);
  auto* memory = workspace_of<float>(context, few_rows_workspace(k, context), "few_rows_forward");
  const float* left = widen(x, memory, context);
  parallel_for(ceil_divide(n, matmul_tile_columns), context, [&](Index i) {
    const Index column0 = i * matmul_tile_columns;
    const Index columns = std::min(matmul_tile_columns, n - column0);
    float* weight = memory + thread_index() * matmul_tile_columns * (k + most_few_rows);
    float* tile = weight + matmul_tile_columns * k;
    for (Index row = 0; row < columns; ++row) widen_weight(column0 + row, weight + row * k);
    sgemm({left, k, Transpose::no}, {weight, k, Transpose::yes}, rows, columns, k, alpha, false,
          tile, matmul_tile_columns);
    store_tile(tile, Index{0}, rows, column0, columns, y);
  });
}

/// See few_rows_forward.
template <class T, class Y>
void few_rows_dense_body(TensorView<const T, 2, Cpu> x, TensorView<const T, 2, Cpu> w,
                         const GemmOutput<Y, Cpu>& y, WeightReads, const Context<Cpu>& context) {
  const auto widen_weight = [&](Index row, float* target) { widen_row(w, row, target); };
  multiply_few_rows(x, 1.0f, widen_weight, y, context);
}

template <class T, class W, class Granularity, class Y>
void few_rows_quantized_body(TensorView<const T, 2, Cpu> x,
                             QuantizedView<W, Granularity, Layout::row_major, Cpu> w,
                             const GemmOutput<Y, Cpu>& y, WeightReads,
                             const Context<Cpu>& context) {
  const auto widen_weight = [&](Index row, float* target) { widen_row(w, row, target); };
  multiply_few_rows(x, tensor_scale_inverse(w), widen_weight, y, context);
}

}  // namespace detail

}  // namespace octavo
