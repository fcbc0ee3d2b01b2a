/// @file
/// The gradients of keys and values in the built-in attention.
#pragma once

#include <octavo/attention/cuda/own/backward.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Computes, in each block of threads, the gradients of 128 keys and values of one KV head, or of
/// 64 in wide tiles, over all queries of the group's heads in a fixed order. Products are
/// transposed: rows are keys.
/// @tparam bounded  whether documents or a window hide keys: queries that see none are skipped
template <class Cores, int columns, bool bounded>
__device__ __forceinline__ void attention_key_gradient_block(
    const AttentionBackwardArguments& arguments, const AttentionGeometry& geometry) {
  const int tokens = geometry.tokens;
  const int kv_heads = geometry.kv_heads;
  const int dim = geometry.head_dim;
  using Tiles = BackwardTiles<Cores, columns>;
  constexpr int threads = Tiles::threads;
  constexpr int step_rows = Tiles::step_rows;
  constexpr int query_count = Tiles::Sizes::backward_queries;  // of a product
  constexpr bool in_registers = Tiles::Sizes::keys_in_registers;
  const Tiles tiles;
  const typename Tiles::Place place;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int sequence = static_cast<int>(blockIdx.x) / kv_heads;
  const int first = static_cast<int>(blockIdx.y) * Tiles::rows;
  const auto end_of = [&](int row) {
    return geometry.end<bounded>(sequence, min(first + row, tokens - 1));
  };
  const int end = end_of(Tiles::rows - 1);  // end of the queries that attend to one of the keys
  const int first_end = end_of(0);
  const int ends[2] = {end_of(place.row), end_of(place.row + 8)};
  const int steps_per_head = (end - first + step_rows - 1) / step_rows;
  const int steps = steps_per_head * geometry.group();
  const Index stride = geometry.stride();

  const auto head_of = [&](int step) { return kv_head * geometry.group() + step / steps_per_head; };
  const auto query_of = [&](int step) { return first + step % steps_per_head * step_rows; };
  const auto copy_step = [&](int step) {
    if (step < steps) {
      const int head = head_of(step);
      const int query = query_of(step);
      copy_tile<threads>(tiles.streamed(0, step % 2),
                         arguments.qkv + geometry.query(sequence, query, head), stride,
                         tokens - query, dim);
      copy_tile<threads>(tiles.streamed(1, step % 2),
                         arguments.output_gradient + geometry.output(sequence, query, head),
                         geometry.output_stride(), tokens - query, dim);
    }
    commit_copies();
  };
  // The first 64 threads fetch log-sum-exps, the next 64 deltas. A query beyond the sequence has
  // probability 0 everywhere.
  const int fetched = static_cast<int>(threadIdx.x) / step_rows;
  const int fetched_query = static_cast<int>(threadIdx.x) % step_rows;
  const auto fetch_statistic = [&](int step) {
    if (fetched > 1 || step >= steps) return 0.0f;
    const int query = query_of(step) + fetched_query;
    if (query >= tokens) return fetched == 0 ? INFINITY : 0.0f;
    const Index from = geometry.statistic<bounded>(sequence, query, head_of(step));
    return fetched == 0 ? arguments.log_sum_exp[from] * log2_e : arguments.delta[from];
  };
  const auto keep_statistic = [&](int step, float value) {
    if (fetched <= 1) store_shared(tiles.statistic(fetched, step % 2, fetched_query), value);
  };

  copy_tile<threads>(tiles.own(0), arguments.qkv + geometry.key(sequence, first, kv_head), stride,
                     tokens - first, dim);
  copy_tile<threads>(tiles.own(1), arguments.qkv + geometry.value(sequence, first, kv_head), stride,
                     tokens - first, dim);
  constexpr int own_fragments = Tiles::splits_products ? columns / mma_depth : 1;
  Fragment own_rows[own_fragments] = {};  // of keys or values
  if constexpr (Tiles::splits_products) tiles.load_own(own_rows, place);
  copy_step(0);
  keep_statistic(0, fetch_statistic(0));

  constexpr int fragments = in_registers ? columns / mma_depth : 1;
  Fragment keys[fragments] = {};
  Fragment values[fragments] = {};
  if constexpr (in_registers) {
    Cores::template wait_for_copies<0>();
#pragma unroll
    for (int k = 0; k < fragments; ++k) {
      keys[k] = load_fragment(tiles.own(0), place.warp_row, k);
      values[k] = load_fragment(tiles.own(1), place.warp_row, k);
    }
  }
  typename Tiles::Sums key_sums;
  typename Tiles::Sums value_sums;
  set_zero(key_sums);
  set_zero(value_sums);
  const float scale = geometry.scale() * log2_e;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    Cores::template wait_for_copies<0>();
    copy_step(step + 1);
    const float statistic = fetch_statistic(step + 1);
    const auto queries = tiles.streamed(0, stage);
    const auto output_gradients = tiles.streamed(1, stage);

#pragma unroll 1
    for (int row = 0; row < step_rows; row += query_count) {
      const int query = query_of(step) + row;
      // Query minus key, as far as it depends on the position in the tile.
      const int distance = query + place.column - first - place.row;
      const bool needs_mask = query < first + place.group_row + mma_side;
      const bool needs_bounds_mask = bounded && query + query_count > first_end;
      const auto to_probabilities = [&](Accumulator<query_count>& products) {
#pragma unroll
        for (int j = 0; j < query_count / 8; ++j) {
          const float2 sums =
              load_shared_pair(tiles.statistic(0, stage, row + 8 * j + place.column));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& value = products.values[4 * j + i];
            value = fast_exp2(fmaf(value, scale, -(i % 2 == 0 ? sums.x : sums.y)));
            if (needs_mask && distance + 8 * j + i % 2 < i / 2 * 8) value = 0.0f;
            if (needs_bounds_mask && query + place.column + 8 * j + i % 2 >= ends[i / 2])
              value = 0.0f;
          }
        }
      };
      const auto to_score_gradients = [&](Accumulator<query_count>& products,
                                          const Accumulator<query_count>& probabilities) {
#pragma unroll
        for (int j = 0; j < query_count / 8; ++j) {
          const float2 deltas =
              load_shared_pair(tiles.statistic(1, stage, row + 8 * j + place.column));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& value = products.values[4 * j + i];
            value = probabilities.values[4 * j + i] * (value - (i % 2 == 0 ? deltas.x : deltas.y));
          }
        }
      };
      const auto add_values = [&](const auto& probabilities) {
        start_sums<Cores>(value_sums, probabilities, Tiles::summed(output_gradients, place), row);
      };
      if constexpr (Tiles::splits_products) {
        Accumulator<query_count> products[1];
        start_scores<Cores>(products[0], own_rows, tiles.streamed(place.group, stage), row);
        Fragment score_gradients[query_count / mma_depth];
        tiles.exchange_products(products, place, score_gradients, to_probabilities,
                                to_score_gradients, [&](const auto& probabilities) {
                                  Fragment fragments_of[query_count / mma_depth];
                                  to_fragments(probabilities, fragments_of);
                                  add_values(fragments_of);
                                });
        start_sums<Cores>(key_sums, score_gradients, Tiles::summed(queries, place), row);
        keep_statistic(step + 1, statistic);
      } else {
        Accumulator<query_count> scores[1];
        Accumulator<query_count> probability_gradients[1];
        Cores::begin_mma(scores, probability_gradients);
        if constexpr (in_registers) {
          start_scores<Cores>(scores[0], keys, queries, row);
          Cores::commit_mma();
          start_scores<Cores>(probability_gradients[0], values, output_gradients, row);
        } else {
          start_scores<Cores>(scores[0], tiles.own(0), place.group_row, queries, row);
          Cores::commit_mma();
          start_scores<Cores>(probability_gradients[0], tiles.own(1), place.group_row,
                              output_gradients, row);
        }
        Cores::commit_mma();
        Cores::template wait_for_mma<1>(scores);

        to_probabilities(scores[0]);
        Fragment probabilities[query_count / mma_depth];
        to_fragments(scores, probabilities);
        Cores::begin_mma(probabilities, value_sums);
        add_values(probabilities);
        Cores::commit_mma();
        Cores::template wait_for_mma<1>(probability_gradients);
        to_score_gradients(probability_gradients[0], scores[0]);
        Fragment score_gradients[query_count / mma_depth];
        to_fragments(probability_gradients, score_gradients);
        Cores::begin_mma(score_gradients, key_sums);
        start_sums<Cores>(key_sums, score_gradients, Tiles::summed(queries, place), row);
        Cores::commit_mma();
        if (row + query_count == step_rows) keep_statistic(step + 1, statistic);
        Cores::template wait_for_mma<0>(value_sums, key_sums, probabilities, score_gradients);
      }
    }
  }

  tiles.store(key_sums, geometry.scale(), 0, place,
              arguments.qkv_gradient + geometry.key(sequence, first, kv_head), stride,
              tokens - first, dim);
  tiles.store(value_sums, 1.0f, 1, place,
              arguments.qkv_gradient + geometry.value(sequence, first, kv_head), stride,
              tokens - first, dim);
}

/// Runs attention_key_gradient_block on GPUs that have the tensor cores.
template <class Cores, int columns, bool bounded>
OCTAVO_KERNEL __launch_bounds__(
    BackwardTiles<Cores, columns>::threads,
    AttentionSizes<Cores, columns>::
        blocks) void attention_key_gradient_kernel(AttentionBackwardArguments arguments,
                                                   AttentionGeometry geometry) {
  if constexpr (Cores::exist) {
    attention_key_gradient_block<Cores, columns, bounded>(arguments, geometry);
  } else {
    __trap();
  }
}

}  // namespace octavo::detail
