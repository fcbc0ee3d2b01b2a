/// @file
/// Common parts of the two backward kernels of the built-in attention, and the kernel before them.
#pragma once

#include <octavo/attention/cuda/own/block.cuh>
#include <octavo/kernels/cuda/run.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Computes delta = Σ output · output_gradient of each query and head, with eight columns per
/// thread.
/// @tparam threads  per head: a power of two
template <int threads>
OCTAVO_KERNEL void attention_delta_kernel(const Bf16* output, const Bf16* output_gradient,
                                          float* delta, AttentionGeometry geometry) {
  const Index thread = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  const Index row = thread / threads / geometry.heads;
  const int head = static_cast<int>(thread / threads % geometry.heads);
  const int chunk = static_cast<int>(thread % threads);
  const bool exists = row < Index{geometry.sequences} * geometry.tokens;
  float sum = 0.0f;
  if (exists && chunk * 8 < geometry.head_dim) {
    const Index place =
        row * geometry.output_stride() + Index{head} * geometry.head_dim + chunk * 8;
    const uint4 a = *reinterpret_cast<const uint4*>(output + place);
    const uint4 b = *reinterpret_cast<const uint4*>(output_gradient + place);
    const std::uint32_t as[] = {a.x, a.y, a.z, a.w};
    const std::uint32_t bs[] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(__uint_as_float(as[i] << 16), __uint_as_float(bs[i] << 16), sum);
      sum = fmaf(__uint_as_float(as[i] & 0xffff0000u), __uint_as_float(bs[i] & 0xffff0000u), sum);
    }
  }
  sum = warp_sum<threads>(sum);
  if (exists && chunk == 0) {
    const int sequence = static_cast<int>(row / geometry.tokens);
    delta[geometry.statistic<true>(sequence, static_cast<int>(row % geometry.tokens), head)] = sum;
  }
}

/// Tensors of the backward.
struct AttentionBackwardArguments {
  const Bf16* qkv;
  const Bf16* output_gradient;
  const float* log_sum_exp;
  const float* delta;
  Bf16* qkv_gradient;
};

/// Four words of shared memory.
__device__ inline Fragment load_shared_words(std::uint32_t address) {
  Fragment words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.words[0]), "=r"(words.words[1]), "=r"(words.words[2]),
                 "=r"(words.words[3])
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline void store_shared(std::uint32_t address, const Fragment& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.words[0]),
               "r"(words.words[1]), "r"(words.words[2]), "r"(words.words[3])
               : "memory");
}

/// Shared memory of the two backward kernels, and how warpgroups divide a block's rows: two
/// resident tiles, two stages of two streamed tiles, and two stages of the log-sum-exps and deltas
/// of streamed queries. If the warpgroups split the products, each keeps the rows of one resident
/// tile in registers, the streamed tiles replace the resident ones, and exchanged values follow.
template <class Cores, int columns>
struct BackwardTiles {
  using Sizes = AttentionSizes<Cores, columns>;
  /// Sums of wide tiles do not fit in registers: the warpgroups then compute scores of the same 64
  /// rows, and each sums half of the columns.
  static constexpr bool divides_columns = !Sizes::is_narrow;
  static constexpr int rows = divides_columns ? mma_side : attention_rows;
  static constexpr int step_rows = Sizes::backward_rows;
  static constexpr int threads = attention_threads(attention_rows);
  static constexpr int sum_columns = divides_columns ? columns / 2 : columns;
  using Own = SharedTile<rows, columns>;
  using StreamedTile = SharedTile<step_rows, columns>;
  using Sums = Accumulator<>[sum_columns / panel_columns];
  using Place = ThreadPlace<rows>;
  static constexpr bool splits_products = Sizes::splits_products;
  static constexpr int resident = splits_products ? 0 : 2 * Own::bytes;
  static_assert(!splits_products || 2 * Own::bytes <= 4 * StreamedTile::bytes);
  static constexpr int statistics = resident + 4 * StreamedTile::bytes;
  static constexpr int exchange = statistics + 4 * step_rows * static_cast<int>(sizeof(float));
  /// Vectors of 16 bytes that a thread exchanges: probabilities in FP32, and score gradients.
  static constexpr int probability_vectors = step_rows / 8;
  static constexpr int vectors = splits_products ? probability_vectors + step_rows / mma_depth : 0;
  static constexpr int bytes = exchange + vectors * warpgroup_threads * 16 + tile_alignment;

  std::uint32_t base = shared_tiles();

  [[nodiscard]] __device__ Own own(int which) const {
    return {base + static_cast<std::uint32_t>(which * Own::bytes)};
  }
  [[nodiscard]] __device__ StreamedTile streamed(int which, int stage) const {
    return {base +
            static_cast<std::uint32_t>(resident + (2 * stage + which) * StreamedTile::bytes)};
  }
  /// Waits for the resident tiles, and loads the rows of the one that the thread's warpgroup
  /// multiplies. All threads must call it, before copies of streamed tiles.
  __device__ void load_own(Fragment (&rows_of_own)[columns / mma_depth], const Place& place) const {
    static_assert(splits_products);
    commit_copies();
    Cores::template wait_for_copies<0>();
#pragma unroll
    for (int k = 0; k < columns / mma_depth; ++k) {
      rows_of_own[k] = load_fragment(own(place.group), place.warp_row, k);
    }
    __syncthreads();
  }
  /// Computes the score gradients of both warpgroups: the first sends its probabilities to the
  /// second, which sends the score gradients back. A thread exchanges values only with the one of
  /// the same place in the other group. All threads must call it.
  /// @param products            scores in the first group, gradients of probabilities in the second
  /// @param to_probabilities    (scores) converts scores to probabilities
  /// @param to_score_gradients  (gradients, probabilities) converts gradients of probabilities
  /// @param between             (probabilities) is called before the gradients are exchanged
  template <class ToProbabilities, class ToGradients, class Between>
  __device__ void exchange_products(Accumulator<step_rows> (&products)[1], const Place& place,
                                    Fragment (&score_gradients)[step_rows / mma_depth],
                                    const ToProbabilities& to_probabilities,
                                    const ToGradients& to_score_gradients,
                                    const Between& between) const {
    const auto vector = [&](int i) {
      const int thread = static_cast<int>(threadIdx.x) % warpgroup_threads;
      return base + static_cast<std::uint32_t>(exchange + (i * warpgroup_threads + thread) * 16);
    };
    Accumulator<step_rows> probabilities[1];
    if (place.group == 0) {
      to_probabilities(products[0]);
      probabilities[0] = products[0];
#pragma unroll
      for (int i = 0; i < probability_vectors; ++i) {
        const float* v = products[0].values + 4 * i;
        store_shared(vector(i), Fragment{{__float_as_uint(v[0]), __float_as_uint(v[1]),
                                          __float_as_uint(v[2]), __float_as_uint(v[3])}});
      }
    }
    __syncthreads();
    if (place.group != 0) {
#pragma unroll
      for (int i = 0; i < probability_vectors; ++i) {
        const Fragment words = load_shared_words(vector(i));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          probabilities[0].values[4 * i + j] = __uint_as_float(words.words[j]);
        }
      }
      to_score_gradients(products[0], probabilities[0]);
      to_fragments(products, score_gradients);
#pragma unroll
      for (int k = 0; k < step_rows / mma_depth; ++k) {
        store_shared(vector(probability_vectors + k), score_gradients[k]);
      }
    }
    between(probabilities);
    __syncthreads();
    if (place.group == 0) {
#pragma unroll
      for (int k = 0; k < step_rows / mma_depth; ++k) {
        score_gradients[k] = load_shared_words(vector(probability_vectors + k));
      }
    }
  }
  /// Returns the first column that the thread's warpgroup sums.
  [[nodiscard]] static __device__ int first_column(const Place& place) {
    return divides_columns ? place.group * sum_columns : 0;
  }
  /// Returns the columns of a tile that the thread's warpgroup sums.
  template <int tile_rows>
  [[nodiscard]] static __device__ SharedTile<tile_rows, sum_columns> summed(
      SharedTile<tile_rows, columns> tile, const Place& place) {
    constexpr int panel_bytes = SharedTile<tile_rows, columns>::panel_bytes;
    return {tile.address +
            static_cast<std::uint32_t>(first_column(place) / panel_columns * panel_bytes)};
  }
  /// Writes the block's sums to memory through a resident tile. All threads of the block must call
  /// it.
  /// @param target      the tile's first value
  /// @param valid_rows  rows of the tile that exist in memory
  __device__ void store(const Sums& sums, float factor, int which, const Place& place, Bf16* target,
                        Index stride, Index valid_rows, int dim) const {
    // Products of the other warpgroup may still read the tile.
    if constexpr (divides_columns) __syncthreads();
    const float factors[2] = {factor, factor};
    const int first = first_column(place);
    store_tile(sums, factors, summed(own(which), place), place.warp_row, target + first, stride,
               valid_rows, dim - first);
  }
  /// Returns the address of a streamed query's statistic.
  [[nodiscard]] __device__ std::uint32_t statistic(int which, int stage, int query) const {
    return base +
           static_cast<std::uint32_t>(statistics + ((2 * stage + which) * step_rows + query) * 4);
  }
};

__device__ inline float2 load_shared_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}
__device__ inline void store_shared(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

}  // namespace octavo::detail
