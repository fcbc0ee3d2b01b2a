/// @file
/// GEMMs of a few rows on the `Cpu` device: each thread widens the weight one tile at a time and
/// multiplies it.
#pragma once

#include <octavo/gemm/cpu/matmul.hpp>
#include <octavo/gemm/few_rows.hpp>
#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo OCTAVO_ABI {

/// Returns the implementation of `few_rows_forward` on the `Cpu` device.
inline const char* few_rows_implementation(Cpu) { return detail::sgemm_implementation; }

/// Returns the bytes of workspace that `few_rows_forward` needs for weights of `k` columns.
inline std::size_t few_rows_workspace(Index k, const DeviceLimits<Cpu>& limits) {
  const Index tile = detail::matmul_tile_columns * (k + 2 * max_few_rows);
  return static_cast<std::size_t>(round_up(max_few_rows * k, 64) + limits.threads * tile) *
         sizeof(float);
}

namespace detail {

/// The rows of a GEMM as FP32 numbers, normalised if requested.
template <class T>
const float* widen_rows(TensorView<const T, 2, Cpu> x, const RowNorm<T, Cpu>& norm,
                        float*& workspace, const Context<Cpu>& context) {
  if (norm.weight.empty()) return widen(x, workspace, context);
  const Index k = x.extent(1);
  float* row = std::exchange(workspace, workspace + round_up(k, 64));
  const float inverse = inverse_root_mean_square(x.data(), k, norm.epsilon);
  for (Index i = 0; i < k; ++i) {
    row[i] = static_cast<float>(
        normalised(x.data()[i], inverse, static_cast<float>(norm.weight.data()[i])));
  }
  return row;
}

/// Computes result = round(alpha · x · wᵀ + addend + bias), optionally gated or appended to a
/// cache.
/// @param widen_weight  widens row `row` of the weight to FP32: (row, target)
template <class T, class Y, class WidenWeight>
void multiply_few_rows(TensorView<const T, 2, Cpu> x, float alpha, const WidenWeight& widen_weight,
                       const GemmOutput<Y, Cpu>& y, const FewRowsOptions<T, Cpu>& options,
                       const Context<Cpu>& context) {
  const Index rows = x.extent(0);
  const Index k = x.extent(1);
  const Index n = y.result.extent(1);
  auto* memory = workspace_of<float>(context, few_rows_workspace(k, context), "few_rows_forward");
  const float* left = widen_rows(x, options.norm, memory, context);
  constexpr Index width = matmul_tile_columns;
  parallel_for(ceil_divide(n, width), width * k, context, [&](Index i) {
    const Index column0 = i * width;
    const Index columns = std::min(width, n - column0);
    float* weight = memory + thread_index() * width * (k + 2 * max_few_rows);
    float* tile = weight + width * k;
    float* ups = tile + width * max_few_rows;
    const auto multiply = [&](Index first, float* sums) {
      for (Index row = 0; row < columns; ++row) widen_weight(first + row, weight + row * k);
      sgemm({left, k, Transpose::no}, {weight, k, Transpose::yes}, rows, columns, k, alpha, false,
            sums, width);
    };
    multiply(column0, tile);
    if (options.is_gated) {
      multiply(n + column0, ups);
      const auto rounded = [](float value) { return static_cast<float>(Y(value)); };
      for (Index at = 0; at < rows * width; ++at) {
        if (at % width < columns) tile[at] = SiluGate::gated(rounded(tile[at]), rounded(ups[at]));
      }
    }
    store_tile(tile, Index{0}, rows, column0, columns, y);
  });
  if constexpr (std::is_same_v<T, Y>) {
    if (!options.cached.positions.empty()) append_to_cache(y.result, options.cached, context);
  }
}

/// See few_rows_forward.
template <class T, class Y>
void few_rows_dense_body(TensorView<const T, 2, Cpu> x, TensorView<const T, 2, Cpu> w,
                         const GemmOutput<Y, Cpu>& y, const FewRowsOptions<T, Cpu>& options,
                         const Context<Cpu>& context) {
  const auto widen_weight = [&](Index row, float* target) { widen_row(w, row, target); };
  multiply_few_rows(x, 1.0f, widen_weight, y, options, context);
}

template <class T, class W, class Granularity, class Y>
void few_rows_quantized_body(TensorView<const T, 2, Cpu> x,
                             QuantizedView<W, Granularity, Layout::row_major, Cpu> w,
                             const GemmOutput<Y, Cpu>& y, const FewRowsOptions<T, Cpu>& options,
                             const Context<Cpu>& context) {
  const auto widen_weight = [&](Index row, float* target) { widen_row(w, row, target); };
  multiply_few_rows(x, tensor_scale_inverse(w), widen_weight, y, options, context);
}

}  // namespace detail

}  // namespace octavo
