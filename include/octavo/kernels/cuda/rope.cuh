/// @file
/// Rotary position embedding on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/rope.hpp>

namespace octavo {
namespace detail {

/// Angles and heads, for every kernel of this file. Sizes of one row fit 32 bits.
struct Rotation {
  const float* table;  ///< [sequence or more, head_dim]: cosines, then sines
  std::uint32_t sequence;
  std::uint32_t head_dim;
  std::uint32_t rotated_heads;
  std::uint32_t all_heads;
  float sign;  ///< 1 rotates, −1 rotates back

  [[nodiscard]] __host__ __device__ std::uint32_t half() const { return head_dim / 2; }
  [[nodiscard]] __device__ Index columns() const { return Index{all_heads} * head_dim; }
  /// The cosines of a row's angles; the sines come `half()` later.
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
          narrow(layout.heads + 2 * layout.kv_heads),
          sign};
}

/// own · cosine + sine · partner, rounded alike wherever it is used: a quantised operand is cast
/// from the very values that a dense one holds.
/// @param sine  with its sign: the first half of a head subtracts
__device__ inline float rotated(float own, float cosine, float sine, float partner) {
  return __fmaf_rn(own, cosine, __fmul_rn(sine, partner));
}

/// The source of rotated rows, which are not written back to where they are read from. Its parts
/// are rotated by the same angles, which are read once for all of them.
/// @tparam Parts  a divisor of the number of heads
template <class T, int Parts>
struct RotatedSource {
  static constexpr int parts = Parts;
  static constexpr int rounds_in_flight = 2 / Parts;
  static constexpr bool makes_zeros = true;
  const T* values;  ///< [rows, columns]
  Rotation rotation;

  /// Where a column stands in its head.
  struct Place {
    bool second;            ///< in the second half
    std::uint32_t angle;    ///< number of its angle
    std::uint32_t partner;  ///< the column that it is rotated with
    bool rotates;           ///< in a head that is rotated
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

/// Heads that one thread of rotate_kernel rotates by the same angles, all in flight at once.
inline constexpr int rotated_at_once = 4;

/// Rotates a run of pairs: `first` from the first half of a head, `second` from its second half.
template <class T>
__device__ void rotate_runs(Run<T>& first, Run<T>& second, const Floats& cosine, const Floats& sine,
                            float sign) {
  const Floats a = to_floats(first);
  const Floats b = to_floats(second);
  Floats low;
  Floats high;
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    const float s = sign * sine.values[i];
    low.values[i] = rotated(a.values[i], cosine.values[i], -s, b.values[i]);
    high.values[i] = rotated(b.values[i], cosine.values[i], s, a.values[i]);
  }
  first = to_run<T>(low);
  second = to_run<T>(high);
}

/// Rotates one run of pairs in every `groups`-th head a thread; `target` may be `source`. Heads
/// from `rotated_heads` on are copied.
/// @param heads      heads to work on, the first of each row
/// @param groups     heads / `rotated_at_once`, rounded up
/// @param amax_bits  null, or raised to the bits of max |target| over these heads
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    rotate_kernel(const T* source, T* target, Index rows, const Rotation rotation,
                  std::uint32_t heads, std::uint32_t groups, std::uint32_t* amax_bits) {
  const std::uint32_t half = rotation.half();
  const std::uint32_t pairs = (half + run_size - 1) / run_size;  // runs of pairs in a head
  const auto thread = static_cast<std::uint32_t>(global_thread());
  const Index row = thread / (groups * pairs);
  const std::uint32_t group = thread / pairs % groups;
  const std::uint32_t j = thread % pairs * run_size;
  std::uint32_t magnitudes = 0;
  if (row < rows) {
    const Index count = Index{half} - j;
    const Index begin = row * rotation.columns() + j;
    Run<T> first[rotated_at_once];
    Run<T> second[rotated_at_once];
#pragma unroll
    for (int i = 0; i < rotated_at_once; ++i) {
      const std::uint32_t head = group + i * groups;
      if (head >= heads) continue;
      const Index place = begin + Index{head} * rotation.head_dim;
      first[i] = load_run<Vectors>(source + place, count);
      second[i] = load_run<Vectors>(source + place + half, count);
    }
    const Floats cosine = load_floats<Vectors>(rotation.angles(row) + j, count);
    const Floats sine = load_floats<Vectors>(rotation.angles(row) + half + j, count);
#pragma unroll
    for (int i = 0; i < rotated_at_once; ++i) {
      const std::uint32_t head = group + i * groups;
      if (head >= heads) continue;
      const Index place = begin + Index{head} * rotation.head_dim;
      const bool rotates = head < rotation.rotated_heads;
      if (rotates) rotate_runs(first[i], second[i], cosine, sine, rotation.sign);
      if (rotates || target != source) {
        store_run<Vectors>(target + place, count, first[i]);
        store_run<Vectors>(target + place + half, count, second[i]);
      }
      if constexpr (std::is_same_v<T, Bf16>) {
        magnitudes = larger_magnitudes(larger_magnitudes(magnitudes, first[i]), second[i]);
      }
    }
  }
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

/// Enqueues rotate_kernel over all that changes, or over all heads if an amax is wanted.
template <class T>
void enqueue_rotation(const char* name, const T* source, T* target, Index rows,
                      const Rotation& rotation, std::uint32_t* amax_bits,
                      const Context<Cuda>& context) {
  const bool all = source != target || amax_bits != nullptr;
  const std::uint32_t heads = all ? rotation.all_heads : rotation.rotated_heads;
  const auto groups = static_cast<std::uint32_t>(ceil_divide(heads, rotated_at_once));
  const Index threads = rows * groups * ceil_divide(Index{rotation.half()}, run_size);
  require<ShapeError>(threads < Index{1} << 32, name, ": ", rows, " rows of ", heads,
                      " heads are too many for one launch; split the rows");
  const bool vectors = rotation.vectors() && is_vector_aligned(source) && is_vector_aligned(target);
  launch(name, vectors ? rotate_kernel<true, T> : rotate_kernel<false, T>,
         ceil_divide(threads, elementwise_threads), elementwise_threads, 0, context, source, target,
         rows, rotation, heads, groups, amax_bits);
}

// ---- with normalised queries and keys -----------------------------------------------------------

inline constexpr int head_warps = elementwise_threads / 32;
/// Rows of sums of a norm weight's gradient that rope_backward makes at most.
inline constexpr Index head_norm_pieces = 512;

/// 1 / root mean square of a head, by one warp.
template <class T>
__device__ float warp_inverse_rms(const T* head, std::uint32_t head_dim, float epsilon) {
  float squares = 0;
  for (std::uint32_t j = threadIdx.x % 32; j < head_dim; j += 32) {
    const float value = static_cast<float>(head[j]);
    squares += value * value;
  }
  return 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + epsilon);
}

/// Normalises and rotates one head a warp; heads from `rotated_heads` on are copied.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    norm_rotate_kernel(const T* source, T* target, Index rows, const Rotation rotation,
                       const T* query_weight, const T* key_weight, std::uint32_t query_heads,
                       float epsilon) {
  const Index warp = global_thread() / 32;
  const Index row = warp / rotation.all_heads;
  if (row >= rows) return;
  const auto head = static_cast<std::uint32_t>(warp % rotation.all_heads);
  const Index place = row * rotation.columns() + Index{head} * rotation.head_dim;
  const std::uint32_t lane = threadIdx.x % 32;
  if (head >= rotation.rotated_heads) {
    for (std::uint32_t j = lane; j < rotation.head_dim; j += 32)
      target[place + j] = source[place + j];
    return;
  }
  const T* weight = head < query_heads ? query_weight : key_weight;
  const float inverse = warp_inverse_rms(source + place, rotation.head_dim, epsilon);
  const std::uint32_t half = rotation.half();
  const float* angles = rotation.angles(row);
  const auto normalised = [&](std::uint32_t j) {
    return static_cast<float>(source[place + j]) * inverse * static_cast<float>(weight[j]);
  };
  for (std::uint32_t j = lane; j < half; j += 32) {
    const float first = normalised(j);
    const float second = normalised(j + half);
    target[place + j] = T(rotated(first, angles[j], -angles[half + j], second));
    target[place + j + half] = T(rotated(second, angles[j], angles[half + j], first));
  }
}

/// What head_norm_backward_kernel works on: the query heads or the key heads of all rows.
template <class T>
struct HeadNormArguments {
  T* gradient;         ///< [rows, columns]: of normalised heads, turned into that of the heads
  const T* qkv;        ///< [rows, columns]
  const T* weight;     ///< [head_dim]
  float* weight_sums;  ///< [blocks, head_dim]
  Index rows;
  Index columns;
  Index first_head;
  Index heads;
  Index heads_a_block;  ///< heads of all rows, counted through, that one block works on
  std::uint32_t head_dim;
  float epsilon;
};

/// Turns the gradient of normalised heads into that of the heads, one head a warp; sums of the
/// weight's gradient stay in shared memory, those of one warp beside those of the next.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    head_norm_backward_kernel(const HeadNormArguments<T> arguments) {
  extern __shared__ float head_sums[];
  const std::uint32_t dim = arguments.head_dim;
  const std::uint32_t lane = threadIdx.x % 32;
  float* sums = head_sums + threadIdx.x / 32 * dim;
  for (std::uint32_t j = lane; j < dim; j += 32) sums[j] = 0;
  const Index begin = Index{blockIdx.x} * arguments.heads_a_block;
  const Index end = min(begin + arguments.heads_a_block, arguments.rows * arguments.heads);
  for (Index i = begin + threadIdx.x / 32; i < end; i += head_warps) {
    const Index place = i / arguments.heads * arguments.columns +
                        (arguments.first_head + i % arguments.heads) * dim;
    T* gradient = arguments.gradient + place;
    const T* head = arguments.qkv + place;
    const float inverse = warp_inverse_rms(head, dim, arguments.epsilon);
    float dot = 0;
    for (std::uint32_t j = lane; j < dim; j += 32) {
      const float product = static_cast<float>(gradient[j]) * static_cast<float>(head[j]);
      dot += product * static_cast<float>(arguments.weight[j]);
      sums[j] += product * inverse;
    }
    const float mean = warp_sum(dot) * inverse * inverse / static_cast<float>(dim);
    for (std::uint32_t j = lane; j < dim; j += 32) {
      const float g = static_cast<float>(gradient[j]) * static_cast<float>(arguments.weight[j]);
      gradient[j] = T(inverse * (g - static_cast<float>(head[j]) * mean));
    }
  }
  __syncthreads();
  for (std::uint32_t j = threadIdx.x; j < dim; j += elementwise_threads) {
    float total = 0;
    for (int warp = 0; warp < head_warps; ++warp) total += head_sums[warp * dim + j];
    arguments.weight_sums[Index{blockIdx.x} * dim + j] = total;
  }
}

/// Enqueues the backward of the normalisation of some heads.
template <class T, class G>
void enqueue_head_norm_backward(HeadNormArguments<T> arguments, G* weight_gradient,
                                const Context<Cuda>& context) {
  constexpr const char* name = "rope_backward";
  const Index dim = arguments.head_dim;
  const Index heads = arguments.rows * arguments.heads;
  arguments.heads_a_block = std::max(Index{1}, ceil_divide(heads, head_norm_pieces));
  const Index pieces = ceil_divide(heads, arguments.heads_a_block);
  arguments.weight_sums =
      workspace_of<float>(context, static_cast<std::size_t>(pieces * dim) * sizeof(float), name);
  launch(name, head_norm_backward_kernel<T>, pieces, elementwise_threads,
         static_cast<std::size_t>(head_warps * dim) * sizeof(float), context, arguments);
  add_rows(name, arguments.weight_sums, pieces, dim, weight_gradient, context);
}

}  // namespace detail

/// See rope_forward.
template <class T>
void rope_forward_body(TensorView<const T, 2, Cuda> qkv, HeadLayout layout,
                       const QkNorm<const T, Cuda>& norm, TensorView<const float, 2, Cuda> rotation,
                       Index sequence, TensorView<T, 2, Cuda> rotated,
                       const Context<Cuda>& context) {
  constexpr const char* name = "rope_forward";
  const Index rows = qkv.extent(0);
  detail::require_columns(name, layout.columns());
  const detail::Rotation angles = detail::make_rotation(layout, rotation, sequence, 1.0f);
  if (norm.query.empty()) {
    detail::enqueue_rotation(name, qkv.data(), rotated.data(), rows, angles, nullptr, context);
    return;
  }
  const Index heads = rows * (layout.heads + 2 * layout.kv_heads);
  detail::launch(name, detail::norm_rotate_kernel<T>, ceil_divide(heads, detail::head_warps),
                 detail::elementwise_threads, 0, context, qkv.data(), rotated.data(), rows, angles,
                 norm.query.data(), norm.key.data(), static_cast<std::uint32_t>(layout.heads),
                 norm.epsilon);
}

/// See rope_backward. Without a normalisation, the copies of a quantised operand are cast from
/// what is rotated on the way; otherwise the values are rotated in place, then normalised, then
/// cast. Uses the context's workspace for sums of the norms' gradients.
template <LinearPrecision P, class T, class G>
void rope_backward_body(TensorView<T, 2, Cuda> rotated_gradient, HeadLayout layout,
                        TensorView<const T, 2, Cuda> qkv, const QkNorm<const T, Cuda>& norm,
                        const QkNorm<G, Cuda>& norm_gradient,
                        TensorView<const float, 2, Cuda> rotation, Index sequence,
                        const Operand<P, OperandKind::output_gradient, Cuda>& qkv_gradient,
                        const Context<Cuda>& context) {
  constexpr const char* name = "rope_backward";
  const Index rows = rotated_gradient.extent(0);
  detail::require_operand_size<P>(name, rows, layout.columns());
  const detail::Rotation angles = detail::make_rotation(layout, rotation, sequence, -1.0f);
  T* values = qkv_gradient.values.data();
  const auto rotate = [&](std::uint32_t* amax_bits) {
    detail::enqueue_rotation(name, static_cast<const T*>(rotated_gradient.data()), values, rows,
                             angles, amax_bits, context);
  };
  if (!norm.query.empty()) {
    rotate(nullptr);
    detail::HeadNormArguments<T> arguments{
        values,       qkv.data(), norm.query.data(), nullptr,     rows, layout.columns(), 0,
        layout.heads, 0,          angles.head_dim,   norm.epsilon};
    detail::enqueue_head_norm_backward(arguments, norm_gradient.query.data(), context);
    arguments.weight = norm.key.data();
    arguments.first_head = layout.heads;
    arguments.heads = layout.kv_heads;
    detail::enqueue_head_norm_backward(arguments, norm_gradient.key.data(), context);
    quantize(qkv_gradient, context);
    return;
  }
  const auto write_copies = [&] {
    if constexpr (QuantizedPrecision<P>) {
      // Two heads at once read their angles once, if no block of scales spans both.
      using Granularity = OperandGranularity<P, OperandKind::output_gradient>;
      const detail::RotatedSource<T, 2> halves{rotated_gradient.data(), angles};
      if (halves.vectors() && angles.all_heads % 2 == 0 &&
          detail::blocks_lie_in_parts<Granularity>(2, layout.columns() / 2)) {
        detail::enqueue_cast<false>(name, halves, qkv_gradient, context);
      } else {
        const detail::RotatedSource<T, 1> whole{rotated_gradient.data(), angles};
        detail::enqueue_cast<false>(name, whole, qkv_gradient, context);
      }
    }
  };
  kernels::write_operand(name, qkv_gradient, rotate, write_copies, context);
}

}  // namespace octavo
