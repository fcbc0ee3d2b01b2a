/// @file
/// A *source* is what makes the values of an operand: the values themselves, read from memory
/// (MatrixSource), or a formula on a kernel's inputs, such as SwiGLU.
#pragma once

#include <octavo/kernels/cuda/run.cuh>

namespace octavo::detail {

/// What a source makes at once: a run in each of its parts. A source of two parts makes two
/// matrices of equal shape that stand beside each other, such as the gradients of gates and ups.
template <class T, int Parts>
struct Produced {
  Run<T> parts[Parts];
};

/// The source that reads the values from memory.
///
/// What every source has: `runs<Vectors>(row, column)` gives a thread what it needs to work down
/// the rows from there, always in the same columns. `load(i, count)` reads for the run in the i-th
/// of these rows, of which `count` elements lie within the matrix (0 or less: nothing is read), and
/// `make(i, loaded)` makes the run, with zeros beyond: so a thread has many reads under way before
/// it needs the first. Between them, all threads of the block call `await` once, which may wait for
/// what other blocks find. Offsets within a tile are of 32 bits: see require_operand_size.
template <class T>
struct MatrixSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;  ///< loads that a thread starts before it makes a run
  const T* values;                            ///< [rows, columns]
  Index columns;

  template <bool Vectors>
  struct Runs {
    const T* first;
    int stride;

    __device__ Run<T> load(int i, int count) const {
      return load_run<Vectors>(first + i * stride, count);
    }
    __device__ void await() const {}
    __device__ Produced<T, 1> make(int, const Run<T>& loaded) const { return {{loaded}}; }
  };

  /// Whether `runs` may be called with Vectors.
  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, values); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(values + row * columns + column), static_cast<int>(columns)};
  }
};

}  // namespace octavo::detail
