/// @file
/// Tiles of the experts' GEMMs on the `Cuda` device: their operands, their expert, and their
/// results.
#pragma once

#include <octavo/gemm/expert_products.hpp>
#include <octavo/kernels/cuda/launch.cuh>
#include <octavo/kernels/cuda/tensor_core.cuh>

#include <cstdint>
#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

enum class ExpertPass { forward, input_gradient, weight_gradient };

/// Stands for the scales of dense operands.
struct NoExpertScales {
  using Scale = float;
  static constexpr int block_rows = 0;
  static constexpr int block_columns = 0;
};

/// An operand of a GEMM, as stored.
template <class T, class Granularity_>
struct ExpertOperandOnCuda {
  using Element = T;
  using Granularity = Granularity_;
  using Scale = typename Granularity::Scale;
  static constexpr bool is_fp8 = sizeof(T) == 1;
  /// Whether there is a scale for each 128 elements of the reduced dimension.
  static constexpr bool has_blocks = Granularity::block_columns == 128;
  static_assert(!is_fp8 || has_blocks || std::is_same_v<Granularity, PerTensor> ||
                    std::is_same_v<Granularity, PerRow>,
                "the experts' products on Cuda need scales of tensors, rows, or blocks of 128 "
                "columns; choose Tensorwise, Delayed, Rowwise or Blockwise");

  const T* data;
  const Scale* scales;
  Index outer;
  Index stride;  ///< distance between rows, in elements

  [[nodiscard]] __device__ const Bf16* pairs() const { return reinterpret_cast<const Bf16*>(data); }
  /// Returns the value of element (i, k) of the product's operand.
  template <bool by_columns>
  [[nodiscard]] __device__ float at(Index i, Index k) const {
    return static_cast<float>(by_columns ? data[k * stride + i] : data[i * stride + k]);
  }
  [[nodiscard]] __device__ float scale(Index row, Index column) const {
    return static_cast<float>(scales[scale_index<Granularity>(row, column, outer, stride)]);
  }
  /// Whether rows consist of whole vectors of 16 bytes.
  [[nodiscard]] bool is_aligned() const {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
           stride * static_cast<Index>(sizeof(T)) % 16 == 0;
  }
};

template <class T>
ExpertOperandOnCuda<T, NoExpertScales> expert_operand(TensorView<const T, 2, Cuda> view) {
  return {view.data(), nullptr, view.extent(0), view.extent(1)};
}
template <class Format, class Granularity, Layout L>
ExpertOperandOnCuda<Format, Granularity> expert_operand(
    QuantizedView<Format, Granularity, L, Cuda> view) {
  return {view.data(), view.scale_inverses(), view.outer(), view.inner()};
}

/// Returns the stored length of a row.
template <class T>
Index columns_of(TensorView<const T, 2, Cuda> view) {
  return view.extent(1);
}
template <class Format, class Granularity, Layout L>
Index columns_of(QuantizedView<Format, Granularity, L, Cuda> view) {
  return view.inner();
}

/// A product result = a · bᵀ. In the forward and the input gradient, `a` has the experts' rows, and
/// b the weight of the tile's expert; in the weight gradient, which has a result per expert, the
/// experts' rows are reduced.
template <class A, class B, class Y>
struct ExpertProduct {
  A a;
  B b;
  ExpertRows<Cuda> rows;
  Y* result;  ///< [m, n], or [experts · m, n]
  Index m, n;
  Index k;  ///< the reduced dimension; 0: the expert's rows
  bool accumulate;

  [[nodiscard]] bool is_aligned() const {
    constexpr Index run = 16 / static_cast<Index>(sizeof(typename A::Element));
    return a.is_aligned() && b.is_aligned() && m % 8 == 0 && n % 8 == 0 && k % run == 0 &&
           reinterpret_cast<std::uintptr_t>(result) % (2 * sizeof(Y)) == 0;
  }
};
template <class A, class B, class Y>
ExpertProduct(A, B, ExpertRows<Cuda>, Y*, Index, Index, Index, bool) -> ExpertProduct<A, B, Y>;

/// A block's tile. Positions in `a` and `b` are (row of the product, reduced dimension).
struct ExpertTile {
  Index expert;  ///< -1: unused rows
  Index a_first, a_left, a_k;
  Index b_first, b_left, b_k;
  Index depth;
  Index y_row, y_column;
};

/// Returns a tile by its number. Blocks that run together have tiles of a few rows and columns, and
/// so read few operands.
template <ExpertPass pass, int height_of_tile, int width_of_tile, class A, class B, class Y>
__device__ ExpertTile locate_tile(const ExpertProduct<A, B, Y>& product, Index number) {
  constexpr Index together = 8;
  const Index down = ceil_divide(product.m, height_of_tile);
  const Index across = ceil_divide(product.n, width_of_tile);
  const Index in_result = number % (down * across);
  const Index group = in_result / (together * across);
  const Index in_group = in_result % (together * across);
  const Index height = min(together, down - group * together);
  const Index row = (group * together + in_group % height) * height_of_tile;
  const Index column = in_group / height * width_of_tile;
  ExpertTile tile{};
  tile.a_first = row;
  tile.a_left = product.m - row;
  tile.b_first = column;
  tile.b_left = product.n - column;
  tile.y_row = row;
  tile.y_column = column;
  if constexpr (pass == ExpertPass::weight_gradient) {
    tile.expert = number / (down * across);
    tile.a_k = tile.b_k = product.rows.offsets.data()[tile.expert];
    tile.depth = product.rows.offsets.data()[tile.expert + 1] - tile.a_k;
    tile.y_row += tile.expert * product.m;
  } else {
    tile.expert = product.rows.tiles.data()[row / expert_tile];
    tile.depth = product.k;
    if constexpr (pass == ExpertPass::forward) tile.b_first += tile.expert * product.n;
    if constexpr (pass == ExpertPass::input_gradient) tile.b_k = tile.expert * product.k;
  }
  return tile;
}

/// Writes zeros to a tile of unused rows.
template <int height, int width, int threads, class A, class B, class Y>
__device__ void write_zeros(const ExpertProduct<A, B, Y>& product, const ExpertTile& tile,
                            int thread) {
  for (int i = thread; i < height * width; i += threads) {
    const int row = i / width;
    const int column = i % width;
    if (row >= tile.a_left || column >= tile.b_left) continue;
    product.result[(tile.y_row + row) * product.n + tile.y_column + column] = Y(0.0f);
  }
}

/// The sums of a thread in a tile of two warpgroups: rows row + 8h and columns column + 8j + b in
/// values[4j + 2h + b].
struct ExpertPlace {
  int row, column;
};
__device__ inline ExpertPlace place_of_thread(int thread) {
  const int lane = thread % 32;
  return {thread / 32 * 16 + lane / 4, lane % 4 * 2};
}

/// Sums in FP32 over the stages of an FP8 product.
template <bool is_fp8>
struct ExpertSums {};
template <>
struct ExpertSums<true> {
  float values[64] = {};

  /// Adds the sums of a stage, multiplied by the scales of its blocks.
  /// @param k  the stage's position in the tile's reduced dimension
  template <class A, class B, class Y>
  __device__ void add(const float (&sums)[64], const ExpertProduct<A, B, Y>& product,
                      const ExpertTile& tile, ExpertPlace place, Index k) {
    static_assert(A::has_blocks == B::has_blocks);
    if constexpr (!A::has_blocks) {
#pragma unroll
      for (int i = 0; i < 64; ++i) values[i] += sums[i];
    } else {
      float rows[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Index row = min(Index{place.row + 8 * h}, tile.a_left - 1);
        rows[h] = product.a.scale(tile.a_first + row, tile.a_k + k);
      }
      constexpr bool one_column = B::Granularity::block_rows == 128;
      float scale = one_column ? product.b.scale(tile.b_first, tile.b_k + k) : 0.0f;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          if constexpr (!one_column) {
            const Index column = min(Index{place.column + 8 * j + b}, tile.b_left - 1);
            scale = product.b.scale(tile.b_first + column, tile.b_k + k);
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int i = 4 * j + 2 * h + b;
            values[i] += sums[i] * (rows[h] * scale);
          }
        }
      }
    }
  }
};

/// Writes two adjacent results.
template <class Y>
__device__ void store_pair(Y* target, float first, float second, bool accumulate) {
  if (accumulate) {
    first += static_cast<float>(target[0]);
    second += static_cast<float>(target[1]);
  }
  if constexpr (std::is_same_v<Y, float>) {
    *reinterpret_cast<float2*>(target) = make_float2(first, second);
  } else {
    *reinterpret_cast<std::uint32_t*>(target) = pack_bf16(first, second);
  }
}

/// Writes a thread's sums, multiplied by the scales of tensors or rows.
template <class A, class B, class Y>
__device__ void store_sums(const float (&sums)[64], const ExpertProduct<A, B, Y>& product,
                           const ExpertTile& tile, ExpertPlace place) {
  constexpr bool scales = A::is_fp8 && !A::has_blocks;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = place.row + 8 * h;
    if (row >= tile.a_left) continue;
    float of_row = 1.0f;
    if constexpr (scales) of_row = product.a.scale(tile.a_first + row, 0);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int column = place.column + 8 * j;
      if (column >= tile.b_left) continue;
      float factors[2] = {1.0f, 1.0f};
      if constexpr (scales) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          factors[b] = of_row * product.b.scale(tile.b_first + column + b, 0);
        }
      }
      Y* target = product.result + (tile.y_row + row) * product.n + tile.y_column + column;
      store_pair(target, sums[4 * j + 2 * h] * factors[0], sums[4 * j + 2 * h + 1] * factors[1],
                 product.accumulate);
    }
  }
}

}  // namespace octavo::detail
