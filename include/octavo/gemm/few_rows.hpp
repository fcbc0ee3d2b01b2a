/// @file
/// Products of a few rows with a weight, such as decoding has: bound by the bytes of the weight.
#pragma once

#include <octavo/gemm/matmul.hpp>

namespace octavo::inline OCTAVO_ABI {

/// Rows that `few_rows_forward` multiplies at most.
inline constexpr Index most_few_rows = 8;

/// When a weight may be read.
enum class WeightReads {
  in_order,  ///< after all that was enqueued before, like everything else
  ahead,     ///< before that has ended too: nothing that was enqueued and has not ended writes it
};

namespace detail {

inline void check_few_rows(Index rows) {
  require<ShapeError>(rows <= most_few_rows, "few_rows_forward: there are ", rows,
                      " rows, of which at most ", most_few_rows,
                      " are multiplied at once; use matmul_forward");
}

}  // namespace detail

/// y = x · Wᵀ (+ addend) (+ bias), accumulated in FP32. On `Cpu` to the bits of `matmul_forward`.
/// @tparam Y  format of the result, the addend and the bias: that of `x`, or FP32, as logits have
/// @param x  [rows, in], up to `most_few_rows` rows
/// @param w  [out, in]; any size and, on `Cuda`, any alignment, but whole vectors of 16 bytes are
///           what is fast
/// @param y  [rows, out]
/// @param reads  of the weight
/// @return what ran, for the manifest
/// @throws ShapeError  if shapes do not fit, or for too many rows
/// @note enqueues; does not synchronise; uses `few_rows_workspace` bytes of the context's. Sums
///       have a fixed order: equal inputs give equal bits
template <class T, class Y, Device D>
[[nodiscard]] GemmRun few_rows_forward(TensorView<const T, 2, D> x,
                                       std::type_identity_t<TensorView<const T, 2, D>> w,
                                       const GemmOutput<Y, D>& y, const Context<D>& context,
                                       WeightReads reads = WeightReads::in_order) {
  static_assert(std::is_same_v<Y, T> || std::is_same_v<Y, float>,
                "few_rows_forward: the result must have the format of x or be fp32");
  detail::check_gemm("few_rows_forward", x.extent(0), w.extent(0), x.extent(1), w.extent(1), y);
  detail::check_few_rows(x.extent(0));
  few_rows_dense_body(x, w, y, reads, context);
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
                                       WeightReads reads = WeightReads::in_order) {
  static_assert(std::is_same_v<Y, T> || std::is_same_v<Y, float>,
                "few_rows_forward: the result must have the format of x or be fp32");
  detail::check_gemm("few_rows_forward", x.extent(0), w.outer(), x.extent(1), w.inner(), y);
  detail::check_few_rows(x.extent(0));
  few_rows_quantized_body(x, w, y, reads, context);
  return {FormatTraits<T>::name, FormatTraits<W>::name, few_rows_implementation(D{})};
}

}  // namespace octavo

#include <octavo/gemm/cpu/few_rows.hpp>
