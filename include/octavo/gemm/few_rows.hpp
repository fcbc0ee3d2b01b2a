/// @file
/// GEMMs of a few rows with a weight, as in decoding; limited by the memory bandwidth for the
/// weight.
#pragma once

#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/key_value_cache.hpp>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo OCTAVO_ABI {

/// Maximum number of rows of `few_rows_forward`.
inline constexpr Index max_few_rows = 8;
/// Maximum number of columns of a row that it normalises: on `Cuda`, blocks of threads keep the row
/// in shared memory.
inline constexpr Index max_normalised_columns = Index{1} << 15;

/// When a weight may be read.
enum class WeightReads {
  in_order,  ///< after all previously enqueued work, as usual
  ahead,     ///< also while that work runs; enqueued work must not write the weight
};

/// Options of a GEMM of few rows, including operations fused into it. Their results have the same
/// bits as `rms_norm_forward` before it and `swiglu_forward` or `append_to_cache` after it.
template <class T, Device D>
struct FewRowsOptions {
  WeightReads reads = WeightReads::in_order;
  RowNorm<T, D> norm{};      ///< normalises x, which must be one row of at most
                             ///< `max_normalised_columns`
  bool is_gated = false;     ///< whether the result is silu(gate) · up, [rows, out / 2]: the first
                             ///< half of the GEMM's columns are gate values, the others up values.
                             ///< Requires that there is neither an addend nor a bias
  CacheRows<T, D> cached{};  ///< if it has positions, the result, in x's format, contains queries,
                             ///< keys and values, which are appended to a cache. The queries in y
                             ///< are rotated; its keys and values are undefined
};

namespace detail {

template <class T, class Y, Device D>
void check_cached(const GemmOutput<Y, D>& y, const FewRowsOptions<T, D>& options) {
  constexpr const char* name = "few_rows_forward";
  const auto& [layout, rotation, positions, cache] = options.cached;
  require<ShapeError>(!options.is_gated, name,
                      ": a gated result cannot be appended to a cache; request one of the two");
  require<ShapeError>(
      std::is_same_v<T, Y>, name,
      ": a result that is appended to a cache must have the format of x; change its format");
  require<ShapeError>(layout.head_dim % 2 == 0, name, ": heads of ", layout.head_dim,
                      " columns cannot be appended to a cache, because their halves are computed "
                      "together; use append_to_cache");
  if constexpr (std::is_same_v<T, Y>) check_cache<T, D>(name, y.result, layout, positions, cache);
  if (rotation.empty()) return;
  check_rope(name, layout, QkNorm<const T, D>{}, rotation, cache.capacity());
}

template <class T, class Y, Device D>
void check_few_rows(Index rows, Index n, Index k_x, Index k_w, const GemmOutput<Y, D>& y,
                    const FewRowsOptions<T, D>& options) {
  constexpr const char* name = "few_rows_forward";
  static_assert(std::is_same_v<Y, T> || std::is_same_v<Y, float>,
                "few_rows_forward: the result must have the format of x or be fp32");
  require<ShapeError>(rows <= max_few_rows, name, ": x has ", rows, " rows, but at most ",
                      max_few_rows, " are supported; use matmul_forward");
  check_gemm(name, rows, options.is_gated ? n / 2 : n, k_x, k_w, y);
  if (options.is_gated) {
    require<ShapeError>(n % 2 == 0 && y.addend.empty() && y.bias.empty(), name, ": a weight of ", n,
                        " rows does not fit a gated result, which needs an even number of rows and "
                        "neither an addend nor a bias");
  }
  if (!options.cached.positions.empty()) check_cached(y, options);
  if (options.norm.weight.empty()) return;
  require<ShapeError>(rows == 1, name, ": ", rows,
                      " rows cannot be normalised, only one; use rms_norm_forward");
  check_shape(name, "weight of the norm", options.norm.weight, {k_x});
  require<ShapeError>(k_x <= max_normalised_columns, name, ": a row of ", k_x,
                      " columns cannot be normalised, only of at most ", max_normalised_columns,
                      "; use rms_norm_forward");
}

}  // namespace detail

/// Computes y = x · Wᵀ (+ addend) (+ bias), accumulated in FP32. On `Cpu`, the result has the same
/// bits as `matmul_forward`.
/// @tparam Y  format of the result, the addend and the bias: that of `x`, or FP32, as for logits
/// @param x  [rows, in], up to `max_few_rows` rows
/// @param w  [out, in]; any size and, on `Cuda`, any alignment, but only whole vectors of 16 bytes
///           are fast
/// @param y  [rows, out]; a gated result is [rows, out / 2]
/// @return the implementation that ran, for the manifest
/// @throws ShapeError  if shapes do not match, there are too many rows, or options cannot be
///                     combined; on `Cpu` also for a position outside the cache. On `Cuda`, the
///                     queries of such a row are not rotated, and its keys and values are not
///                     stored
/// @note enqueues; does not synchronise; uses `few_rows_workspace` bytes of the context's
///   workspace. Sums have a fixed order: equal inputs give equal bits
template <class T, class Y, Device D>
[[nodiscard]] GemmRun few_rows_forward(TensorView<const T, 2, D> x,
                                       std::type_identity_t<TensorView<const T, 2, D>> w,
                                       const GemmOutput<Y, D>& y, const Context<D>& context,
                                       std::type_identity_t<FewRowsOptions<T, D>> options = {}) {
  detail::check_few_rows(x.extent(0), w.extent(0), x.extent(1), w.extent(1), y, options);
  few_rows_dense_body(x, w, y, options, context);
  return {FormatTraits<T>::name, FormatTraits<T>::name, few_rows_implementation(D{})};
}

/// Does the same with a quantised weight, whose elements are widened as they are read; `x` is not
/// quantised.
/// @tparam W  `E4M3` or `E5M2`, with any granularity of scales
/// @param w  [out, in], of any size
template <class T, class W, class Granularity, class Y, Device D>
[[nodiscard]] GemmRun few_rows_forward(TensorView<const T, 2, D> x,
                                       QuantizedView<W, Granularity, Layout::row_major, D> w,
                                       const GemmOutput<Y, D>& y, const Context<D>& context,
                                       std::type_identity_t<FewRowsOptions<T, D>> options = {}) {
  detail::check_few_rows(x.extent(0), w.outer(), x.extent(1), w.inner(), y, options);
  few_rows_quantized_body(x, w, y, options, context);
  return {FormatTraits<T>::name, FormatTraits<W>::name, few_rows_implementation(D{})};
}

}  // namespace octavo

#include <octavo/gemm/cpu/few_rows.hpp>
