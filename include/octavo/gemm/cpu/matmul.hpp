/// @file
/// GEMMs on the `Cpu` device: operands are widened to FP32 and multiplied tile by tile.
#pragma once

#include <octavo/gemm/cpu/sgemm.hpp>
#include <octavo/gemm/matmul.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Maximum sizes of the result's tiles.
inline constexpr Index matmul_tile_rows = 128;
inline constexpr Index matmul_tile_columns = 128;

/// Returns the number of columns of the tiles of a result of m x n elements. Small results, such as
/// weight gradients of small models, have narrower tiles, so that all threads have equal work. The
/// elements' bits do not depend on the tiles: see `sgemm`.
inline Index tile_columns(Index m, Index n, int threads) {
  constexpr Index narrowest = 32;
  Index width = matmul_tile_columns;
  const Index enough = threads > 1 ? 2 * Index{threads} : 1;
  while (width > narrowest && ceil_divide(m, matmul_tile_rows) * ceil_divide(n, width) < enough) {
    width /= 2;
  }
  return width;
}

/// Widens a row of a dense matrix to FP32.
template <class T>
void widen_row(TensorView<const T, 2, Cpu> source, Index row, float* target) {
  const Index columns = source.extent(1);
  const T* from = source.data() + row * columns;
  for (Index c = 0; c < columns; ++c) target[c] = static_cast<float>(from[c]);
}

/// Widens a row of a quantised matrix. The GEMM applies the scale of a tensor; scales of rows
/// and blocks are applied here.
template <class Format, class Granularity, Layout L>
void widen_row(QuantizedView<Format, Granularity, L, Cpu> source, Index row, float* target) {
  constexpr Index block = Granularity::block_columns;
  const Format* from = source.data() + row * source.inner();
  const Index width = block == 0 ? source.inner() : block;
  for (Index begin = 0; begin < source.inner(); begin += width) {
    const Index end = std::min(begin + width, source.inner());
    float scale = 1.0f;
    if constexpr (block != 0) {
      scale = static_cast<float>(source.scale_inverses()[scale_index<Granularity>(
          row, begin, source.outer(), source.inner())]);
    }
    for (Index c = begin; c < end; ++c) target[c] = static_cast<float>(from[c]) * scale;
  }
}

/// Widens a dense matrix to FP32; an FP32 matrix is used in place.
template <class T>
const float* widen(TensorView<const T, 2, Cpu> source, float*& workspace,
                   const Context<Cpu>& context) {
  if constexpr (std::is_same_v<T, float>) {
    (void)workspace;
    (void)context;
    return source.data();
  } else {
    float* target = std::exchange(workspace, workspace + round_up(source.size(), 64));
    const Index columns = source.extent(1);
    parallel_for(source.extent(0), columns, context,
                 [&](Index r) { widen_row(source, r, target + r * columns); });
    return target;
  }
}

/// Widens a quantised matrix: see widen_row.
template <class Format, class Granularity, Layout L>
const float* widen(QuantizedView<Format, Granularity, L, Cpu> source, float*& workspace,
                   const Context<Cpu>& context) {
  float* target =
      std::exchange(workspace, workspace + round_up(source.outer() * source.inner(), 64));
  parallel_for(source.outer(), source.inner(), context,
               [&](Index r) { widen_row(source, r, target + r * source.inner()); });
  return target;
}

/// Writes round(tile + addend + bias) to rows and columns of a GEMM's result.
/// @param tile  [rows, matmul_tile_columns], overwritten
template <class T>
void store_tile(float* tile, Index row0, Index rows, Index column0, Index columns,
                const GemmOutput<T, Cpu>& y) {
  const Index n = y.result.extent(1);
  for (Index r = 0; r < rows; ++r) {
    const Index at = (row0 + r) * n + column0;
    float* sums = tile + r * matmul_tile_columns;
    if (!y.bias.empty()) {
      const T* bias = y.bias.data() + column0;
      for (Index c = 0; c < columns; ++c) sums[c] += static_cast<float>(bias[c]);
    }
    T* result = y.result.data() + at;
    if (y.addend.empty()) {
      for (Index c = 0; c < columns; ++c) result[c] = T(sums[c]);
    } else {
      const T* addend = y.addend.data() + at;
      for (Index c = 0; c < columns; ++c) result[c] = T(sums[c] + static_cast<float>(addend[c]));
    }
  }
}

/// A tile of a GEMM's result.
struct ResultTile {
  Index row0, rows, column0, columns;
};

/// Calls `body(tile)` for each tile of a result of m x n elements.
template <class Body>
void for_each_tile(Index m, Index n, Index k, const Context<Cpu>& context, const Body& body) {
  const Index width = tile_columns(m, n, context.threads());
  const Index across = ceil_divide(n, width);
  const Index tiles = ceil_divide(m, matmul_tile_rows) * across;
  parallel_for(tiles, matmul_tile_rows * k, context, [&](Index i) {
    const Index row0 = i / across * matmul_tile_rows;
    const Index column0 = i % across * width;
    body(ResultTile{row0, std::min(matmul_tile_rows, m - row0), column0,
                    std::min(width, n - column0)});
  });
}

/// Computes result = round(alpha · op(a) · op(b) + addend + bias).
template <class T>
void multiply_tiles(const SgemmOperand& a, const SgemmOperand& b, Index k, float alpha,
                    const GemmOutput<T, Cpu>& y, float* workspace, const Context<Cpu>& context) {
  const Index m = y.result.extent(0);
  const Index n = y.result.extent(1);
  for_each_tile(m, n, k, context, [&](const ResultTile& at) {
    const auto [row0, rows, column0, columns] = at;
    float* tile = workspace + thread_index() * matmul_tile_rows * matmul_tile_columns;
    const SgemmOperand a_rows{a.data + row0 * a.down(), a.leading, a.transpose};
    const SgemmOperand b_columns{b.data + column0 * b.across(), b.leading, b.transpose};
    sgemm(a_rows, b_columns, rows, columns, k, alpha, false, tile, matmul_tile_columns);
    store_tile(tile, row0, rows, column0, columns, y);
  });
}

}  // namespace detail

/// Returns the implementation of GEMMs of precision `P` on the `Cpu` device, for the manifest.
template <LinearPrecision P>
const char* gemm_implementation(Cpu) {
  return detail::sgemm_implementation;
}

/// Returns the maximum bytes of workspace that a GEMM with these dimensions needs.
inline std::size_t matmul_workspace(Index m, Index n, Index k, const DeviceLimits<Cpu>& limits) {
  const Index tiles = limits.threads * detail::matmul_tile_rows * detail::matmul_tile_columns;
  return static_cast<std::size_t>(round_up(m * k, 64) + round_up(n * k, 64) + tiles) *
         sizeof(float);
}

/// Returns the same for `matmul_emulated`.
inline std::size_t emulated_matmul_workspace(Index m, Index n, Index k,
                                             const DeviceLimits<Cpu>& limits) {
  return matmul_workspace(m, n, k, limits);
}

namespace detail {

/// Returns the context's workspace as floats.
/// @throws ConfigError  if it is too small for the GEMM
inline float* matmul_memory(Index m, Index n, Index k, const Context<Cpu>& context) {
  return workspace_of<float>(context, matmul_workspace(m, n, k, context), "a GEMM");
}

/// Computes result = op(a) · op(b) + addend + bias for dense operands.
template <class T, class Y>
GemmRun matmul_dense_body(TensorView<const T, 2, Cpu> a, bool transpose_a,
                          TensorView<const T, 2, Cpu> b, bool transpose_b,
                          const GemmOutput<Y, Cpu>& y, const Context<Cpu>& context) {
  const Index k = a.extent(transpose_a ? 0 : 1);
  float* workspace = matmul_memory(y.result.extent(0), y.result.extent(1), k, context);
  const SgemmOperand left{widen(a, workspace, context), a.extent(1),
                          transpose_a ? Transpose::yes : Transpose::no};
  const SgemmOperand right{widen(b, workspace, context), b.extent(1),
                           transpose_b ? Transpose::yes : Transpose::no};
  multiply_tiles(left, right, k, 1.0f, y, workspace, context);
  return {FormatTraits<T>::name, FormatTraits<T>::name, sgemm_implementation};
}

/// See matmul_bf16.
inline void matmul_bf16_body(TensorView<const float, 2, Cpu> a, bool transpose_a,
                             TensorView<const float, 2, Cpu> b, bool transpose_b,
                             const GemmFactors& factors, const GemmOutput<float, Cpu>& y,
                             const Context<Cpu>& context) {
  const Index n = y.result.extent(1);
  const Index k = a.extent(transpose_a ? 0 : 1);
  const SgemmOperand left{a.data(), a.extent(1), transpose_a ? Transpose::yes : Transpose::no};
  const SgemmOperand right{b.data(), b.extent(1), transpose_b ? Transpose::yes : Transpose::no};
  for_each_tile(y.result.extent(0), n, k, context, [&](const ResultTile& at) {
    float tile[matmul_tile_rows * matmul_tile_columns];
    sgemm({left.data + at.row0 * left.down(), left.leading, left.transpose},
          {right.data + at.column0 * right.across(), right.leading, right.transpose}, at.rows,
          at.columns, k, factors.product, false, tile, matmul_tile_columns);
    for (Index r = 0; r < at.rows; ++r) {
      const Index place = (at.row0 + r) * n + at.column0;
      for (Index c = 0; c < at.columns; ++c) {
        float sum = tile[r * matmul_tile_columns + c];
        if (!y.addend.empty()) sum += factors.addend * y.addend.data()[place + c];
        y.result.data()[place + c] = static_cast<float>(Bf16(sum));
      }
    }
  });
}

/// Computes result = a · bᵀ + addend + bias for quantised operands, always accumulated in FP32.
template <class A, class B, class Ga, class Gb, Layout La, Layout Lb, class Y>
GemmRun matmul_quantized_body(GemmAccumulation, QuantizedView<A, Ga, La, Cpu> a,
                              QuantizedView<B, Gb, Lb, Cpu> b, const GemmOutput<Y, Cpu>& y,
                              const Context<Cpu>& context) {
  const Index k = a.inner();
  float* workspace = matmul_memory(a.outer(), b.outer(), k, context);
  const SgemmOperand left{widen(a, workspace, context), k, Transpose::no};
  const SgemmOperand right{widen(b, workspace, context), k, Transpose::yes};
  const float alpha = tensor_scale_inverse(a) * tensor_scale_inverse(b);
  multiply_tiles(left, right, k, alpha, y, workspace, context);
  return {FormatTraits<A>::name, FormatTraits<B>::name, sgemm_implementation};
}

/// See matmul_emulated. Every quantised GEMM multiplies values in FP32.
template <class A, class B, class Ga, class Gb, Layout La, Layout Lb, class Y>
GemmRun matmul_emulated_body(QuantizedView<A, Ga, La, Cpu> a, QuantizedView<B, Gb, Lb, Cpu> b,
                             const GemmOutput<Y, Cpu>& y, const Context<Cpu>& context) {
  return matmul_quantized_body(GemmAccumulation::full, a, b, y, context);
}

}  // namespace detail

}  // namespace octavo
