/// @file
/// Tiles of the experts' GEMMs on the `Cuda` device: their operands, their expert, and their
/// results.
#pragma once

#include <octavo/gemm/expert_gemms.hpp>
#include <octavo/kernels/cuda/launch.cuh>
#include <octavo/kernels/cuda/run.cuh>
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
                "the experts' GEMMs on Cuda need scales of tensors, rows, or blocks of 128 "
                "columns; choose Tensorwise, Delayed, Rowwise or Blockwise");

  const T* data;
  const Scale* scales;
  Index outer;
  Index stride;  ///< distance between rows, in elements

  [[nodiscard]] __device__ const Bf16* pairs() const { return reinterpret_cast<const Bf16*>(data); }
  /// Returns the value of element (i, k) of the GEMM's operand.
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

/// A GEMM result = a · bᵀ. In the forward and the input gradient, `a` has the experts' rows, and
/// b the weight of the tile's expert; in the weight gradient, which has a result per expert, the
/// experts' rows are reduced.
template <class A, class B, class Y>
struct ExpertGemm {
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
           reinterpret_cast<std::uintptr_t>(result) % 16 == 0;
  }
};
template <class A, class B, class Y>
ExpertGemm(A, B, ExpertRows<Cuda>, Y*, Index, Index, Index, bool) -> ExpertGemm<A, B, Y>;

/// A block's tile. Positions in `a` and `b` are (row of the GEMM, reduced dimension).
struct ExpertTile {
  Index expert;  ///< -1: unused rows
  Index a_first, a_left, a_k;
  Index b_first, b_left, b_k;
  Index depth;
  Index y_row, y_column;
};

/// Returns the expert of a tile of the forward or the input gradient by the tile's first row.
template <class A, class B, class Y>
__device__ Index expert_of_row(const ExpertGemm<A, B, Y>& gemm, Index row) {
  return row < gemm.m ? gemm.rows.tiles.data()[row / expert_tile] : -1;
}

/// Sets the parts of a tile of the forward or the input gradient that depend on its expert.
template <ExpertPass pass, class A, class B, class Y>
__device__ void choose_expert(const ExpertGemm<A, B, Y>& gemm, ExpertTile& tile, Index expert) {
  tile.expert = expert;
  if constexpr (pass == ExpertPass::forward) tile.b_first = tile.y_column + expert * gemm.n;
  if constexpr (pass == ExpertPass::input_gradient) tile.b_k = expert * gemm.k;
}

/// Returns a tile by its number. Blocks that run together have tiles of a few rows and columns, and
/// so read few operands.
template <ExpertPass pass, int height_of_tile, int width_of_tile, class A, class B, class Y>
__device__ ExpertTile locate_tile(const ExpertGemm<A, B, Y>& gemm, Index number) {
  constexpr Index together = 1024 / height_of_tile;
  const Index down = ceil_divide(gemm.m, height_of_tile);
  const Index across = ceil_divide(gemm.n, width_of_tile);
  const Index in_result = number % (down * across);
  const Index group = in_result / (together * across);
  const Index in_group = in_result % (together * across);
  const Index height = min(together, down - group * together);
  const Index row = (group * together + in_group % height) * height_of_tile;
  const Index column = in_group / height * width_of_tile;
  ExpertTile tile{};
  tile.a_first = row;
  tile.a_left = gemm.m - row;
  tile.b_first = column;
  tile.b_left = gemm.n - column;
  tile.y_row = row;
  tile.y_column = column;
  if constexpr (pass == ExpertPass::weight_gradient) {
    tile.expert = number / (down * across);
    tile.a_k = tile.b_k = gemm.rows.offsets.data()[tile.expert];
    tile.depth = gemm.rows.offsets.data()[tile.expert + 1] - tile.a_k;
    tile.y_row += tile.expert * gemm.m;
  } else {
    tile.depth = gemm.k;
    choose_expert<pass>(gemm, tile, expert_of_row(gemm, row));
  }
  return tile;
}

/// One tile of a pair of tiles of 128 rows; each of the two blocks of a cluster multiplies one.
struct PairedExpertTile {
  ExpertTile tile;
  bool is_used;    ///< the tile's rows have an expert; otherwise, its results are zeros
  bool is_shared;  ///< both tiles multiply the same part of `b`
};

/// Returns one tile of the pair with this number. If only one tile of a pair has an expert, the
/// other gets the same one, so that both blocks copy and multiply the same number of stages.
/// @param block  0 for the first 128 rows, 1 for the others
template <ExpertPass pass, int width_of_tile, class A, class B, class Y>
__device__ PairedExpertTile locate_paired_tile(const ExpertGemm<A, B, Y>& gemm, Index number,
                                               int block) {
  PairedExpertTile result{locate_tile<pass, 256, width_of_tile>(gemm, number), true, true};
  ExpertTile& tile = result.tile;
  const Index row = tile.a_first;
  tile.a_first += 128 * block;
  tile.a_left -= 128 * block;
  tile.y_row += 128 * block;
  if constexpr (pass != ExpertPass::weight_gradient) {
    const Index own = expert_of_row(gemm, row + 128 * block);
    const Index other = expert_of_row(gemm, row + 128 * (1 - block));
    result.is_used = own >= 0;
    result.is_shared = own == other || own < 0 || other < 0;
    choose_expert<pass>(gemm, tile, own >= 0 ? own : other);
  }
  return result;
}

/// Writes zeros to a tile of unused rows.
template <int height, int width, int threads, class A, class B, class Y>
__device__ void write_zeros(const ExpertGemm<A, B, Y>& gemm, const ExpertTile& tile, int thread) {
  for (int i = thread; i < height * width; i += threads) {
    const int row = i / width;
    const int column = i % width;
    if (row >= tile.a_left || column >= tile.b_left) continue;
    gemm.result[(tile.y_row + row) * gemm.n + tile.y_column + column] = Y(0.0f);
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

/// Sums in FP32 over the stages of an FP8 GEMM.
template <bool is_fp8>
struct ExpertSums {};
template <>
struct ExpertSums<true> {
  float values[64] = {};

  /// Adds the sums of a stage, multiplied by the scales of its blocks.
  /// @param k  the stage's position in the tile's reduced dimension
  template <class A, class B, class Y>
  __device__ void add(const float (&sums)[64], const ExpertGemm<A, B, Y>& gemm,
                      const ExpertTile& tile, ExpertPlace place, Index k) {
    static_assert(A::has_blocks == B::has_blocks);
    if constexpr (!A::has_blocks) {
#pragma unroll
      for (int i = 0; i < 64; ++i) values[i] += sums[i];
    } else {
      float rows[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Index row = min(tile.a_first + place.row + 8 * h, gemm.m - 1);
        rows[h] = gemm.a.scale(row, tile.a_k + k);
      }
      constexpr bool one_column = B::Granularity::block_rows == 128;
      const Index first_column = min(Index{place.column}, tile.b_left - 1);
      float scale = one_column ? gemm.b.scale(tile.b_first + first_column, tile.b_k + k) : 0.0f;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          if constexpr (!one_column) {
            const Index column = min(Index{place.column + 8 * j + b}, tile.b_left - 1);
            scale = gemm.b.scale(tile.b_first + column, tile.b_k + k);
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

/// Exchanges words between four neighbouring lanes: word i of lane l becomes word l of lane i.
__device__ inline void transpose_words(std::uint32_t (&words)[4]) {
  const unsigned lane = threadIdx.x % 4;
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool is_upper = (lane & static_cast<unsigned>(distance)) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      std::uint32_t& low = words[i];
      std::uint32_t& high = words[i + distance];
      const std::uint32_t received = __shfl_xor_sync(0xffffffffu, is_upper ? low : high, distance);
      (is_upper ? low : high) = received;
    }
  }
}

/// Writes 32 columns of a row of results. Each lane of a quad holds two of every eight columns. All
/// lanes of the warp call it.
/// @param target   the first of the columns in the row
/// @param columns  number of columns that exist, a multiple of 8; 0: none is written
template <class Y>
__device__ void store_columns(Y* target, float (&values)[4][2], Index columns, bool accumulate) {
  const Index lane = threadIdx.x % 4;
  if constexpr (std::is_same_v<Y, float>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * i >= columns) continue;
      auto* pair = reinterpret_cast<float2*>(target + 8 * i + 2 * lane);
      const float2 before = accumulate ? *pair : float2{0.0f, 0.0f};
      *pair = float2{values[i][0] + before.x, values[i][1] + before.y};
    }
  } else {
    // Lane i writes the i-th eight columns: 64 bytes of each row at once.
    auto* chunk = reinterpret_cast<uint4*>(target + 8 * lane);
    const bool exists = 8 * lane < columns;
    if (accumulate) {
      const uint4 before = exists ? *chunk : uint4{};
      std::uint32_t words[4] = {before.x, before.y, before.z, before.w};
      transpose_words(words);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = bf16_pair(words[i]);
        values[i][0] += pair.x;
        values[i][1] += pair.y;
      }
    }
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pack_bf16(values[i][0], values[i][1]);
    transpose_words(words);
    if (exists) *chunk = uint4{words[0], words[1], words[2], words[3]};
  }
}

/// Writes a thread's sums, multiplied by the scales of tensors or rows.
/// @param place  of the first sum
template <int count, class A, class B, class Y>
__device__ void store_sums(const float (&sums)[count], const ExpertGemm<A, B, Y>& gemm,
                           const ExpertTile& tile, ExpertPlace place) {
  constexpr bool scales = A::is_fp8 && !A::has_blocks;
  const auto scale_of_column = [&](Index column) {
    if constexpr (scales) {
      return gemm.b.scale(tile.b_first + min(column, tile.b_left - 1), 0);
    } else {
      return 1.0f;
    }
  };
  constexpr bool one_scale = !scales || std::is_same_v<typename B::Granularity, PerTensor>;
  const float column_factor = one_scale ? scale_of_column(0) : 1.0f;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Index row = place.row + 8 * h;
    const Index last_row = tile.a_left - 1;
    float row_factor = column_factor;
    if constexpr (scales) row_factor *= gemm.a.scale(min(tile.a_first + row, gemm.m - 1), 0);
    Y* target = gemm.result + (tile.y_row + row) * gemm.n + tile.y_column;
#pragma unroll
    for (int group = 0; group < count / 16; ++group) {
      float values[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const float sum = sums[16 * group + 4 * i + 2 * h + b];
          const Index column = place.column + 32 * group + 8 * i + b;
          const float factor = one_scale ? row_factor : row_factor * scale_of_column(column);
          values[i][b] = scales ? sum * factor : sum;
        }
      }
      const Index first = place.column / 8 * 8 + 32 * group;
      const Index left = row <= last_row ? tile.b_left - first : 0;
      store_columns(target + first, values, left, gemm.accumulate);
    }
  }
}

}  // namespace octavo::detail
