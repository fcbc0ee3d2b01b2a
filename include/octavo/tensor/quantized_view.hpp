/// @file
/// Views of quantised matrices. Format, scaling and layout are part of the type, so that a wrong
/// operand, scale or transpose does not compile.
#pragma once

#include <octavo/precision/policy.hpp>
#include <octavo/tensor/tensor_view.hpp>

namespace octavo OCTAVO_ABI {

/// Whether a quantised copy has the tensor's layout or its transpose. FP8 tensor cores require both
/// operands of a GEMM to be contiguous along the reduced dimension, so most tensors need both
/// copies.
enum class Layout { row_major, transposed };

/// Returns the number of scales for an `outer` × `inner` matrix whose inner dimension is reduced.
template <class Granularity>
constexpr Index scale_count(Index outer, Index inner) {
  if constexpr (Granularity::block_columns == 0) {
    return 1;
  } else if constexpr (Granularity::block_rows == 1) {
    return outer * ceil_divide(inner, Granularity::block_columns);
  } else {
    return ceil_divide(outer, Granularity::block_rows) *
           round_up(ceil_divide(inner, Granularity::block_columns), 4);
  }
}

/// Returns the index of the scale of element (row, column) of an `outer` × `inner` matrix.
template <class Granularity>
OCTAVO_HOST_DEVICE constexpr Index scale_index(Index row, Index column, Index outer, Index inner) {
  if constexpr (Granularity::block_columns == 0) {
    return 0;
  } else if constexpr (Granularity::block_rows == 1) {
    const Index block = column / Granularity::block_columns;
    if constexpr (std::is_same_v<typename Granularity::Scale, E8M0>) {
      return row * ceil_divide(inner, Granularity::block_columns) + block;
    } else {
      return block * outer + row;
    }
  } else {
    return row / Granularity::block_rows *
               round_up(ceil_divide(inner, Granularity::block_columns), 4) +
           column / Granularity::block_columns;
  }
}

/// A quantised matrix, contiguous along the dimension that a GEMM reduces.
/// @tparam Format       `E4M3` or `E5M2`
/// @tparam Granularity  what one scale covers: `PerTensor`, `PerRow` or `PerBlock`
/// @tparam L            `row_major`: [rows, columns] of the tensor; `transposed`: [columns, rows]
template <class Format, class Granularity, Layout L, Device D>
class QuantizedView {
 public:
  using Element = Format;
  using Scale = typename Granularity::Scale;
  static constexpr Layout layout = L;

  constexpr QuantizedView() = default;
  /// @param data            [outer, inner] elements
  /// @param scale_inverses  `scale_count` factors that convert elements back to values
  OCTAVO_HOST_DEVICE constexpr QuantizedView(Format* data, Scale* scale_inverses, Index outer,
                                             Index inner)
      : data_(data), scale_inverses_(scale_inverses), outer_(outer), inner_(inner) {}

  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Format* data() const { return data_; }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Scale* scale_inverses() const {
    return scale_inverses_;
  }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index outer() const { return outer_; }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index inner() const {
    return inner_;
  }  ///< the reduced dimension
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr bool empty() const { return data_ == nullptr; }

 private:
  Format* data_ = nullptr;
  Scale* scale_inverses_ = nullptr;
  Index outer_ = 0;
  Index inner_ = 0;
};

}  // namespace octavo
