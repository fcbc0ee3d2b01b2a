/// @file
/// Views of quantised matrices. Format, scaling and layout are part of the type, so that a wrong
/// operand, scale or transpose does not compile.
#pragma once

#include <octavo/precision/policy.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstring>

namespace octavo OCTAVO_ABI {

/// Whether a quantised copy has the tensor's layout or its transpose. FP8 tensor cores require both
/// operands of a GEMM to be contiguous along the reduced dimension, so most tensors need both
/// copies.
enum class Layout { row_major, transposed };

namespace detail {
/// Number of bytes at the beginning of an array with two levels of scales that are reserved for the
/// tensor's FP32 scale. The padding aligns the blocks' E4M3 scales, of one byte each, to 16 bytes.
template <class Granularity>
inline constexpr Index tensor_scale_room = has_tensor_scale<Granularity> ? 16 : 0;
}  // namespace detail

/// Returns the bytes of `count` elements of a copy. On `Cuda`, two E2M1 elements share a byte, the
/// first of them in the lower four bits; elsewhere an element has a byte.
template <class Format, Device D>
constexpr Index stored_bytes(Index count) {
  static_assert(sizeof(Format) == 1);
  const bool is_packed = FormatTraits<Format>::bits == 4 && std::is_same_v<D, Cuda>;
  return is_packed ? ceil_divide(count, Index{2}) : count;
}

/// Returns the number of scales for an `outer` × `inner` matrix whose inner dimension is reduced.
/// With two levels of scales, the array begins with the scale of the tensor, which occupies the
/// space of 16.
template <class Granularity>
constexpr Index scale_count(Index outer, Index inner) {
  if constexpr (Granularity::block_columns == 0) {
    return 1;
  } else if constexpr (Granularity::block_rows == 1) {
    return detail::tensor_scale_room<Granularity> +
           outer * ceil_divide(inner, Granularity::block_columns);
  } else {
    return detail::tensor_scale_room<Granularity> +
           ceil_divide(outer, Granularity::block_rows) *
               round_up(ceil_divide(inner, Granularity::block_columns), 4);
  }
}

/// Returns the index of the scale of element (row, column) of an `outer` × `inner` matrix, or with
/// two levels of scales that of its block.
template <class Granularity>
OCTAVO_HOST_DEVICE constexpr Index scale_index(Index row, Index column, Index outer, Index inner) {
  if constexpr (Granularity::block_columns == 0) {
    return 0;
  } else if constexpr (Granularity::block_rows == 1) {
    const Index block = column / Granularity::block_columns;
    if constexpr (!std::is_same_v<typename Granularity::Scale, float>) {
      return detail::tensor_scale_room<Granularity> +
             row * ceil_divide(inner, Granularity::block_columns) + block;
    } else {
      return block * outer + row;
    }
  } else {
    return detail::tensor_scale_room<Granularity> +
           row / Granularity::block_rows *
               round_up(ceil_divide(inner, Granularity::block_columns), 4) +
           column / Granularity::block_columns;
  }
}

/// A quantised matrix, contiguous along the dimension that a GEMM reduces.
/// @tparam Format       `E4M3`, `E5M2` or `E2M1`; see `stored_bytes`
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

/// Returns the factor of all elements of a matrix in host memory: its only scale, the upper one of
/// two levels, or 1.
template <class Format, class Granularity, Layout L>
float tensor_scale_inverse(QuantizedView<Format, Granularity, L, Cpu> view) {
  if constexpr (detail::has_tensor_scale<Granularity>) {
    float scale = 1.0f;
    std::memcpy(&scale, view.scale_inverses(), sizeof(scale));
    return scale;
  } else if constexpr (Granularity::block_columns == 0) {
    return *view.scale_inverses();
  } else {
    return 1.0f;
  }
}

/// Sets the upper one of two levels of scales of a matrix in host memory.
template <class Format, class Granularity, Layout L>
  requires detail::has_tensor_scale<Granularity>
void set_tensor_scale_inverse(QuantizedView<Format, Granularity, L, Cpu> view, float scale) {
  std::memcpy(static_cast<void*>(view.scale_inverses()), &scale, sizeof(scale));
}

}  // namespace octavo
