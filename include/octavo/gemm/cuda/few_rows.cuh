/// @file
/// Products of a few rows on the `Cuda` device: a warp for every two outputs, which reads their
/// weights once, in vectors of 16 bytes.
#pragma once

#include <octavo/gemm/cuda/few_rows_limits.hpp>
#include <octavo/gemm/few_rows.hpp>
#include <octavo/kernels/cuda/cast/convert.cuh>
#include <octavo/kernels/cuda/limits.hpp>

namespace octavo::inline OCTAVO_ABI::detail {

/// Neighbouring outputs of a warp, which share what it loads of the rows.
inline constexpr int few_rows_outputs = 2;
inline constexpr int few_rows_threads = 256;

/// Neighbouring weights that a thread reads at once: 16 bytes of BF16 or FP8.
template <class W>
struct WeightRun {
  static constexpr int parts = sizeof(W) == 1 ? 2 : 1;
  static constexpr int elements = parts * run_size;
  Run<W> runs[parts];

  /// The first `count` elements from `source`, then zeros. They are read once, so they are the
  /// first to leave the caches.
  /// @tparam Vectors  `source` is aligned to 16 bytes, `count` a multiple of `elements`
  template <bool Vectors>
  __device__ static WeightRun load(const W* source, int count) {
    WeightRun loaded{};
    if constexpr (Vectors) {
      if (count <= 0) return loaded;
      constexpr int words = Run<W>::words_a_run;
#pragma unroll
      for (int i = 0; i < parts * words; i += 4) {
        const uint4 vector = __ldcs(reinterpret_cast<const uint4*>(source) + i / 4);
        loaded.runs[i / words].words[i % words] = vector.x;
        loaded.runs[(i + 1) / words].words[(i + 1) % words] = vector.y;
        loaded.runs[(i + 2) / words].words[(i + 2) % words] = vector.z;
        loaded.runs[(i + 3) / words].words[(i + 3) % words] = vector.w;
      }
    } else {
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        loaded.runs[part] = load_run<false>(source + part * run_size, count - part * run_size);
      }
    }
    return loaded;
  }
};

/// What few_rows_kernel works on; `Scale` is that of a weight's granularity.
template <class T, class W, class Scale, class Y>
struct FewRowsArguments {
  const T* x;           ///< [rows, k]
  const W* w;           ///< [n, k]
  const Scale* scales;  ///< null for a dense weight
  Y* result;            ///< [rows, n]
  const Y* addend;      ///< [rows, n], or null
  const Y* bias;        ///< [n], or null
  Index n;
  int k, rows;
  bool reads_ahead;  ///< of the weight
};

/// Of dense weights.
struct NoScales {
  using Scale = float;
};

/// Whether a granularity has several scales in a row, which sums of parts are multiplied with.
template <class Granularity>
inline constexpr bool scales_parts = [] {
  if constexpr (std::is_same_v<Granularity, NoScales>) {
    return false;
  } else {
    return Granularity::block_columns != 0 && !std::is_same_v<Granularity, PerRow>;
  }
}();

/// The outputs of a warp; each thread sums every 32nd run of weights.
/// @tparam Vectors  rows of `x` and `w` are whole vectors
/// @tparam Rows     `rows` or more; those that are too many repeat the last
template <bool Vectors, int Rows, class Granularity, class T, class W, class Y>
OCTAVO_KERNEL void __launch_bounds__(few_rows_threads, 2)
    few_rows_kernel(const FewRowsArguments<T, W, typename Granularity::Scale, Y> arguments) {
  using Weights = WeightRun<W>;
  constexpr int outputs = few_rows_outputs;
  constexpr int step = 32 * Weights::elements;
  constexpr int in_flight = 64 / static_cast<int>(sizeof(Weights));
  constexpr int x_in_flight = Rows <= 2 ? in_flight : 1;
  const auto& [x, w, scales, result, addend, bias, n, k, rows, reads_ahead] = arguments;
  let_next_begin();
  const Index first = global_thread() / 32 * outputs;
  if (first >= n) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Index weight_rows[outputs];
  const W* weights[outputs];
#pragma unroll
  for (int o = 0; o < outputs; ++o) {
    weight_rows[o] = min(first + o, n - 1);
    weights[o] = w + weight_rows[o] * k;
  }
  Weights loaded[in_flight][outputs];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int column = begin + i * step;
#pragma unroll
      for (int o = 0; o < outputs; ++o) {
        loaded[i][o] = Weights::template load<Vectors>(weights[o] + column, k - column);
      }
    }
  };
  int begin = lane * Weights::elements;
  if (!reads_ahead) wait_for_previous();
  load(begin);
  wait_for_previous();
  // The output of this lane, and what is added to it.
  const Index out = first + lane / Rows;
  const int out_row = lane % Rows;
  const bool has_output = lane < outputs * Rows && out_row < rows && out < n;
  float added = 0.0f;
  if (has_output) {
    if (addend != nullptr) added += static_cast<float>(addend[out_row * n + out]);
    if (bias != nullptr) added += static_cast<float>(bias[out]);
  }
  float sums[outputs][Rows] = {};
  while (begin < k) {
#pragma unroll
    for (int i = 0; i < in_flight; i += x_in_flight) {
      Run<T> x_runs[x_in_flight][Weights::parts][Rows];
#pragma unroll
      for (int j = 0; j < x_in_flight; ++j) {
#pragma unroll
        for (int part = 0; part < Weights::parts; ++part) {
          const int place = begin + (i + j) * step + part * run_size;
#pragma unroll
          for (int row = 0; row < Rows; ++row) {
            x_runs[j][part][row] =
                load_run<Vectors>(x + Index{min(row, rows - 1)} * k + place, k - place);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < x_in_flight; ++j) {
        const int column = begin + (i + j) * step;
        if (column >= k) break;
        float factors[outputs];
#pragma unroll
        for (int o = 0; o < outputs; ++o) {
          factors[o] = 1.0f;
          if constexpr (scales_parts<Granularity>) {
            factors[o] =
                static_cast<float>(scales[scale_index<Granularity>(weight_rows[o], column, n, k)]);
          }
        }
#pragma unroll
        for (int part = 0; part < Weights::parts; ++part) {
          Floats wide[outputs];
#pragma unroll
          for (int o = 0; o < outputs; ++o) {
            wide[o] = weight_floats(loaded[i + j][o].runs[part]);
            if constexpr (scales_parts<Granularity>) {
#pragma unroll
              for (float& value : wide[o].values) value *= factors[o];
            }
          }
#pragma unroll
          for (int row = 0; row < Rows; ++row) {
            const Floats values = to_floats(x_runs[j][part][row]);
#pragma unroll
            for (int o = 0; o < outputs; ++o) {
#pragma unroll
              for (int e = 0; e < run_size; ++e) {
                sums[o][row] = fmaf(values.values[e], wide[o].values[e], sums[o][row]);
              }
            }
          }
        }
      }
    }
    begin += in_flight * step;
    if (begin < k) load(begin);
  }
  float mine = 0.0f;
#pragma unroll
  for (int i = 0; i < outputs * Rows; ++i) {
    const float total = warp_sum(sums[i / Rows][i % Rows]);
    if (lane == i) mine = total;
  }
  if (!has_output) return;
  if constexpr (std::is_same_v<Granularity, PerTensor>) mine *= scales[0];
  if constexpr (std::is_same_v<Granularity, PerRow>) mine *= scales[out];
  result[out_row * n + out] = Y(mine + added);
}

/// Enqueues the product. What is not in whole vectors takes one kernel for any number of rows.
template <class Granularity, class T, class W, class Y>
void enqueue_few_rows(TensorView<const T, 2, Cuda> x, const W* w,
                      const typename Granularity::Scale* scales, const GemmOutput<Y, Cuda>& y,
                      WeightReads reads, const Context<Cuda>& context) {
  constexpr const char* name = "few_rows_forward";
  const Index rows = x.extent(0);
  const Index k = x.extent(1);
  const Index n = y.result.extent(1);
  require_columns(name, k);
  if (rows == 0) return;
  const bool vectors =
      k % WeightRun<W>::elements == 0 && is_vector_aligned(x.data()) && is_vector_aligned(w);
  auto* kernel = few_rows_kernel<false, most_few_rows, Granularity, T, W, Y>;
  if (vectors) {
    kernel = rows == 1   ? few_rows_kernel<true, 1, Granularity, T, W, Y>
             : rows == 2 ? few_rows_kernel<true, 2, Granularity, T, W, Y>
             : rows <= 4 ? few_rows_kernel<true, 4, Granularity, T, W, Y>
                         : few_rows_kernel<true, most_few_rows, Granularity, T, W, Y>;
  }
  // Few outputs are spread over all multiprocessors, in smaller blocks.
  constexpr Index wanted_blocks = 264;
  const Index warps = ceil_divide(n, few_rows_outputs);
  const Index block_warps = std::clamp<Index>(warps / wanted_blocks, 1, few_rows_threads / 32);
  const FewRowsArguments<T, W, typename Granularity::Scale, Y> arguments{
      x.data(),
      w,
      scales,
      y.result.data(),
      y.addend.data(),
      y.bias.data(),
      n,
      static_cast<int>(k),
      static_cast<int>(rows),
      reads == WeightReads::ahead};
  launch_ahead(name, kernel, dim3(static_cast<unsigned>(ceil_divide(warps, block_warps))),
               static_cast<int>(32 * block_warps), context, arguments);
}

/// See few_rows_forward.
template <class T, class Y>
void few_rows_dense_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 2, Cuda> w,
                         const GemmOutput<Y, Cuda>& y, WeightReads reads,
                         const Context<Cuda>& context) {
  enqueue_few_rows<NoScales>(x, w.data(), nullptr, y, reads, context);
}

template <class T, class W, class Granularity, class Y>
void few_rows_quantized_body(TensorView<const T, 2, Cuda> x,
                             QuantizedView<W, Granularity, Layout::row_major, Cuda> w,
                             const GemmOutput<Y, Cuda>& y, WeightReads reads,
                             const Context<Cuda>& context) {
  enqueue_few_rows<Granularity>(x, static_cast<const W*>(w.data()), w.scale_inverses(), y, reads,
                                context);
}

}  // namespace octavo::detail
