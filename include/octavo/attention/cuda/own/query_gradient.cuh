/// @file
/// The gradients of queries in the built-in attention.
#pragma once

#include <octavo/attention/cuda/own/backward.cuh>

#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// Computes, in each block of threads, the gradients of 128 queries of one head, or of 64 in wide
/// tiles, longest rows first.
/// @tparam bounded  see attention_forward_kernel
template <class Cores, int columns, bool bounded>
__device__ __forceinline__ void attention_query_gradient_block(
    const AttentionBackwardArguments& arguments, const AttentionGeometry& geometry) {
  const int tokens = geometry.tokens;
  const int heads = geometry.heads;
  const int dim = geometry.head_dim;
  using Tiles = BackwardTiles<Cores, columns>;
  constexpr int threads = Tiles::threads;
  constexpr int step_rows = Tiles::step_rows;
  constexpr bool in_registers = !Tiles::divides_columns;
  constexpr bool splits_products = Tiles::splits_products;
  const Tiles tiles;
  const typename Tiles::Place place;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int sequence = static_cast<int>(blockIdx.x) / heads;
  const int kv_head = head / geometry.group();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles::rows;
  const int steps = (min(first + Tiles::rows, tokens) + step_rows - 1) / step_rows;
  const Index stride = geometry.stride();
  const auto begin_of = [&](int row) {
    return geometry.begin<bounded>(sequence, min(first + row, tokens - 1));
  };
  const int start = begin_of(0) / step_rows;  // the first step
  const int begins[2] = {begin_of(place.row), begin_of(place.row + 8)};

  const auto copy_step = [&](int step) {
    if (step < steps) {
      const int key = step * step_rows;
      copy_tile<threads>(tiles.streamed(0, step % 2),
                         arguments.qkv + geometry.key(sequence, key, kv_head), stride, tokens - key,
                         dim);
      copy_tile<threads>(tiles.streamed(1, step % 2),
                         arguments.qkv + geometry.value(sequence, key, kv_head), stride,
                         tokens - key, dim);
    }
    commit_copies();
  };
  copy_tile<threads>(tiles.own(0), arguments.qkv + geometry.query(sequence, first, head), stride,
                     tokens - first, dim);
  copy_tile<threads>(tiles.own(1),
                     arguments.output_gradient + geometry.output(sequence, first, head),
                     geometry.output_stride(), tokens - first, dim);
  constexpr int own_fragments = splits_products ? columns / mma_depth : 1;
  Fragment own_rows[own_fragments] = {};  // of queries or the gradients of outputs
  if constexpr (splits_products) tiles.load_own(own_rows, place);
  copy_step(start);
  copy_step(start + 1);
  Cores::template wait_for_copies<1>();

  constexpr int fragments = in_registers ? columns / mma_depth : 1;
  Fragment queries[fragments] = {};
  Fragment output_gradients[fragments] = {};
  if constexpr (in_registers) {
#pragma unroll
    for (int k = 0; k < columns / mma_depth; ++k) {
      queries[k] = load_fragment(tiles.own(0), place.warp_row, k);
      output_gradients[k] = load_fragment(tiles.own(1), place.warp_row, k);
    }
  }
  float shift[2];  // subtracted from the scores, so that they become probabilities
  float delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int token = min(first + place.row + 8 * h, tokens - 1);
    const Index from = geometry.statistic<bounded>(sequence, token, head);
    shift[h] = arguments.log_sum_exp[from] * log2_e;
    delta[h] = arguments.delta[from];
  }
  typename Tiles::Sums query_sums;
  set_zero(query_sums);
  const float scale = geometry.scale() * log2_e;
  // Only the last steps have keys to hide and, with bounds, the first. A branch between the start
  // and the end of a product would allow the compiler to move the registers that it writes.
  const auto advance = [&](int step, auto needs_mask) {
    const auto keys = tiles.streamed(0, step % 2);
    const auto values = tiles.streamed(1, step % 2);
    const auto to_probabilities = [&](Accumulator<step_rows>& products) {
      if constexpr (decltype(needs_mask)::value) {
        mask_later_keys(products, first + place.row - step * step_rows - place.column);
        if constexpr (bounded) {
          const int column = step * step_rows + place.column;
          mask_earlier_keys(products, {begins[0] - column, begins[1] - column});
        }
      }
#pragma unroll
      for (int i = 0; i < step_rows / 2; ++i) {
        float& value = products.values[i];
        value = fast_exp2(fmaf(value, scale, -shift[i / 2 % 2]));
      }
    };
    const auto to_score_gradients = [&](Accumulator<step_rows>& products,
                                        const Accumulator<step_rows>& probabilities) {
#pragma unroll
      for (int i = 0; i < step_rows / 2; ++i) {
        float& value = products.values[i];
        value = probabilities.values[i] * (value - delta[i / 2 % 2]);
      }
    };
    Fragment score_gradients[step_rows / mma_depth];
    if constexpr (splits_products) {
      Accumulator<step_rows> products[1];
      start_scores<Cores>(products[0], own_rows, tiles.streamed(place.group, step % 2), 0);
      tiles.exchange_products(products, place, score_gradients, to_probabilities,
                              to_score_gradients, [](const auto&) {});
    } else {
      Accumulator<step_rows> scores[1];
      Accumulator<step_rows> probability_gradients[1];
      Cores::begin_mma(scores, probability_gradients, queries, output_gradients);
      if constexpr (in_registers) {
        start_scores<Cores>(scores[0], queries, keys, 0);
        Cores::commit_mma();
        start_scores<Cores>(probability_gradients[0], output_gradients, values, 0);
      } else {
        start_scores<Cores>(scores[0], tiles.own(0), place.group_row, keys, 0);
        Cores::commit_mma();
        start_scores<Cores>(probability_gradients[0], tiles.own(1), place.group_row, values, 0);
      }
      Cores::commit_mma();
      Cores::template wait_for_mma<1>(scores);
      to_probabilities(scores[0]);
      Cores::template wait_for_mma<0>(probability_gradients);
      to_score_gradients(probability_gradients[0], scores[0]);
      to_fragments(probability_gradients, score_gradients);
    }
    Cores::begin_mma(score_gradients, query_sums);
    start_sums<Cores>(query_sums, score_gradients, Tiles::summed(keys, place), 0);
    Cores::commit_mma();
    Cores::template wait_for_mma<0>(query_sums, score_gradients);
    __syncthreads();
    copy_step(step + 2);
    Cores::template wait_for_copies<1>();
  };
  const int bounds_mask_end = (begin_of(Tiles::rows - 1) + step_rows - 1) / step_rows;
  const int causal_mask_begin = max(start, first / step_rows);
  for (int step = start; step < causal_mask_begin; ++step) {
    if (bounded && step < bounds_mask_end) {
      advance(step, std::true_type());
    } else {
      advance(step, std::false_type());
    }
  }
  for (int step = causal_mask_begin; step < steps; ++step) advance(step, std::true_type());
  tiles.store(query_sums, geometry.scale(), 0, place,
              arguments.qkv_gradient + geometry.query(sequence, first, head), stride,
              tokens - first, dim);
}

/// Runs attention_query_gradient_block on GPUs that have the tensor cores.
template <class Cores, int columns, bool bounded>
OCTAVO_KERNEL __launch_bounds__(
    BackwardTiles<Cores, columns>::threads,
    AttentionSizes<Cores, columns>::
        blocks) void attention_query_gradient_kernel(AttentionBackwardArguments arguments,
                                                     AttentionGeometry geometry) {
  if constexpr (Cores::exist) {
    attention_query_gradient_block<Cores, columns, bounded>(arguments, geometry);
  } else {
    __trap();
  }
}

}  // namespace octavo::detail
