/// @file
/// Rows of a mixture of experts on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/cuda/embedding.cuh>
#include <octavo/kernels/cuda/swiglu.cuh>
#include <octavo/kernels/experts.hpp>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int expert_threads = 256;

/// Computes where the experts' pairs begin among the sorted ones, and the offsets and tiles. One
/// block.
/// @param starts  [experts + 1]
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(expert_threads)
    expert_offsets_kernel(const std::int32_t* sorted, Index count, ExpertRows<D> rows,
                          std::int32_t* starts) {
  const Index experts = rows.experts();
  for (Index e = threadIdx.x; e <= experts; e += expert_threads) {
    Index begin = 0;  // the range contains the first pair of expert e or of a later one
    for (Index end = count; begin < end;) {
      const Index middle = (begin + end) / 2;
      if (sorted[middle] < e) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    starts[e] = static_cast<std::int32_t>(begin);
  }
  __syncthreads();
  std::int32_t* offsets = rows.offsets.data();
  if (threadIdx.x == 0) {
    Index offset = 0;
    for (Index e = 0; e < experts; ++e) {
      offsets[e] = static_cast<std::int32_t>(offset);
      offset += round_up(starts[e + 1] - starts[e], expert_tile);
    }
    offsets[experts] = static_cast<std::int32_t>(offset);
  }
  __syncthreads();
  for (Index tile = threadIdx.x; tile < rows.tiles.extent(0); tile += expert_threads) {
    const Index row = tile * expert_tile;
    Index begin = 0;  // the last expert whose rows begin at or before this row
    for (Index end = experts; end - begin > 1;) {
      const Index middle = (begin + end) / 2;
      (offsets[middle] <= row ? begin : end) = middle;
    }
    rows.tiles.data()[tile] = row < offsets[experts] ? static_cast<std::int32_t>(begin) : -1;
  }
}

/// Assigns a pair, or none, to each row.
struct PlacePairs {
  ExpertRows<Cuda> rows;
  const std::int32_t* sorted_pairs;
  const std::int32_t* starts;
  __device__ void operator()(Index row) const {
    const std::int32_t expert = rows.tiles.data()[row / expert_tile];
    std::int32_t pair = -1;
    if (expert >= 0) {
      const Index place = starts[expert] + row - rows.offsets.data()[expert];
      if (place < starts[expert + 1]) pair = sorted_pairs[place];
    }
    rows.pairs.data()[row] = pair;
    if (pair >= 0) rows.places.data()[pair] = static_cast<std::int32_t>(row);
  }
};

/// See order_by_expert. The sort is stable. When it has ended, its scratch memory is reused for the
/// starts.
inline void order_by_expert_body(TensorView<const std::int32_t, 2, Cuda> experts,
                                 const ExpertRows<Cuda>& rows, const Context<Cuda>& context) {
  constexpr const char* name = "order_by_expert";
  const Index count = experts.size();
  (void)workspace_of<std::byte>(context, expert_order_workspace(count), name);
  const SortedTokens sorted = sort_tokens({experts.data(), {count}}, rows.experts(), context);
  const Index after = sort_arrays * round_up(count, 64);
  const auto bytes = static_cast<std::size_t>(after + rows.experts() + 1) * sizeof(std::int32_t);
  auto* starts = workspace_of<std::int32_t>(context, bytes, name) + after;
  launch(name, expert_offsets_kernel<Cuda>, Index{1}, expert_threads, 0, context, sorted.tokens,
         count, rows, starts);
  for_each_index(name, rows.rows(), context, PlacePairs{rows, sorted.positions, starts});
}

/// A source that reads, for each row, the token of its pair.
template <class T>
struct ExpertCopySource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;
  static constexpr bool makes_zeros = true;
  const T* x;  ///< [tokens, columns]
  const std::int32_t* pairs;
  Index columns;
  int choices;

  template <bool Vectors>
  struct Runs {
    const T* first;
    const std::int32_t* pairs;
    Index columns;
    int choices;

    __device__ Run<T> load(int i, int count) const {
      const std::int32_t pair = count > 0 ? pairs[i] : -1;
      if (pair < 0) return {};
      return load_run<Vectors>(first + pair / choices * columns, count);
    }
    __device__ Produced<T, 1> make(int, const Run<T>& loaded) const { return {{loaded}}; }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, x); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {x + column, pairs + row, columns, choices};
  }
};

/// See copy_to_experts.
template <LinearPrecision P, OperandKind Kind, class T>
void copy_to_experts_body(TensorView<const T, 2, Cuda> x, const ExpertRows<Cuda>& rows,
                          const Operand<P, Kind, Cuda>& y, const Context<Cuda>& context) {
  const ExpertCopySource<T> source{x.data(), rows.pairs.data(), x.extent(1),
                                   static_cast<int>(rows.choices())};
  kernels::produce("copy_to_experts", source, y, context);
}

/// Sums rows: one token per block, several adjacent columns per thread.
template <bool Vectors, class T>
OCTAVO_KERNEL void sum_of_experts_kernel(const T* x, const std::int32_t* places, int choices,
                                         const T* addend, Index columns, T* y) {
  places += Index{blockIdx.x} * choices;
  for (Index column = Index{threadIdx.x} * run_size; column < columns;
       column += Index{blockDim.x} * run_size) {
    const Index count = columns - column;
    const Index at = Index{blockIdx.x} * columns + column;
    Floats sum{};
    const auto add = [&](const T* source) {
      const Floats terms = load_floats<Vectors>(source, count);
#pragma unroll
      for (int i = 0; i < run_size; ++i) sum.values[i] += terms.values[i];
    };
    for (int j = 0; j < choices; ++j) add(x + places[j] * columns + column);
    if (addend != nullptr) add(addend + at);
    store_floats<Vectors>(y + at, count, sum);
  }
}

/// See sum_of_experts.
template <class T>
void sum_of_experts_body(TensorView<const T, 2, Cuda> x, const ExpertRows<Cuda>& rows,
                         TensorView<const T, 2, Cuda> addend, TensorView<T, 2, Cuda> y,
                         const Context<Cuda>& context) {
  const Index columns = y.extent(1);
  const bool vectors = rows_are_vectors(columns, x.data(), addend.data(), y.data());
  launch("sum_of_experts",
         vectors ? sum_of_experts_kernel<true, T> : sum_of_experts_kernel<false, T>, y.extent(0),
         row_threads(columns), 0, context, x.data(), rows.places.data(),
         static_cast<int>(rows.choices()), addend.data(), columns, y.data());
}

/// The weights of rows: 0 in padding and unused rows.
struct RowWeights {
  const float* weights;
  const std::int32_t* pairs;
  [[nodiscard]] __device__ float at(Index row) const {
    const std::int32_t pair = pairs[row];
    return pair < 0 ? 0.0f : weights[pair];
  }
};

/// A source whose values are those of another times the weights of their rows.
/// @tparam Source  with a function `produced(loaded, factor)`, such as GatedSource
template <class Source, class T>
struct WeightedSource {
  static constexpr int parts = Source::parts;
  static constexpr int rounds_in_flight = Source::rounds_in_flight;
  static constexpr bool makes_zeros = true;
  Source source;
  RowWeights weights;

  struct Loaded {
    typename Source::Loaded inputs;
    float weight;
  };

  template <bool Vectors>
  struct Runs {
    typename Source::template Runs<Vectors> inputs;
    RowWeights weights;
    Index row;

    __device__ Loaded load(int i, int count) const {
      return {inputs.load(i, count), count > 0 ? weights.at(row + i) : 0.0f};
    }
    __device__ Produced<T, parts> make(int, const Loaded& loaded) const {
      return Source::produced(loaded.inputs, loaded.weight);
    }
  };

  [[nodiscard]] bool vectors() const { return source.vectors(); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {source.template runs<Vectors>(row, column), weights, row};
  }
};

/// Computes the gradients of the weights, one pair per block.
template <bool Vectors, class T>
OCTAVO_KERNEL void expert_weight_kernel(const T* y_gradient, const T* gate_up,
                                        const std::int32_t* pairs, Index ffn,
                                        float* weight_gradient) {
  const std::int32_t pair = pairs[blockIdx.x];
  if (pair < 0) return;
  const T* dy = y_gradient + Index{blockIdx.x} * ffn;
  const T* gate = gate_up + Index{blockIdx.x} * 2 * ffn;
  float sum = 0;
  for (Index column = Index{threadIdx.x} * run_size; column < ffn;
       column += Index{blockDim.x} * run_size) {
    const Floats gradients = load_floats<Vectors>(dy + column, ffn - column);
    const Floats gates = load_floats<Vectors>(gate + column, ffn - column);
    const Floats ups = load_floats<Vectors>(gate + ffn + column, ffn - column);
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      sum += gradients.values[i] * SiluGate::gated(gates.values[i], ups.values[i]);
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) weight_gradient[pair] = sum;
}

/// See experts_swiglu_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void experts_swiglu_forward_body(TensorView<const T, 2, Cuda> gate_up,
                                 TensorView<const float, 2, Cuda> weights,
                                 const ExpertRows<Cuda>& rows, const Operand<P, Kind, Cuda>& y,
                                 const Context<Cuda>& context) {
  constexpr const char* name = "experts_swiglu_forward";
  require_operand_size<P>(name, gate_up.extent(0), gate_up.extent(1));
  const WeightedSource<GatedSource<SiluGate, T>, T> source{{gate_up.data(), y.values.extent(1)},
                                                           {weights.data(), rows.pairs.data()}};
  kernels::produce(name, source, y, context);
}

/// See experts_swiglu_backward.
template <LinearPrecision P, OperandKind Kind, class T>
void experts_swiglu_backward_body(TensorView<const T, 2, Cuda> y_gradient,
                                  TensorView<const T, 2, Cuda> gate_up,
                                  TensorView<const float, 2, Cuda> weights,
                                  const ExpertRows<Cuda>& rows,
                                  const Operand<P, Kind, Cuda>& gate_up_gradient,
                                  TensorView<float, 2, Cuda> weight_gradient,
                                  const Context<Cuda>& context) {
  constexpr const char* name = "experts_swiglu_backward";
  const Index ffn = y_gradient.extent(1);
  require_operand_size<P>(name, gate_up.extent(0), gate_up.extent(1));
  const WeightedSource<GatedGradientSource<SiluGate, T>, T> source{
      {y_gradient.data(), gate_up.data(), ffn}, {weights.data(), rows.pairs.data()}};
  kernels::produce(name, source, gate_up_gradient, context);
  const bool vectors = source.vectors();
  launch(name, vectors ? expert_weight_kernel<true, T> : expert_weight_kernel<false, T>,
         rows.rows(), row_threads(ffn), 0, context, y_gradient.data(), gate_up.data(),
         rows.pairs.data(), ffn, weight_gradient.data());
}

}  // namespace octavo::detail
