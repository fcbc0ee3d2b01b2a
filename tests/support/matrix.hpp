/// @file
/// Matrices that own their memory, random values, and contexts with a workspace, for tests of
/// kernels on the `Cpu` device.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

namespace support {

using octavo::Bf16;
using octavo::Cpu;
using octavo::Index;
using octavo::TensorView;

/// What an element stands for.
template <class T>
double value_of(T element) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(element);
  } else {
    return static_cast<double>(static_cast<float>(element));
  }
}

/// A row-major matrix; as a vector, one row.
template <class T>
struct Matrix {
  Index rows = 0;
  Index columns = 0;
  std::vector<T> elements;

  Matrix(Index row_count, Index column_count, T value = T(0.0f))
      : rows(row_count),
        columns(column_count),
        elements(static_cast<std::size_t>(row_count * column_count), value) {}

  T& at(Index row, Index column) {
    return elements[static_cast<std::size_t>(row * columns + column)];
  }
  [[nodiscard]] double operator()(Index row, Index column) const {
    return value_of(elements[static_cast<std::size_t>(row * columns + column)]);
  }
  [[nodiscard]] Index size() const { return rows * columns; }

  TensorView<T, 2, Cpu> view() { return {elements.data(), {rows, columns}}; }
  [[nodiscard]] TensorView<const T, 2, Cpu> input() const {
    return {elements.data(), {rows, columns}};
  }
  TensorView<T, 1, Cpu> flat() { return {elements.data(), {size()}}; }
  [[nodiscard]] TensorView<const T, 1, Cpu> flat_input() const {
    return {elements.data(), {size()}};
  }
};

/// Normal values of this standard deviation, rounded to `T`.
template <class T>
Matrix<T> random_matrix(Index rows, Index columns, unsigned seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  Matrix<T> result(rows, columns);
  for (T& element : result.elements) element = T(normal(generator));
  return result;
}

/// The bytes of a run of elements, to compare results bit for bit.
template <class T>
std::vector<unsigned char> bytes_of(const std::vector<T>& elements) {
  const auto* begin = reinterpret_cast<const unsigned char*>(elements.data());
  return {begin, begin + elements.size() * sizeof(T)};
}

/// A context with a workspace of its own.
class ContextWithWorkspace {
 public:
  explicit ContextWithWorkspace(int threads = 2, std::size_t workspace_bytes = 0)
      : context(threads) {
    bind(workspace_bytes);
  }

  /// Gives the context a workspace of this many bytes.
  void bind(std::size_t bytes) {
    memory_.resize(bytes / sizeof(Unit) + 1);
    context.bind_workspace({reinterpret_cast<std::byte*>(memory_.data()), bytes});
  }

  octavo::Context<Cpu> context;

 private:
  /// Has a name, which nvcc 13 needs of a vector's elements; std::max_align_t has none.
  struct alignas(std::max_align_t) Unit {
    std::byte bytes[alignof(std::max_align_t)];
  };
  std::vector<Unit> memory_;
};

/// (f(x + h) − f(x − h)) / 2h, where `x` is an input of `f` that is changed for a moment.
template <class Function>
double central_difference(double& x, double h, const Function& f) {
  const double middle = x;
  x = middle + h;
  const double above = f();
  x = middle - h;
  const double below = f();
  x = middle;
  return (above - below) / (2.0 * h);
}

}  // namespace support
