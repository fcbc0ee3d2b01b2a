/// @file
/// Products of a few rows with a weight, such as decoding has: bound by the bytes of the weight.
#pragma once

#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/key_value_cache.hpp>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo OCTAVO_ABI {

/// Rows that `few_rows_forward` multiplies at most.
inline constexpr Index most_few_rows = 8;
/// Columns of a row that it normalises at most: on `Cuda` blocks of threads keep it in shared
/// memory.
inline constexpr Index most_normalised_columns = Index{1} << 15;

/// When a weight may be read.
enum class WeightReads {
  in_order,  ///< after all that was enqueued before, like everything else
  ahead,     ///< before that has ended too: nothing that was enqueued and has not ended writes it
};

/// How a product of few rows is made, and what is done to its rows and its result on the way, to
/// the bits of `rms_norm_forward` before it and of `swiglu_forward` or `append_to_cache` behind it.
template <class T, Device D>
struct FewRowsOptions {
  WeightReads reads = WeightReads::in_order;
  RowNorm<T, D> norm{};   ///< of x, which then is one row, of `most_normalised_columns` at most
  bool is_gated = false;  ///< the result is silu(gate) · up, [rows, out / 2]: the first half of the
                          ///< product's columns are gates, the others ups. There is no addend, and
                          ///< no bias
  CacheRows<T, D> cached{};  ///< with positions: the result, in x's format, is queries, keys and
                             ///< values, which join a cache. Queries are y's, rotated; its keys
                             ///< and values are undefined
};

namespace detail {

template <class T, class Y, Device D>
void check_cached(const GemmOutput<Y, D>& y, const FewRowsOptions<T, D>& options) {
  constexpr const char* name = "few_rows_forward";
  const auto& [layout, rotation, positions, cache] = options.cached;
  require<ShapeError>(!options.is_gated, name,
                      ": a result that is gated cannot join a cache; ask for one of them");
  require<ShapeError>(std::is_same_v<T, Y>, name,
                      ": a result that is to join a cache is not in the format of x; give it that");
  require<ShapeError>(layout.head_dim % 2 == 0, name, ": heads of ", layout.head_dim,
                      " columns are to join a cache, whose halves are made together; use "
                      "append_to_cache");
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
  require<ShapeError>(rows <= most_few_rows, name, ": there are ", rows, " rows, of which at most ",
                      most_few_rows, " are multiplied at once; use matmul_forward");
  check_gemm(name, rows, options.is_gated ? n / 2 : n, k_x, k_w, y);
  if (options.is_gated) {
    require<ShapeError>(n % 2 == 0 && y.addend.empty() && y.bias.empty(), name, ": a weight of ", n,
                        " rows, an addend or a bias does not fit a gated result; give gates and as "
                        "many ups, and nothing to add");
  }
  if (!options.cached.positions.empty()) check_cached(y, options);
  if (options.norm.weight.empty()) return;
  require<ShapeError>(rows == 1, name, ": ", rows,
                      " rows are to be normalised, but it normalises one; use rms_norm_forward");
  check_shape(name, "weight of the norm", options.norm.weight, {k_x});
  require<ShapeError>(k_x <= most_normalised_columns, name, ": a row of ", k_x,
                      " columns is to be normalised, of which there may be ",
                      most_normalised_columns, "; use rms_norm_forward");
}

}  // namespace detail

/// y = x · Wᵀ (+ addend) (+ bias), accumulated in FP32. On `Cpu` to the bits of `matmul_forward`.
/// @tparam Y  format of the result, the addend and the bias: that of `x`, or FP32, as logits have
/// @param x  [rows, in], up to `most_few_rows` rows
/// @param w  [out, in]; any size and, on `Cuda`, any alignment, but whole vectors of 16 bytes are
///           what is fast
/// @param y  [rows, out]; of a gated result [rows, out / 2]
/// @return what ran, for the manifest
/// @throws ShapeError  if shapes do not fit; for too many rows; for options that do not go
/// together;
///                     on `Cpu` for a position outside the cache, too: on `Cuda` the row's queries
///                     are not rotated then, and its keys and values are not kept
/// @note enqueues; does not synchronise; uses `few_rows_workspace` bytes of the context's. Sums
///       have a fixed order: equal inputs give equal bits
template <class T, class Y, Device D>
[[nodiscard]] GemmRun few_rows_forward(TensorView<const T, 2, D> x,
                                       std::type_identity_t<TensorView<const T, 2, D>> w,
                                       const GemmOutput<Y, D>& y, const Context<D>& context,
                                       std::type_identity_t<FewRowsOptions<T, D>> options = {}) {
  detail::check_few_rows(x.extent(0), w.extent(0), x.extent(1), w.extent(1), y, options);
  few_rows_dense_body(x, w, y, options, context);
  return {FormatTraits<T>::name, FormatTraits<T>::name, few_rows_implementation(D{})};
}

/// The same with a quantised weight, whose elements are widened as they are read; `x` is not
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
