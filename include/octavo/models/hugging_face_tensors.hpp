/// @file
/// The list of tensors of a Hugging Face model, and the ranges of parameters that they cover.
#pragma once

#include <octavo/models/hugging_face_family.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Builds the list of a model's tensors.
class HuggingFaceTensors {
 public:
  /// Adds a tensor: `rows` rows of a parameter, from `first_row` on.
  void add(std::string theirs, std::string ours, Index rows, Index columns, Index first_row = 0) {
    tensors_.push_back({std::move(theirs), std::move(ours), first_row * columns, rows, columns});
  }
  /// Adds a tensor that is stored as [columns, rows].
  void add_transposed(std::string theirs, std::string ours, Index rows, Index columns) {
    add(std::move(theirs), std::move(ours), rows, columns);
    tensors_.back().is_transposed = true;
  }
  /// Adds a vector: `size` elements of a parameter of one row, from element `first` on.
  void add_vector(std::string theirs, std::string ours, Index size, Index first = 0) {
    tensors_.push_back({std::move(theirs), std::move(ours), first, 1, size, true});
  }
  [[nodiscard]] std::vector<HuggingFaceTensor> take() { return std::move(tensors_); }

 private:
  std::vector<HuggingFaceTensor> tensors_;
};

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
