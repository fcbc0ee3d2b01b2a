/// @file
/// Typed views of dense tensors: pointer, shape and device.
#pragma once

#include <octavo/core/array.hpp>
#include <octavo/core/context.hpp>
#include <octavo/core/macros.hpp>

#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

template <class T, int Rank, Device D>
class TensorView;

namespace detail {

/// The base of writable views. An alias, because Doxygen would otherwise treat the class as its own
/// base.
template <class T, int Rank, Device D>
using ViewForReading = TensorView<const T, Rank, D>;

}  // namespace detail

/// A non-owning view of a dense row-major tensor. Trivially copyable; copies refer to the same
/// memory. A writable view converts to a read-only one: functions that take `TensorView<const T,
/// Rank, D>` accept both, and deduce `T` from either. The read-only view declares the common
/// members.
/// @tparam T     element type; const for input
/// @tparam Rank  number of dimensions
template <class T, int Rank, Device D>
class TensorView : public detail::ViewForReading<T, Rank, D> {
  using Constant = TensorView<const T, Rank, D>;

 public:
  using Element = T;
  using typename Constant::Shape;

  constexpr TensorView() = default;
  OCTAVO_HOST_DEVICE constexpr TensorView(T* data, Shape shape) : Constant(data, shape) {}

  // The memory was passed as writable.
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr T* data() const {
    return const_cast<T*>(Constant::data());
  }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr T* row(Index row) const {
    return const_cast<T*>(Constant::row(row));
  }
  [[nodiscard]] constexpr TensorView rows(Index begin, Index count) const {
    const Constant part = Constant::rows(begin, count);
    return {const_cast<T*>(part.data()), part.shape()};
  }
};

/// A read-only view.
template <class T, int Rank, Device D>
class TensorView<const T, Rank, D> {
 public:
  using Element = const T;
  using Shape = Array<Index, static_cast<std::size_t>(Rank)>;

  constexpr TensorView() = default;
  OCTAVO_HOST_DEVICE constexpr TensorView(const T* data, Shape shape)
      : data_(data), shape_(shape) {}

  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr const T* data() const { return data_; }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr const Shape& shape() const { return shape_; }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index extent(int dimension) const {
    return shape_[static_cast<std::size_t>(dimension)];
  }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr bool empty() const { return data_ == nullptr; }

  /// Returns the number of elements.
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index size() const {
    Index count = 1;
    for (const Index extent : shape_) count *= extent;
    return count;
  }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }

  /// Returns the first element of row `row`, with rows along the first dimension.
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr const T* row(Index row) const {
    return data_ + row * (size() / shape_[0]);
  }

  /// Returns rows `begin` to `begin + count` of the first dimension.
  [[nodiscard]] constexpr TensorView rows(Index begin, Index count) const {
    Shape shape = shape_;
    shape[0] = count;
    const Index stride = shape_[0] == 0 ? 0 : size() / shape_[0];
    return {data_ == nullptr ? nullptr : data_ + begin * stride, shape};
  }

 private:
  const T* data_ = nullptr;
  Shape shape_{};
};

/// Returns a text such as "[8, 128]", for messages.
template <class T, int Rank, Device D>
std::string shape_text(TensorView<const T, Rank, D> view) {
  std::string text = "[";
  for (int i = 0; i < Rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(view.extent(i));
  return text + "]";
}

/// Throws ShapeError unless the view has this shape.
template <class T, int Rank, Device D>
void check_shape(const char* operation, const char* name, TensorView<const T, Rank, D> view,
                 const typename TensorView<const T, Rank, D>::Shape& expected) {
  if (view.shape() == expected) return;
  const TensorView<const T, Rank, D> wanted{view.data(), expected};
  throw ShapeError(message(operation, ": ", name, " has shape ", shape_text(view), " but ",
                           shape_text(wanted), " is required"));
}

}  // namespace octavo
