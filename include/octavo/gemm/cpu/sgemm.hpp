/// @file
/// Single-threaded FP32 matrix products on the host: BLAS where CMake found it and it knows the
/// processor, otherwise the library's own loops.
#pragma once

#include <octavo/core/context.hpp>

#include <algorithm>
#include <cstring>
#if defined(OCTAVO_WITH_BLAS)
#include <cblas.h>
#endif

namespace octavo::detail {

/// Whether an operand is read as it is stored or transposed.
enum class Transpose { no, yes };

/// A row-major matrix that a product reads as it is or transposed.
struct SgemmOperand {
  const float* data;
  Index leading;  ///< elements from one stored row to the next
  Transpose transpose;

  /// Distance of neighbours down and across the matrix as the product reads it.
  [[nodiscard]] Index down() const { return transpose == Transpose::no ? leading : 1; }
  [[nodiscard]] Index across() const { return transpose == Transpose::no ? 1 : leading; }
};

#if defined(__AVX512F__)
inline constexpr Index sgemm_lanes = 16;
inline constexpr Index sgemm_rows = 8;
#elif defined(__AVX__)
inline constexpr Index sgemm_lanes = 8;
inline constexpr Index sgemm_rows = 6;
#else
inline constexpr Index sgemm_lanes = 4;
inline constexpr Index sgemm_rows = 6;
#endif
/// The micro-kernel keeps `sgemm_rows` × `sgemm_columns` sums in registers.
inline constexpr Index sgemm_columns = 2 * sgemm_lanes;
/// Elements of the reduced dimension that are packed together.
inline constexpr Index sgemm_depth = 256;
/// Rows and columns that are packed together.
inline constexpr Index sgemm_block = 128;

using SgemmVector [[gnu::vector_size(sgemm_lanes * sizeof(float))]] = float;

/// Copies `width` strips of the operand, `strip` lanes side by side and the reduced dimension
/// outermost, with zeros where the last strip is not full.
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

/// sums = A · B for one strip of each.
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

/// C = alpha · op(A) · op(B) + beta · C in plain loops over packed strips.
inline void loop_sgemm(const SgemmOperand& a, const SgemmOperand& b, Index m, Index n, Index k,
                       float alpha, float beta, float* c, Index ldc) {
  alignas(64) float packed_a[(sgemm_block + sgemm_rows) * sgemm_depth];
  alignas(64) float packed_b[(sgemm_block + sgemm_columns) * sgemm_depth];
  for (Index p = 0; p < k; p += sgemm_depth) {
    const Index depth = std::min(sgemm_depth, k - p);
    const float keep = p == 0 ? beta : 1.0f;
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
            alignas(64) float sums[sgemm_rows * sgemm_columns];
            sgemm_kernel(packed_a + i * depth, packed_b + j * depth, depth, sums);
            for (Index r = 0; r < std::min(sgemm_rows, rows - i); ++r) {
              float* row = c + (i0 + i + r) * ldc + j0 + j;
              for (Index q = 0; q < std::min(sgemm_columns, columns - j); ++q) {
                const float kept = keep == 0 ? 0.0f : keep * row[q];
                row[q] = alpha * sums[r * sgemm_columns + q] + kept;
              }
            }
          }
        }
      }
    }
  }
}

#if defined(OCTAVO_WITH_BLAS)
/// OpenBLAS runs processors that it does not know with its oldest kernels, several times slower
/// than the own loops; the manifest then names the loops.
inline bool blas_knows_processor() {
  static const bool known = std::strcmp(openblas_get_corename(), "Prescott") != 0;
  return known;
}
#endif

/// What `sgemm` runs, for the manifest.
inline const char* sgemm_implementation() {
#if defined(OCTAVO_WITH_BLAS)
  if (blas_knows_processor()) return "openblas sgemm";
#endif
  return "octavo loops";
}

/// C = alpha · op(A) · op(B) + beta · C on the calling thread; C is row-major. The library
/// parallelises over tiles itself, so that results do not depend on how BLAS would share the work
/// between threads.
inline void sgemm(const SgemmOperand& a, const SgemmOperand& b, Index m, Index n, Index k,
                  float alpha, float beta, float* c, Index ldc) {
#if defined(OCTAVO_WITH_BLAS)
  if (blas_knows_processor()) {
    static const bool single = (openblas_set_num_threads(1), true);
    (void)single;
    const auto blas = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
    cblas_sgemm(CblasRowMajor, blas(a.transpose), blas(b.transpose), static_cast<int>(m),
                static_cast<int>(n), static_cast<int>(k), alpha, a.data,
                static_cast<int>(a.leading), b.data, static_cast<int>(b.leading), beta, c,
                static_cast<int>(ldc));
    return;
  }
#endif
  loop_sgemm(a, b, m, n, k, alpha, beta, c, ldc);
}

}  // namespace octavo::detail
