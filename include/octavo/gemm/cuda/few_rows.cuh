/// @file
/// GEMMs of a few rows on the `Cuda` device: one warp for every two outputs reads their weights
/// once, in vectors of 16 bytes.
#pragma once

#include <octavo/gemm/cuda/cached_outputs.cuh>
#include <octavo/gemm/cuda/few_rows_limits.hpp>
#include <octavo/gemm/cuda/weight_ring.cuh>
#include <octavo/gemm/few_rows.hpp>
#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/cuda/cast/convert.cuh>
#include <octavo/kernels/cuda/limits.hpp>
#include <octavo/kernels/cuda/rms_norm/rows.cuh>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int few_rows_threads = 256;

/// Arguments of few_rows_kernel; `Scale` is that of a weight's granularity.
template <class T, class W, class Scale, class Y>
struct FewRowsArguments {
  const T* x;            ///< [rows, k]
  const W* w;            ///< [n, k]
  const Scale* scales;   ///< null for a dense weight
  Y* result;             ///< [rows, n], or [rows, n / 2] if it is gated
  const Y* addend;       ///< [rows, n], or null
  const Y* bias;         ///< [n], or null
  const T* norm_weight;  ///< [k], or null if x is not normalised
  float norm_epsilon;
  Index n;
  int k, rows;
  unsigned distance;  ///< between the outputs of a warp
  bool reads_ahead;   ///< whether the weight is read ahead
  bool is_gated;
  CachedOutputs<Y> cached;
};

/// Stands for the scales of dense weights.
struct NoScales {
  using Scale = float;
};

/// Whether a granularity has several scales in a row, each applied to a partial sum.
template <class Granularity>
inline constexpr bool scales_parts = [] {
  if constexpr (std::is_same_v<Granularity, NoScales>) {
    return false;
  } else {
    return Granularity::block_columns != 0 && !std::is_same_v<Granularity, PerRow>;
  }
}();

/// Computes the outputs of a warp: adjacent ones, a gate and its up, or a rotated pair. Each thread
/// sums every 32nd group of weights.
/// @tparam Vectors  rows of `x` and `w` consist of whole vectors
/// @tparam Rows     at least `rows`; surplus rows repeat the last
template <bool Vectors, int Rows, class Granularity, class T, class W, class Y>
OCTAVO_KERNEL void __launch_bounds__(few_rows_threads, 2)
    few_rows_kernel(const FewRowsArguments<T, W, typename Granularity::Scale, Y> arguments) {
  using Weights = WeightRun<W>;
  using Ring = WeightRing<Vectors, W>;
  constexpr int outputs = few_rows_outputs;
  constexpr int step = 32 * Weights::elements;
  extern __shared__ uint4 shared[];  // the ring, the normalised row and its sums of squares
  const auto& a = arguments;
  const Index n = a.n;
  const int k = a.k;
  launch_dependent_grids();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<unsigned>(global_thread() / 32);
  const Index first_output = Index{warp / a.distance} * outputs * a.distance + warp % a.distance;
  // Warps past the last output recompute it, because the block may need them.
  const auto output_of = [&](int o) { return first_output + Index{a.distance} * o; };
  Index weight_rows[outputs];
  const W* weights[outputs];
#pragma unroll
  for (int o = 0; o < outputs; ++o) {
    weight_rows[o] = min(output_of(o), n - 1);
    weights[o] = a.w + weight_rows[o] * k;
  }
  Ring ring(shared, weights, k);
  const int begin = lane * Weights::elements;
  if (!a.reads_ahead) wait_on_dependent_grids();
#pragma unroll
  for (int i = 0; i < Ring::stages; ++i) ring.request(begin + i * step);
  wait_on_dependent_grids();
  const T* x = a.x;
  if (a.norm_weight != nullptr) {
    auto* row = reinterpret_cast<T*>(reinterpret_cast<char*>(shared) + Ring::bytes(blockDim.x));
    auto* squares = reinterpret_cast<float*>(row + (k + run_size - 1) / run_size * run_size);
    const auto write = [&](int column, int count, const Run<T>& run) {
      store_run<Vectors>(row + column, count, run);
    };
    normalise_row<Vectors>(x, a.norm_weight, 0.0f, k, a.norm_epsilon, squares, write);
    __syncthreads();
    x = row;
  }
  // The output of this lane, and its addend.
  const int lane_output = lane / Rows;
  const int lane_row = lane % Rows;
  const Index out = output_of(lane_output);
  const bool has_output = lane_output < outputs && lane_row < a.rows && out < n;
  float added = 0.0f;
  CachedOutput<Y> cached;
  if (has_output) {
    if (a.addend != nullptr) added += static_cast<float>(a.addend[lane_row * n + out]);
    if (a.bias != nullptr) added += static_cast<float>(a.bias[out]);
    if (a.cached.positions != nullptr) cached = a.cached.place(a.result, lane_row, out);
  }
  float sums[outputs][Rows] = {};
  for (int column = begin; column < k; column += step) {
    Run<T> x_runs[Weights::parts][Rows];
    const auto load_x = [&](int part) {
      const int place = column + part * run_size;
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        x_runs[part][row] =
            load_run<Vectors>(x + Index{min(row, a.rows - 1)} * k + place, k - place);
      }
    };
    // With more rows, registers cannot hold more than one part.
    constexpr bool loads_early = Rows <= 2;
    if constexpr (loads_early) {
#pragma unroll
      for (int part = 0; part < Weights::parts; ++part) load_x(part);
    }
    Weights runs[outputs];
    ring.receive(runs, column);
    float factors[outputs];
#pragma unroll
    for (int o = 0; o < outputs; ++o) {
      factors[o] = 1.0f;
      if constexpr (scales_parts<Granularity>) {
        factors[o] =
            static_cast<float>(a.scales[scale_index<Granularity>(weight_rows[o], column, n, k)]);
      }
    }
#pragma unroll
    for (int part = 0; part < Weights::parts; ++part) {
      if constexpr (!loads_early) load_x(part);
      Floats wide[outputs];
#pragma unroll
      for (int o = 0; o < outputs; ++o) {
        wide[o] = to_floats(runs[o].runs[part]);
        if constexpr (scales_parts<Granularity>) {
#pragma unroll
          for (float& value : wide[o].values) value *= factors[o];
        }
      }
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const Floats values = to_floats(x_runs[part][row]);
#pragma unroll
        for (int o = 0; o < outputs; ++o) {
#pragma unroll
          for (int e = 0; e < run_size; ++e) {
            sums[o][row] = fmaf(values.values[e], wide[o].values[e], sums[o][row]);
          }
        }
      }
    }
    ring.request(column + Ring::stages * step);
  }
  float output_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < outputs * Rows; ++i) {
    const float total = warp_sum(sums[i / Rows][i % Rows]);
    if (lane == i) output_sum = total;
  }
  if constexpr (std::is_same_v<Granularity, PerTensor>) output_sum *= a.scales[0];
  if constexpr (std::is_same_v<Granularity, PerRow>) {
    if (has_output) output_sum *= a.scales[out];
  }
  const Y result = Y(output_sum + added);
  const auto rounded = static_cast<float>(result);
  // The warp's other output.
  const float other =
      __shfl_sync(0xffffffffu, rounded, lane_output == 0 ? lane + Rows : lane - Rows);
  if (!has_output) return;
  if (a.is_gated) {
    if (lane_output == 0) a.result[lane_row * (n / 2) + out] = Y(SiluGate::gated(rounded, other));
  } else if (a.cached.positions != nullptr) {
    cached.store(result, other);
  } else {
    a.result[lane_row * n + out] = result;
  }
}

/// Enqueues the GEMM. If rows do not consist of whole vectors, one kernel handles any number of
/// rows.
template <class Granularity, class T, class W, class Y>
void enqueue_few_rows(TensorView<const T, 2, Cuda> x, const W* w,
                      const typename Granularity::Scale* scales, Index n,
                      const GemmOutput<Y, Cuda>& y, const FewRowsOptions<T, Cuda>& options,
                      const Context<Cuda>& context) {
  constexpr const char* name = "few_rows_forward";
  const Index rows = x.extent(0);
  const Index k = x.extent(1);
  const bool normalises = !options.norm.weight.empty();
  require_columns(name, k);
  constexpr Index max_outputs = Index{1} << 32;
  require<ShapeError>(n < max_outputs, name, ": a weight of ", n,
                      " rows is too large; multiply parts of fewer than ", max_outputs);
  if (rows == 0) return;
  const bool vectors = k % WeightRun<W>::elements == 0 &&
                       rows_are_vectors(k, x.data(), w, options.norm.weight.data());
  auto* kernel = few_rows_kernel<false, max_few_rows, Granularity, T, W, Y>;
  if (vectors) {
    kernel = rows == 1   ? few_rows_kernel<true, 1, Granularity, T, W, Y>
             : rows == 2 ? few_rows_kernel<true, 2, Granularity, T, W, Y>
             : rows <= 4 ? few_rows_kernel<true, 4, Granularity, T, W, Y>
                         : few_rows_kernel<true, max_few_rows, Granularity, T, W, Y>;
  }
  // If there are few outputs, smaller blocks distribute them over all multiprocessors.
  constexpr Index wanted_blocks = 264;
  const Index warps = ceil_divide(n, few_rows_outputs);
  const Index block_warps = std::clamp<Index>(warps / wanted_blocks, 1, few_rows_threads / 32);
  const Index threads = 32 * block_warps;
  std::size_t shared =
      vectors ? WeightRing<true, W>::bytes(threads) : WeightRing<false, W>::bytes(threads);
  if (normalises) {
    shared += static_cast<std::size_t>(round_up(k, run_size)) * sizeof(T) + normalise_row_bytes(k);
  }
  CachedOutputs<Y> cached;
  Index distance = options.is_gated ? n / 2 : 1;
  if constexpr (std::is_same_v<T, Y>) {
    if (!options.cached.positions.empty()) {
      require_columns(name, options.cached.layout.columns());
      cached = cached_outputs(options.cached);
      distance = options.cached.layout.head_dim / 2;
    }
  }
  const FewRowsArguments<T, W, typename Granularity::Scale, Y> arguments{
      x.data(),
      w,
      scales,
      y.result.data(),
      y.addend.data(),
      y.bias.data(),
      options.norm.weight.data(),
      options.norm.epsilon,
      n,
      static_cast<int>(k),
      static_cast<int>(rows),
      static_cast<unsigned>(distance),
      options.reads == WeightReads::ahead,
      options.is_gated,
      cached};
  launch_dependent(name, kernel, dim3(static_cast<unsigned>(ceil_divide(warps, block_warps))),
                   static_cast<int>(threads), shared, context, arguments);
}

/// See few_rows_forward.
template <class T, class Y>
void few_rows_dense_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 2, Cuda> w,
                         const GemmOutput<Y, Cuda>& y, const FewRowsOptions<T, Cuda>& options,
                         const Context<Cuda>& context) {
  enqueue_few_rows<NoScales>(x, w.data(), nullptr, w.extent(0), y, options, context);
}

template <class T, class W, class Granularity, class Y>
void few_rows_quantized_body(TensorView<const T, 2, Cuda> x,
                             QuantizedView<W, Granularity, Layout::row_major, Cuda> w,
                             const GemmOutput<Y, Cuda>& y, const FewRowsOptions<T, Cuda>& options,
                             const Context<Cuda>& context) {
  constexpr bool is_fp8 = FormatTraits<W>::bits == 8;
  static_assert(
      is_fp8,
      "inference on Cuda: GEMMs of few rows cannot read NVFP4 weights; generate in bf16 or "
      "an FP8 precision, or on Cpu");
  if constexpr (is_fp8) {
    enqueue_few_rows<Granularity>(x, static_cast<const W*>(w.data()), w.scale_inverses(), w.outer(),
                                  y, options, context);
  }
}

}  // namespace octavo::detail
