/// @file
/// A *source* computes the values of an operand: it reads them from memory (MatrixSource), or
/// evaluates a formula on a kernel's inputs, such as SwiGLU.
#pragma once

#include <octavo/kernels/cuda/run.cuh>

#include <concepts>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {
namespace kernels {

/// Rounds in which the threads of a block process a tile from top to bottom, each a run in every
/// 16th row.
inline constexpr int tile_rounds = 8;

/// The values that a source computes at once: a run in each part.
template <class T, int Parts>
struct Produced {
  Run<T> parts[Parts];
};

}  // namespace kernels

namespace detail {

template <class S>
concept HasParts = requires { requires S::parts >= 1; };
template <class S>
concept HasRounds =
    requires { requires S::rounds_in_flight >= 1 && tile_rounds % S::rounds_in_flight == 0; };
template <class S>
concept HasVectors = requires(const S& source) {
  { source.vectors() } -> std::same_as<bool>;
};
template <class S, bool Vectors>
concept HasRuns = requires(const S& source) { source.template runs<Vectors>(Index{}, Index{}); };
/// The state of a thread.
template <class S, bool Vectors>
using RunsOf = decltype(std::declval<const S&>().template runs<Vectors>(Index{}, Index{}));
template <class S, bool Vectors>
concept HasLoad = requires(RunsOf<S, Vectors>& runs) { runs.load(0, 0); };
template <class S, class T, bool Vectors>
concept HasMake = requires(RunsOf<S, Vectors>& runs) {
  { runs.make(0, runs.load(0, 0)) } -> std::same_as<Produced<T, S::parts>>;
};

}  // namespace detail

namespace kernels {

/// Computes the values of a matrix for kernels that write or cast them. It consists of pointers and
/// sizes, and is copied to the GPU with the launch. MatrixSource is the simplest example. The
/// members:
/// - `static constexpr int parts`: number of matrices of equal shape that it computes side by side,
///   such as 2 for the gradients of gate and up values.
/// - `static constexpr int rounds_in_flight`: number of runs of a tile that a thread starts to read
///   before it computes the first: 1, 2, 4 or 8. More of them hide more memory latency, but the
///   results of their `load` must fit the 64 registers of a thread together with the cast.
/// - `bool vectors() const`, on the host: whether rows can be read in whole runs, so that
///   `runs<true>` may be called: see rows_are_vectors.
/// - `runs<Vectors>(row, column) const`, on the GPU: returns an object that computes runs of
///   columns from `column` on, in each part, in rows from `row` on. Its members:
///   - `load(i, count)` reads for row `row + i`, with `i` below 128. `count` elements of the run
///     lie within the matrix; if it is 0 or less, nothing may be read. With `Vectors` a run lies
///     within it completely or not at all.
///   - `make(i, loaded)` computes the run of each part: Produced<T, parts>. Values beyond the
///     matrix are then set to zero.
///   - `await()`, optional: all threads of the block call it once, after the first loads and before
///     any value is computed. It may synchronise the block, or wait for results of others.
///   - `finish()`, optional: all threads of the block call it once, after all values are computed,
///     but not in the first of two passes. It may synchronise the block.
/// - `static constexpr bool makes_zeros = true`, optional: declares that computed values are zero
///   wherever `load` returns zeros beyond the matrix, which saves instructions at edges.
///
/// Return types must be explicit: the host compiler sees no body from which to deduce `auto`.
/// @tparam T  format of the values
template <class S, class T>
concept TileSource =
    std::is_trivially_copyable_v<S> && detail::HasParts<S> && detail::HasRounds<S> &&
    detail::HasVectors<S> && detail::HasRuns<S, true> && detail::HasRuns<S, false> &&
    detail::HasLoad<S, true> && detail::HasLoad<S, false> && detail::HasMake<S, T, true> &&
    detail::HasMake<S, T, false>;

}  // namespace kernels

namespace detail {

/// Reports which member a source lacks.
template <class S, class T>
struct TileSourceCheck {
  static_assert(std::is_trivially_copyable_v<S>,
                "TileSource: the source is copied to the GPU as it is; make it trivially copyable, "
                "with pointers and numbers as members");
  static_assert(HasParts<S>,
                "TileSource: the source lacks 'static constexpr int parts = 1;', the number of "
                "matrices that it computes side by side");
  static_assert(HasRounds<S>,
                "TileSource: the source lacks 'static constexpr int rounds_in_flight = 4;', the "
                "runs that a thread reads at once, which must be 1, 2, 4 or 8");
  static_assert(HasVectors<S>,
                "TileSource: the source lacks 'bool vectors() const', which returns whether rows "
                "can be read in whole runs, as rows_are_vectors(columns, addresses...) does");
  static constexpr bool runs = HasRuns<S, true> && HasRuns<S, false>;
  static_assert(runs,
                "TileSource: the source lacks 'template <bool Vectors> __device__ Runs<Vectors> "
                "runs(Index row, Index column) const', whose return type must not be auto");
  static constexpr bool loads = HasLoad<S, true> && HasLoad<S, false>;
  static_assert(loads || !runs,
                "TileSource: the result of the source's runs() lacks 'load(int i, int count)', "
                "which reads for a run and whose return type must not be auto");
  static_assert((HasMake<S, T, true> && HasMake<S, T, false>) || !loads || !HasParts<S>,
                "TileSource: the result of the source's runs() lacks 'make(int i, loaded)', which "
                "accepts the result of load() and returns Produced<T, parts>, not auto, with the "
                "operand's format T, such as Produced<Bf16, 1>");
};

/// Returns computed runs in which all elements after the first `count`, which lie within the
/// matrix, are replaced by zeros.
template <class Source, bool Vectors, class T, int Parts>
__device__ Produced<T, Parts> inside(Produced<T, Parts> produced, int count) {
  if constexpr (!requires { requires Source::makes_zeros; }) {
#pragma unroll
    for (Run<T>& run : produced.parts) {
      if constexpr (Vectors) {
        if (count <= 0) run = {};
      } else {
        run = first_elements(run, count);
      }
    }
  }
  return produced;
}

/// Calls `runs.await()`, if it exists.
template <class Runs>
__device__ void await(Runs& runs) {
  if constexpr (requires { runs.await(); }) runs.await();
}

/// Calls `runs.finish()`, if it exists.
template <class Runs>
__device__ void finish(const Runs& runs) {
  if constexpr (requires { runs.finish(); }) runs.finish();
}

}  // namespace detail

namespace kernels {

/// The source that reads the values from memory.
template <class T>
struct MatrixSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;
  static constexpr bool makes_zeros = true;
  const T* values;  ///< [rows, columns]
  Index columns;

  template <bool Vectors>
  struct Runs {
    const T* first;
    int stride;

    __device__ Run<T> load(int i, int count) const {
      return load_run<Vectors>(first + i * stride, count);
    }
    __device__ Produced<T, 1> make(int, const Run<T>& loaded) const { return {{loaded}}; }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, values); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(values + row * columns + column), static_cast<int>(columns)};
  }
};

}  // namespace kernels
}  // namespace octavo
