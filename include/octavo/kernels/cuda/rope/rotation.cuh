/// @file
/// The angles of rotary position embeddings, and the source of rotated rows.
#pragma once

#include <octavo/kernels/cuda/cast/source.cuh>
#include <octavo/kernels/rope.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Angles and heads, for every kernel that rotates. Sizes of one row fit 32 bits.
struct Rotation {
  const float* table;  ///< [sequence or more, head_dim]: cosines, then sines
  std::uint32_t sequence;
  std::uint32_t head_dim;
  std::uint32_t rotated_heads;
  std::uint32_t all_heads;
  float sign;  ///< 1 rotates, −1 rotates back

  [[nodiscard]] __host__ __device__ std::uint32_t half() const { return head_dim / 2; }
  [[nodiscard]] __device__ Index columns() const { return Index{all_heads} * head_dim; }
  /// Returns the cosines of a row's angles; the sines are `half()` elements later.
  [[nodiscard]] __device__ const float* angles(Index row) const {
    return table + Index{static_cast<std::uint32_t>(row) % sequence} * head_dim;
  }
  /// Whether runs never cross the middle of a head.
  [[nodiscard]] bool vectors() const { return half() % run_size == 0 && is_vector_aligned(table); }
};

inline Rotation make_rotation(const HeadLayout& layout, TensorView<const float, 2, Cuda> table,
                              Index sequence, float sign) {
  const auto narrow = [](Index value) { return static_cast<std::uint32_t>(value); };
  return {table.data(),
          narrow(sequence),
          narrow(layout.head_dim),
          narrow(layout.heads + layout.kv_heads),
          narrow(layout.all_heads()),
          sign};
}

/// Returns own · cosine + sine · partner, rounded in the same way everywhere: a quantised operand
/// is cast from exactly the values of a dense one.
/// @param sine  with its sign: the first half of a head subtracts
__device__ inline float rotated(float own, float cosine, float sine, float partner) {
  return __fmaf_rn(own, cosine, __fmul_rn(sine, partner));
}

/// The source of rotated rows that are not written back in place. Its parts are rotated by the same
/// angles, which are read once for all of them.
/// @tparam Parts  a divisor of the number of heads
template <class T, int Parts>
struct RotatedSource {
  static constexpr int parts = Parts;
  static constexpr int rounds_in_flight = 2 / Parts;
  static constexpr bool makes_zeros = true;
  const T* values;  ///< [rows, columns]
  Rotation rotation;

  /// The place of a column in its head.
  struct Place {
    bool second;            ///< whether it is in the second half
    std::uint32_t angle;    ///< index of its angle
    std::uint32_t partner;  ///< the column that it is rotated with
    bool rotates;           ///< whether the head is rotated
  };

  /// For rows in whole runs, whose elements are all in the same half of a head.
  struct VectorRuns {
    struct Loaded {
      Run<T> own[Parts], partners[Parts];
      Run<float> cosine, sine;
    };

    const T* own;
    const T* partners;
    const float* table;
    std::uint32_t row;  ///< of the table
    std::uint32_t sequence, head_dim, half;
    int stride, part_columns;
    float sign;
    bool rotates[Parts];

    __device__ Loaded load(int i, int count) const {
      Loaded loaded{};
      if (count <= 0) return loaded;
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int offset = i * stride + part * part_columns;
        loaded.own[part] = load_run<true>(own + offset, run_size);
        if (rotates[part]) loaded.partners[part] = load_run<true>(partners + offset, run_size);
      }
      std::uint32_t table_row = row + i;
      if (table_row >= sequence) table_row %= sequence;
      const float* cosines = table + Index{table_row} * head_dim;
      loaded.cosine = load_run<true>(cosines, run_size);
      loaded.sine = load_run<true>(cosines + half, run_size);
      return loaded;
    }

    __device__ Produced<T, Parts> make(int, const Loaded& loaded) const {
      Produced<T, Parts> produced;
      const Floats cosine = to_floats(loaded.cosine);
      const Floats sine = to_floats(loaded.sine);
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        produced.parts[part] = loaded.own[part];
        if (!rotates[part]) continue;
        const Floats partner = to_floats(loaded.partners[part]);
        Floats result = to_floats(loaded.own[part]);
#pragma unroll
        for (int i = 0; i < run_size; ++i) {
          result.values[i] =
              rotated(result.values[i], cosine.values[i], sign * sine.values[i], partner.values[i]);
        }
        produced.parts[part] = to_run<T>(result);
      }
      return produced;
    }
  };

  /// For any rows, element by element.
  struct ElementRuns {
    const RotatedSource& source;
    Index row;
    Index column;

    __device__ Produced<T, Parts> load(int i, int count) const {
      Produced<T, Parts> produced{};
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        Floats result{};
#pragma unroll
        for (int k = 0; k < run_size; ++k) {
          if (k < count) {
            result.values[k] = source.element(row + i, part * source.part_columns() + column + k);
          }
        }
        produced.parts[part] = to_run<T>(result);
      }
      return produced;
    }
    __device__ Produced<T, Parts> make(int, const Produced<T, Parts>& loaded) const {
      return loaded;
    }
  };

  [[nodiscard]] bool vectors() const { return rotation.vectors() && is_vector_aligned(values); }

  template <bool Vectors>
  __device__ std::conditional_t<Vectors, VectorRuns, ElementRuns> runs(Index row,
                                                                       Index column) const {
    if constexpr (Vectors) {
      const Place place = place_of(column);
      const T* first = values + row * rotation.columns();
      VectorRuns runs{opaque(first + column),
                      opaque(first + place.partner),
                      rotation.table + place.angle,
                      static_cast<std::uint32_t>(row) % rotation.sequence,
                      rotation.sequence,
                      rotation.head_dim,
                      rotation.half(),
                      static_cast<int>(rotation.columns()),
                      static_cast<int>(part_columns()),
                      place.second ? rotation.sign : -rotation.sign,
                      {}};
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        runs.rotates[part] = place_of(part * part_columns() + column).rotates;
      }
      return runs;
    } else {
      return ElementRuns{*this, row, column};
    }
  }

 private:
  [[nodiscard]] __device__ Index part_columns() const { return rotation.columns() / Parts; }

  [[nodiscard]] __device__ Place place_of(Index column) const {
    const auto c = static_cast<std::uint32_t>(column);
    const std::uint32_t half = rotation.half();
    const std::uint32_t j = c % rotation.head_dim;
    const bool second = j >= half;
    return {second, second ? j - half : j, second ? c - half : c + half,
            c / rotation.head_dim < rotation.rotated_heads};
  }

  [[nodiscard]] __device__ float element(Index row, Index column) const {
    const T* source = values + row * rotation.columns();
    const float own = static_cast<float>(source[column]);
    const Place place = place_of(column);
    if (!place.rotates) return own;
    const float* angles = rotation.angles(row) + place.angle;
    const float sine = (place.second ? rotation.sign : -rotation.sign) * angles[rotation.half()];
    return rotated(own, angles[0], sine, static_cast<float>(source[place.partner]));
  }
};

}  // namespace octavo::detail
