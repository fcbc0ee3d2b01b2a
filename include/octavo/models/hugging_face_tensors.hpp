/// @file
/// Ranges of a parameter that the tensors of a Hugging Face model cover.
#pragma once

#include <octavo/models/hugging_face_family.hpp>

#include <algorithm>
#include <cstddef>

namespace octavo OCTAVO_ABI {

/// Returns all tensors of the model in a Hugging Face folder: see HuggingFaceFamily::tensors.
[[nodiscard]] inline std::vector<HuggingFaceTensor> hugging_face_tensors(
    const ModelDescription& model) {
  return model.family->tensors(model);
}

namespace detail {

/// The intersection of a tensor with a range of a parameter's elements.
struct TensorPiece {
  Index begin = 0;  ///< in the tensor, seen as [rows, columns]
  Index count = 0;
  std::size_t place = 0;  ///< position of the first element in the requested range
};

/// Returns the intersection of a tensor with `count` elements of a parameter starting at `begin`.
inline TensorPiece piece_of(const HuggingFaceTensor& tensor, Index begin, std::size_t count) {
  const Index first = tensor.first;
  const Index from = std::max(begin, first);
  const Index end =
      std::min(begin + static_cast<Index>(count), first + tensor.rows * tensor.columns);
  if (from >= end) return {};
  return {from - first, end - from, static_cast<std::size_t>(from - begin)};
}

/// Calls `body(begin, count, place)` for each contiguous range of a stored tensor that belongs to a
/// piece: its first element in the tensor, its length, and the place of its first element in the
/// piece. In the piece, the elements are also contiguous or, with `is_transposed`, one row apart.
template <class Body>
void for_each_stored(const HuggingFaceTensor& tensor, const TensorPiece& piece, const Body& body) {
  if (!tensor.is_transposed) return body(piece.begin, piece.count, Index{0});
  const Index end = piece.begin + piece.count;
  for (Index column = 0; column < tensor.columns; ++column) {
    // First row of the piece that has this column.
    const Index first = (piece.begin - column + tensor.columns - 1) / tensor.columns;
    const Index last = (end - column + tensor.columns - 1) / tensor.columns;
    if (first >= last) continue;
    body(column * tensor.rows + first, last - first, first * tensor.columns + column - piece.begin);
  }
}

}  // namespace detail
}  // namespace octavo
