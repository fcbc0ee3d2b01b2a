/// @file
/// The part of a parameter that a rank has if ranks share layers.
#pragma once

#include <octavo/core/context.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI {

/// One rank's part of a parameter, [rows, columns] as a whole, in a tensor-parallel group: an equal
/// share of each of up to three groups of rows, such as queries, keys and values, or of the
/// columns. By default, the whole parameter.
struct ParameterPart {
  int degree = 1;                 ///< number of ranks that have a part each; 1: the whole
  int rank = 0;                   ///< this rank's index among them
  std::array<Index, 3> groups{};  ///< this rank's rows of each group; all 0: columns are divided
  Index live_rows = 0;            ///< of the whole; later rows are padding

  /// Returns a share of the columns.
  static constexpr ParameterPart columns(int degree, int rank, Index rows) {
    return {degree, rank, {}, rows};
  }
  /// Returns a share of each group of rows.
  static constexpr ParameterPart rows(int degree, int rank, std::array<Index, 3> groups) {
    return {degree, rank, groups, degree * (groups[0] + groups[1] + groups[2])};
  }

  [[nodiscard]] constexpr bool is_whole() const { return degree == 1; }
  [[nodiscard]] constexpr bool divides_columns() const { return groups[0] == 0; }

  /// Returns the rows and columns of the whole.
  /// @param shape  of this rank's part
  template <class Shape>
  [[nodiscard]] constexpr Shape full_shape(const Shape& shape) const {
    return divides_columns() ? Shape{shape[0], shape[1] * degree}
                             : Shape{shape[0] * degree, shape[1]};
  }

  /// Calls `body(begin, whole_begin, count)` for each contiguous range of elements, in order.
  /// `begin` is its offset in the part, and `whole_begin` its offset in the whole.
  template <class Shape, class Body>
  void for_each_stripe(const Shape& shape, const Body& body) const {
    const Index columns = shape[1];
    if (is_whole()) return body(Index{0}, Index{0}, shape[0] * columns);
    if (divides_columns()) {
      for (Index row = 0; row < shape[0]; ++row) {
        body(row * columns, (row * degree + rank) * columns, columns);
      }
      return;
    }
    Index before = 0;
    for (const Index rows : groups) {
      if (rows == 0) break;
      body(before * columns, (before * degree + rank * rows) * columns, rows * columns);
      before += rows;
    }
  }

  /// Returns the index in the whole of an element of the part.
  /// @param shape  of the part
  template <class Shape>
  [[nodiscard]] Index place_in_whole(const Shape& shape, Index element) const {
    Index found = element;
    for_each_stripe(shape, [&](Index begin, Index whole_begin, Index count) {
      if (element >= begin && element < begin + count) found = whole_begin + element - begin;
    });
    return found;
  }

  /// Returns this rank's elements, selected from those of the whole.
  template <class Element, class Shape>
  [[nodiscard]] std::vector<Element> of(std::span<const Element> whole, const Shape& shape) const {
    std::vector<Element> part(static_cast<std::size_t>(shape[0] * shape[1]));
    for_each_stripe(shape, [&](Index begin, Index whole_begin, Index count) {
      for (Index i = 0; i < count; ++i) {
        part[static_cast<std::size_t>(begin + i)] =
            whole[static_cast<std::size_t>(whole_begin + i)];
      }
    });
    return part;
  }

  friend bool operator==(const ParameterPart&, const ParameterPart&) = default;
};

}  // namespace octavo
