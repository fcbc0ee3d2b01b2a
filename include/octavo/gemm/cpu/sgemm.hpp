/// @file
/// Single-threaded FP32 GEMMs on the host, in loops over packed strips.
///
/// An element of the result has the same bits regardless of the other rows and columns. Every
/// product of two numbers is formed in `sgemm_kernel`, over whole strips: compilers may fuse it
/// with the subsequent addition or not, but treat every element in the same way. Loops over partly
/// filled strips, where compilers vectorise the beginning of a row but not its end, have nothing to
/// fuse.
#pragma once

#include <octavo/core/context.hpp>

#include <algorithm>
#include <cstring>

namespace octavo OCTAVO_ABI::detail {

/// Whether an operand is read as stored or transposed.
enum class Transpose { no, yes };

/// A row-major matrix that a product reads as stored or transposed.
struct SgemmOperand {
  const float* data;
  Index leading;  ///< distance between stored rows, in elements
  Transpose transpose;

  /// Returns the distance between vertically or horizontally adjacent elements of the matrix as the
  /// product reads it.
  [[nodiscard]] Index down() const { return transpose == Transpose::no ? leading : 1; }
  [[nodiscard]] Index across() const { return transpose == Transpose::no ? 1 : leading; }
};

// The following depends on the target processor of a file, and so do its names: a program may have
// files compiled for different processors, and the linker must not mix their parts.
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

/// Copies `width` strips of the operand, `strip` lanes side by side and the reduced dimension
/// outermost, padding the last strip with zeros.
inline void pack_strips(const float* source, Index lane_stride, Index depth_stride, Index width,
                        Index depth, Index strip, float* packed) {
  for (Index begin = 0; begin < width; begin += strip) {
    const Index lanes = std::min(strip, width - begin);
    const float* from = source + begin * lane_stride;
    if (depth_stride == 1) {
      for (Index lane = 0; lane < lanes; ++lane) {
        for (Index p = 0; p < depth; ++p) packed[p * strip + lane] = from[lane * lane_stride + p];
      }
    } else {
      for (Index p = 0; p < depth; ++p) {
        const float* row = from + p * depth_stride;
        for (Index lane = 0; lane < lanes; ++lane)
          packed[p * strip + lane] = row[lane * lane_stride];
      }
    }
    for (Index lane = lanes; lane < strip; ++lane) {
      for (Index p = 0; p < depth; ++p) packed[p * strip + lane] = 0.0f;
    }
    packed += strip * depth;
  }
}

/// Computes sums = A · B for one strip of each.
inline void sgemm_kernel(const float* a, const float* b, Index depth, float* sums) {
  SgemmVector left[sgemm_rows] = {};
  SgemmVector right[sgemm_rows] = {};
  for (Index p = 0; p < depth; ++p) {
    SgemmVector b_left;
    SgemmVector b_right;
    std::memcpy(&b_left, b, sizeof(b_left));
    std::memcpy(&b_right, b + sgemm_lanes, sizeof(b_right));
#if defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC unroll 8
#endif
    for (Index r = 0; r < sgemm_rows; ++r) {
      left[r] += a[r] * b_left;
      right[r] += a[r] * b_right;
    }
    a += sgemm_rows;
    b += sgemm_columns;
  }
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
/// inlined, so that the last operation, alpha · sum, is not fused with a caller's addition.
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
      pack_strips(b.data + p * b.down() + j0 * b.across(), b.across(), b.down(), columns, depth,
                  sgemm_columns, packed_b);
      for (Index i0 = 0; i0 < m; i0 += sgemm_block) {
        const Index rows = std::min(sgemm_block, m - i0);
        pack_strips(a.data + i0 * a.down() + p * a.across(), a.down(), a.across(), rows, depth,
                    sgemm_rows, packed_a);
        for (Index j = 0; j < columns; j += sgemm_columns) {
          for (Index i = 0; i < rows; i += sgemm_rows) {
            sgemm_kernel(packed_a + i * depth, packed_b + j * depth, depth, sums);
            store_sums(sums, std::min(sgemm_rows, rows - i), std::min(sgemm_columns, columns - j),
                       factor, accumulate || p > 0, c + (i0 + i) * ldc + j0 + j, ldc);
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
