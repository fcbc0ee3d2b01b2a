/// @file
/// Single-threaded FP32 GEMMs on the host, in loops over packed strips.
///
/// An element of the result has the same bits regardless of the other rows and columns. All
/// multiplications are in `sgemm_kernel`, over whole strips: compilers may or may not fuse them
/// with the subsequent addition, but treat every element in the same way. In loops over partly
/// filled strips, compilers may vectorise only the beginning of a row, but these loops contain
/// nothing to fuse.
#pragma once

#include <octavo/core/context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace octavo OCTAVO_ABI::detail {

/// Whether an operand is read as stored or transposed.
enum class Transpose { no, yes };

/// A row-major matrix that a GEMM reads as stored or transposed.
struct SgemmOperand {
  const float* data;
  Index leading;  ///< distance between stored rows, in elements
  Transpose transpose;

  /// Returns the distance between vertically or horizontally adjacent elements of the matrix as the
  /// GEMM reads it.
  [[nodiscard]] Index down() const { return transpose == Transpose::no ? leading : 1; }
  [[nodiscard]] Index across() const { return transpose == Transpose::no ? 1 : leading; }
};

// The following code depends on the processor that a source file is compiled for, and so do its
// names: the linker must not mix the code of files that are compiled for different processors.
#if defined(__AVX512F__)
#define OCTAVO_SGEMM_LANES 16
#define OCTAVO_SGEMM_NAMES lanes_16
#elif defined(__AVX__)
#define OCTAVO_SGEMM_LANES 8
#define OCTAVO_SGEMM_NAMES lanes_8
#else
#define OCTAVO_SGEMM_LANES 4
#define OCTAVO_SGEMM_NAMES lanes_4
#endif
inline namespace OCTAVO_SGEMM_NAMES {

inline constexpr Index sgemm_lanes = OCTAVO_SGEMM_LANES;
inline constexpr Index sgemm_rows = sgemm_lanes == 16 ? 8 : 6;
/// The micro-kernel keeps `sgemm_rows` × `sgemm_columns` sums in registers.
inline constexpr Index sgemm_columns = 2 * sgemm_lanes;
/// Number of elements of the reduced dimension packed together.
inline constexpr Index sgemm_depth = 256;
/// Number of rows and columns packed together.
inline constexpr Index sgemm_block = 128;

using SgemmVector [[gnu::vector_size(sgemm_lanes * sizeof(float))]] = float;

// cudafe++ supports neither vector shuffles nor GCC's unroll pragma.
#if defined(__GNUC__) && !defined(__CUDACC__)
#define OCTAVO_SGEMM_SHUFFLES 1
#else
#define OCTAVO_SGEMM_SHUFFLES 0
#endif

#if OCTAVO_SGEMM_SHUFFLES
/// Interleaves two vectors (a0 b0 a1 b1 …): `low` from their first halves, `high` from their
/// second.
template <std::size_t... I>
void interleave(const SgemmVector& a, const SgemmVector& b, SgemmVector& low, SgemmVector& high,
                std::index_sequence<I...>) {
  constexpr std::size_t lanes = sizeof...(I);
  low = __builtin_shufflevector(a, b, static_cast<int>(I / 2 + I % 2 * lanes)...);
  high = __builtin_shufflevector(a, b, static_cast<int>((lanes + I) / 2 + I % 2 * lanes)...);
}

/// Transposes a square of `sgemm_lanes` rows and columns by interleaving rows log2(lanes) times.
inline void transpose_square(const float* from, Index from_stride, float* to, Index to_stride) {
  constexpr std::size_t lanes = sgemm_lanes;
  SgemmVector rows[lanes];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < lanes; ++r)
    std::memcpy(&rows[r], from + static_cast<Index>(r) * from_stride, sizeof(SgemmVector));
#pragma GCC unroll 4
  for (std::size_t stage = 1; stage < lanes; stage *= 2) {
    SgemmVector next[lanes];
#pragma GCC unroll 8
    for (std::size_t r = 0; r < lanes / 2; ++r) {
      interleave(rows[r], rows[r + lanes / 2], next[2 * r], next[2 * r + 1],
                 std::make_index_sequence<lanes>());
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < lanes; ++r) rows[r] = next[r];
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < lanes; ++r)
    std::memcpy(to + static_cast<Index>(r) * to_stride, &rows[r], sizeof(SgemmVector));
}
#endif

/// Copies a strip of `lanes` rows, each contiguous along the reduced dimension.
template <Index strip>
void pack_transposed(const float* from, Index lane_stride, Index lanes, Index depth,
                     float* packed) {
  Index lane = 0;
#if OCTAVO_SGEMM_SHUFFLES
  const Index squares = depth / sgemm_lanes * sgemm_lanes;
  for (; lane + sgemm_lanes <= lanes; lane += sgemm_lanes) {
    const float* rows = from + lane * lane_stride;
    for (Index p = 0; p < squares; p += sgemm_lanes)
      transpose_square(rows + p, lane_stride, packed + p * strip + lane, strip);
    for (Index p = squares; p < depth; ++p) {
      for (Index r = 0; r < sgemm_lanes; ++r)
        packed[p * strip + lane + r] = rows[r * lane_stride + p];
    }
  }
#endif
  for (; lane < lanes; ++lane) {
    for (Index p = 0; p < depth; ++p) packed[p * strip + lane] = from[lane * lane_stride + p];
  }
}

/// Copies `width` lanes of the operand into strips of `strip` lanes side by side, with the reduced
/// dimension outermost, padding the last strip with zeros.
template <Index strip>
void pack_strips(const float* source, Index lane_stride, Index depth_stride, Index width,
                 Index depth, float* packed) {
  for (Index begin = 0; begin < width; begin += strip) {
    const Index lanes = std::min(strip, width - begin);
    const float* from = source + begin * lane_stride;
    if (depth_stride == 1) {
      pack_transposed<strip>(from, lane_stride, lanes, depth, packed);
    } else if (lanes == strip) {
      for (Index p = 0; p < depth; ++p)
        std::memcpy(packed + p * strip, from + p * depth_stride, strip * sizeof(float));
    } else {
      for (Index p = 0; p < depth; ++p)
        std::copy_n(from + p * depth_stride, lanes, packed + p * strip);
    }
    for (Index lane = lanes; lane < strip; ++lane) {
      for (Index p = 0; p < depth; ++p) packed[p * strip + lane] = 0.0f;
    }
    packed += strip * depth;
  }
}

/// A strip of A. Element `p` of row `r` is `rows[r][p * stride]`.
struct SgemmStrip {
  const float* rows[sgemm_rows];
  Index stride;
};

/// Returns a strip that `pack_strips` packed.
inline SgemmStrip packed_strip(const float* packed) {
  SgemmStrip strip{{}, sgemm_rows};
  for (Index r = 0; r < sgemm_rows; ++r) strip.rows[r] = packed + r;
  return strip;
}

/// Returns a strip of `filled` rows of a matrix that is not transposed. The last row is used in
/// place of missing rows, whose sums are not stored.
inline SgemmStrip stored_strip(const float* data, Index leading, Index filled) {
  SgemmStrip strip{{}, 1};
  for (Index r = 0; r < sgemm_rows; ++r) strip.rows[r] = data + std::min(r, filled - 1) * leading;
  return strip;
}

/// Computes sums = A · B for one strip of each.
inline void sgemm_kernel(const SgemmStrip& a, const float* b, Index depth, float* sums) {
  SgemmVector left[sgemm_rows];
  SgemmVector right[sgemm_rows];
  const float* rows[sgemm_rows];
#if OCTAVO_SGEMM_SHUFFLES
#pragma GCC unroll 8
#endif
  for (Index r = 0; r < sgemm_rows; ++r) {
    left[r] = right[r] = SgemmVector{};
    rows[r] = a.rows[r];
  }
  const Index stride = a.stride;
  for (Index p = 0, at = 0; p < depth; ++p, at += stride) {
    SgemmVector b_left;
    SgemmVector b_right;
    std::memcpy(&b_left, b, sizeof(b_left));
    std::memcpy(&b_right, b + sgemm_lanes, sizeof(b_right));
#if OCTAVO_SGEMM_SHUFFLES
#pragma GCC unroll 8
#endif
    for (Index r = 0; r < sgemm_rows; ++r) {
      left[r] += rows[r][at] * b_left;
      right[r] += rows[r][at] * b_right;
    }
    b += sgemm_columns;
  }
#if OCTAVO_SGEMM_SHUFFLES
#pragma GCC unroll 8
#endif
  for (Index r = 0; r < sgemm_rows; ++r) {
    std::memcpy(sums + r * sgemm_columns, &left[r], sizeof(left[r]));
    std::memcpy(sums + r * sgemm_columns + sgemm_lanes, &right[r], sizeof(right[r]));
  }
}

/// The name of `sgemm`'s implementation, for the manifest.
inline constexpr const char* sgemm_implementation = "octavo loops";

/// Writes the filled part of a strip's sums: C = alpha · (sums + C), or alpha · sums if C has no
/// values yet.
inline void store_sums(const float* sums, Index rows, Index columns, float alpha, bool accumulate,
                       float* c, Index ldc) {
  for (Index r = 0; r < rows; ++r) {
    const float* from = sums + r * sgemm_columns;
    float* row = c + r * ldc;
    if (accumulate) {
      for (Index q = 0; q < columns; ++q) row[q] = alpha * (from[q] + row[q]);
    } else {
      for (Index q = 0; q < columns; ++q) row[q] = alpha * from[q];
    }
  }
}

/// Computes C = alpha · op(A) · op(B), or alpha · (op(A) · op(B) + C) with `accumulate`, on the
/// calling thread; A is m × k, B is k × n, C is row-major with rows `ldc` elements apart. Not
/// inlined, so that its last operation, alpha · sum, is not fused with an addition of the caller.
[[gnu::noinline]] inline void sgemm(const SgemmOperand& a, const SgemmOperand& b, Index m, Index n,
                                    Index k, float alpha, bool accumulate, float* c, Index ldc) {
  alignas(64) float packed_a[(sgemm_block + sgemm_rows) * sgemm_depth];
  alignas(64) float packed_b[(sgemm_block + sgemm_columns) * sgemm_depth];
  alignas(64) float sums[sgemm_rows * sgemm_columns];
  for (Index p = 0; p < k; p += sgemm_depth) {
    const Index depth = std::min(sgemm_depth, k - p);
    const float factor = p + depth == k ? alpha : 1.0f;
    for (Index j0 = 0; j0 < n; j0 += sgemm_block) {
      const Index columns = std::min(sgemm_block, n - j0);
      pack_strips<sgemm_columns>(b.data + p * b.down() + j0 * b.across(), b.across(), b.down(),
                                 columns, depth, packed_b);
      for (Index i0 = 0; i0 < m; i0 += sgemm_block) {
        const Index rows = std::min(sgemm_block, m - i0);
        const float* from = a.data + i0 * a.down() + p * a.across();
        if (a.transpose == Transpose::yes)
          pack_strips<sgemm_rows>(from, 1, a.leading, rows, depth, packed_a);
        for (Index i = 0; i < rows; i += sgemm_rows) {
          const Index filled = std::min(sgemm_rows, rows - i);
          const SgemmStrip strip = a.transpose == Transpose::yes
                                       ? packed_strip(packed_a + i * depth)
                                       : stored_strip(from + i * a.leading, a.leading, filled);
          for (Index j = 0; j < columns; j += sgemm_columns) {
            sgemm_kernel(strip, packed_b + j * depth, depth, sums);
            store_sums(sums, filled, std::min(sgemm_columns, columns - j), factor,
                       accumulate || p > 0, c + (i0 + i) * ldc + j0 + j, ldc);
          }
        }
      }
    }
  }
}

}  // namespace OCTAVO_SGEMM_NAMES
}  // namespace octavo::detail

#undef OCTAVO_SGEMM_LANES
#undef OCTAVO_SGEMM_NAMES
#undef OCTAVO_SGEMM_SHUFFLES
