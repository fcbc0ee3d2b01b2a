/// @file
/// Attention to cached keys and values on the `Cuda` device: blocks divide the keys, and a second
/// kernel combines their results.
#pragma once

#include <octavo/attention/cached_attention.hpp>
#include <octavo/attention/cuda/cache_splits.hpp>
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/kernels/cuda/run.cuh>

#include <cmath>
#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int cached_threads = 128;
/// Keys and values that a thread has in flight.
inline constexpr int cached_keys_in_flight = 4;
inline constexpr int combine_threads = 1024;

/// Arguments of both kernels. Scores are in units of log 2.
template <class T>
struct CachedArguments {
  const T* qkv;  ///< [rows, columns]
  const T* keys;
  const T* values;
  const std::int32_t* positions;
  T* output;           ///< [rows, heads · head_dim]
  float* sums;         ///< [rows, heads, splits, head_dim]; unused for a single split
  float2* statistics;  ///< [rows, heads, splits]: the maximum score, the sum of exponentials
  Index columns;
  int rows, capacity, splits, heads, kv_heads, head_dim;
  int window;   ///< `capacity` if there is no limit
  float scale;  ///< log2(e) times the factor of scores

  /// Returns the end of the keys that a row attends to.
  [[nodiscard]] __device__ int visible(int row) const {
    return max(1, min(positions[row] + 1, capacity));
  }
  /// Returns the first key that a row attends to.
  [[nodiscard]] __device__ int first_visible(int row) const {
    return max(0, visible(row) - window);
  }
  /// Returns the number of keys that the rows attend to: from the first key of the first row to the
  /// last key of the last row.
  [[nodiscard]] __device__ int all_keys() const { return visible(rows - 1) - first_visible(0); }
  [[nodiscard]] __device__ int split_keys() const {
    return static_cast<int>(keys_of_split(all_keys(), splits, head_dim));
  }
};

/// Returns exp2(score − base); a base of −∞ means that no key was seen.
__device__ inline float exponential_of(float score, float base) {
  return exp2f(score - (base == -INFINITY ? 0.0f : base));
}

/// Computes the outputs of `cached_queries` query rows that share a KV head, over one part of the
/// keys. Every `Lanes` threads form a stream, which processes every `streams`-th key and keeps
/// separate sums.
/// @tparam Vectors  heads consist of whole vectors
/// @tparam Lanes    threads that share a key, each with a contiguous range of it
template <bool Vectors, int Lanes, class T>
OCTAVO_KERNEL void __launch_bounds__(cached_threads, 4)
    cached_attention_kernel(const CachedArguments<T> arguments) {
  constexpr int queries = static_cast<int>(cached_queries);
  constexpr int streams = cached_threads / Lanes;
  constexpr int width = Lanes * run_size;
  constexpr int in_flight = cached_keys_in_flight;
  __shared__ alignas(16) float stream_sums[streams][queries][width];
  __shared__ float2 stream_statistics[streams][queries];
  launch_dependent_grids();
  wait_on_dependent_grids();
  const auto& a = arguments;
  const int split = static_cast<int>(blockIdx.x) % a.splits;
  const int tile = static_cast<int>(blockIdx.x) / a.splits;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = a.heads / a.kv_heads;
  const int first = tile * queries;  // row is query row / group; head is query row % group
  const int count = min(queries, a.rows * group - first);
  const int keys_per_split = a.split_keys();
  const int begin = a.first_visible(0) + split * keys_per_split;
  if (begin >= a.visible(a.rows - 1)) return;
  const int column = static_cast<int>(threadIdx.x) % Lanes * run_size;
  const int stream = static_cast<int>(threadIdx.x) / Lanes;

  Floats query[queries];
  int ends[queries];  // end of this part's keys that a query row attends to
  int end = begin;
  const int first_key = max(begin, a.first_visible(first / group));
  const int latest_begin = a.first_visible((first + count - 1) / group);
#pragma unroll
  for (int q = 0; q < queries; ++q) {
    query[q] = Floats{};
    ends[q] = 0;
    if (q >= count) continue;
    const int row = (first + q) / group;
    const int head = kv_head * group + (first + q) % group;
    query[q] = load_floats<Vectors>(a.qkv + row * a.columns + Index{head} * a.head_dim + column,
                                    a.head_dim - column);
#pragma unroll
    for (float& value : query[q].values) value *= a.scale;
    ends[q] = min(a.visible(row), begin + keys_per_split);
    end = max(end, ends[q]);
  }

  const Index stride = Index{a.kv_heads} * a.head_dim;
  const Index place = Index{kv_head} * a.head_dim + column;
  Floats sums[queries] = {};
  float largest[queries];
  float totals[queries] = {};
#pragma unroll
  for (float& one : largest) one = -INFINITY;
  for (int base = first_key + stream; base - stream < end; base += streams * in_flight) {
    Run<T> keys[in_flight];
    Run<T> values[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int key = base + i * streams;
      const int elements = key < end ? a.head_dim - column : 0;
      keys[i] = load_run<Vectors>(a.keys + key * stride + place, elements);
      values[i] = load_run<Vectors>(a.values + key * stride + place, elements);
    }
    float scores[queries][in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const Floats key = to_floats(keys[i]);
#pragma unroll
      for (int q = 0; q < queries; ++q) {
        float score = 0.0f;
#pragma unroll
        for (int j = 0; j < run_size; ++j) {
          score = fmaf(query[q].values[j], key.values[j], score);
        }
        score = warp_sum<Lanes>(score);
        scores[q][i] = base + i * streams < ends[q] ? score : -INFINITY;
      }
    }
    if (base < latest_begin) {  // windows of later rows begin later
#pragma unroll
      for (int q = 0; q < queries; ++q) {
        const int row_begin = a.first_visible((first + min(q, count - 1)) / group);
#pragma unroll
        for (int i = 0; i < in_flight; ++i) {
          if (base + i * streams < row_begin) scores[q][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int q = 0; q < queries; ++q) {
      const float before = largest[q];
#pragma unroll
      for (int i = 0; i < in_flight; ++i) largest[q] = fmaxf(largest[q], scores[q][i]);
      const float factor = exponential_of(before, largest[q]);
      totals[q] *= factor;
#pragma unroll
      for (float& value : sums[q].values) value *= factor;
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        scores[q][i] = exponential_of(scores[q][i], largest[q]);
        totals[q] += scores[q][i];
      }
    }
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const Floats value = to_floats(values[i]);
#pragma unroll
      for (int q = 0; q < queries; ++q) {
#pragma unroll
        for (int j = 0; j < run_size; ++j) {
          sums[q].values[j] = fmaf(scores[q][i], value.values[j], sums[q].values[j]);
        }
      }
    }
  }

#pragma unroll
  for (int q = 0; q < queries; ++q) {
    store_floats<true>(&stream_sums[stream][q][column], run_size, sums[q]);
    if (column == 0) stream_statistics[stream][q] = make_float2(largest[q], totals[q]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * a.head_dim; i += cached_threads) {
    const int q = i / a.head_dim;
    const int c = i % a.head_dim;
    float top = -INFINITY;
#pragma unroll
    for (int s = 0; s < streams; ++s) top = fmaxf(top, stream_statistics[s][q].x);
    float sum = 0.0f;
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < streams; ++s) {
      const float factor = exponential_of(stream_statistics[s][q].x, top);
      sum = fmaf(factor, stream_sums[s][q][c], sum);
      total = fmaf(factor, stream_statistics[s][q].y, total);
    }
    const int row = (first + q) / group;
    const Index head = Index{row} * a.heads + kv_head * group + (first + q) % group;
    if (a.splits == 1) {
      a.output[head * a.head_dim + c] = T(sum / total);
    } else {
      a.sums[(head * a.splits + split) * a.head_dim + c] = sum;
      if (c == 0) a.statistics[head * a.splits + split] = make_float2(top, total);
    }
  }
}

/// Combines the parts of one head of one row, always in the same order. Threads that share a column
/// alternate between parts.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(combine_threads)
    combine_splits_kernel(const CachedArguments<T> arguments) {
  constexpr int most = static_cast<int>(max_splits);
  __shared__ float factors[most];
  __shared__ float inverse;
  __shared__ float turns[combine_threads];
  launch_dependent_grids();
  wait_on_dependent_grids();
  const auto& a = arguments;
  const int keys_per_split = a.split_keys();
  const int used = (a.all_keys() + keys_per_split - 1) / keys_per_split;
  const Index first = Index{blockIdx.x} * a.splits;
  if (threadIdx.x < 32) {
    float2 statistics[most / 32];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < most / 32; ++i) {
      const int split = static_cast<int>(threadIdx.x) + 32 * i;
      statistics[i] = split < used ? a.statistics[first + split] : make_float2(-INFINITY, 0.0f);
      top = fmaxf(top, statistics[i].x);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    }
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < most / 32; ++i) {
      const float factor = exponential_of(statistics[i].x, top);
      factors[threadIdx.x + 32 * i] = factor;
      total = fmaf(factor, statistics[i].y, total);
    }
    total = warp_sum(total);
    if (threadIdx.x == 0) inverse = 1.0f / total;
  }
  __syncthreads();
  const int width = (a.head_dim + 31) / 32 * 32;
  const int threads = static_cast<int>(blockDim.x) / width;  // that share a column
  const int column = static_cast<int>(threadIdx.x) % width;
  float sum = 0.0f;
  if (column < a.head_dim) {
#pragma unroll 8
    for (int split = static_cast<int>(threadIdx.x) / width; split < used; split += threads) {
      sum = fmaf(factors[split], a.sums[(first + split) * a.head_dim + column], sum);
    }
  }
  turns[threadIdx.x] = sum;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= a.head_dim) return;
  float total = 0.0f;
  for (int i = 0; i < threads; ++i) total += turns[i * width + column];
  a.output[Index{blockIdx.x} * a.head_dim + column] = T(total * inverse);
}

/// The kernel for heads of this width.
template <bool Vectors, class T>
auto* cached_kernel(Index head_dim) {
  if (head_dim > 128) return cached_attention_kernel<Vectors, 32, T>;
  return head_dim <= 64 ? cached_attention_kernel<Vectors, 8, T>
                        : cached_attention_kernel<Vectors, 16, T>;
}

/// See cached_attention.
template <class T>
void cached_attention_body(TensorView<const T, 2, Cuda> qkv, HeadLayout layout,
                           const AttentionOptions& options,
                           TensorView<const std::int32_t, 1, Cuda> positions,
                           const KeyValueCache<T, Cuda>& cache, TensorView<T, 2, Cuda> output,
                           const Context<Cuda>& context) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, float>,
                "attention on Cuda supports bf16 and fp32; choose one of them");
  constexpr const char* name = "cached_attention";
  const auto [heads, kv_heads, dim] = layout;
  const Index rows = qkv.extent(0);
  require_own_attention({1, rows, layout, 0, true, options}, std::is_same_v<T, Bf16>);
  const Index capacity = cache.capacity();
  const Index window = options.window == 0 ? capacity : std::min(options.window, capacity);
  const CacheSplits cut(layout, rows, std::min(window + rows - 1, capacity));
  auto* memory = workspace_of<float>(
      context, cached_attention_workspace(layout, rows, capacity, context), name);
  const Index parts = rows * heads * cut.splits;
  const auto narrow = [](Index value) { return static_cast<int>(value); };
  const CachedArguments<T> arguments{
      qkv.data(),
      cache.keys.data(),
      cache.values.data(),
      positions.data(),
      output.data(),
      memory + 2 * parts,
      reinterpret_cast<float2*>(memory),
      layout.columns(),
      narrow(rows),
      narrow(capacity),
      narrow(cut.splits),
      narrow(heads),
      narrow(kv_heads),
      narrow(dim),
      narrow(window),
      static_cast<float>(options.scale > 0.0f
                             ? 1.4426950408889634 * static_cast<double>(options.scale)
                             : 1.4426950408889634 / std::sqrt(static_cast<double>(dim)))};
  const bool vectors = rows_are_vectors(dim, qkv.data(), cache.keys.data(), cache.values.data());
  launch_dependent(
      name, vectors ? cached_kernel<true, T>(dim) : cached_kernel<false, T>(dim),
      dim3(static_cast<unsigned>(cut.tiles * cut.splits), static_cast<unsigned>(kv_heads)),
      cached_threads, 0, context, arguments);
  if (cut.splits == 1) return;
  const Index width = round_up(dim, 32);
  launch_dependent(name, combine_splits_kernel<T>, dim3(static_cast<unsigned>(rows * heads)),
                   narrow(width * std::min(combine_threads / width, cut.splits)), 0, context,
                   arguments);
}

}  // namespace octavo::detail
