/// @file
/// How ranks that train one model share the work: the formats that they send are types, their
/// number is not.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/formats/formats.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// What of a model each of the ranks holds a part of; all else, each of them holds whole. Losses,
/// weights and moments are the same, see `reduces_each_micro_batch`.
/// Source: Rajbhandari et al. 2019, arXiv 1910.02054.
enum class Zero {
  optimizer = 1,  ///< the optimizer's state
  gradients = 2,  ///< and gradients
  weights = 3,    ///< and weights, which are gathered for each stage that reads them
};

/// The ranks, and the part of this one. Where ranks share a model's layers (`TensorParallel`),
/// `rank` and `ranks` are of those that have the same part of the layers.
struct Sharding {
  int rank = 0;
  int ranks = 1;
  int tensor_ranks = 1;  ///< that share the layers
  int tensor_place = 0;  ///< of this rank among them
  Zero zero = Zero::optimizer;
  /// Gradients of each micro-batch are summed over ranks and then added up, in place of adding a
  /// rank's own up first. `Zero::gradients` and `Zero::weights` always do so; with it,
  /// `Zero::optimizer` has the bits of `Zero::gradients` at more than one micro-batch a step, too.
  bool reduce_each_micro_batch = false;

  /// Of all ranks.
  [[nodiscard]] int world_size() const { return ranks * tensor_ranks; }
  [[nodiscard]] int world_rank() const { return rank * tensor_ranks + tensor_place; }
  [[nodiscard]] bool shards_weights() const { return ranks > 1 && zero >= Zero::weights; }
  [[nodiscard]] bool shards_gradients() const { return ranks > 1 && zero >= Zero::gradients; }
  [[nodiscard]] bool reduces_each_micro_batch() const {
    return shards_gradients() || (ranks > 1 && reduce_each_micro_batch);
  }
};

/// As `sharding`, of one of the ranks.
/// @param degree  ranks that share each layer
/// @throws ConfigError  if ranks do not divide into groups of so many
[[nodiscard]] inline Sharding sharding_of_rank(Sharding sharding, int rank, int ranks, int degree) {
  require<ConfigError>(ranks % degree == 0, "the model is TensorParallel<", degree, ">: ", degree,
                       " ranks share its layers, but there are ", ranks, "; start a multiple of ",
                       degree);
  sharding.rank = rank / degree;
  sharding.ranks = ranks / degree;
  sharding.tensor_ranks = degree;
  sharding.tensor_place = rank % degree;
  return sharding;
}

/// The format that gradients travel in between ranks. What arrives is summed in FP32.
/// - `ReduceIn<>`: as the model makes them, BF16 but in a model in FP32; the sum is rounded to that
///   format, once.
/// - `ReduceIn<Fp32>`: likewise, but the sum stays in FP32. Nothing is gained by sending BF16
///   gradients in FP32, so they are not.
/// - `ReduceIn<E4M3>`: in blocks of 128 with a scale each (`PackedPart`), 0.52 of BF16's bytes;
///   each value is rounded once on its way, the sum once more.
template <class Format = void>
struct ReduceIn {
  static_assert(std::is_void_v<Format> || std::is_same_v<Format, Fp32> ||
                    std::is_same_v<Format, E4M3>,
                "ReduceIn: choose ReduceIn<>, ReduceIn<Fp32> or ReduceIn<E4M3>");
  static constexpr bool is_packed = std::is_same_v<Format, E4M3>;
  /// What the sums of gradients in format `G` are kept in.
  template <class G>
  using Sum = std::conditional_t<std::is_same_v<Format, Fp32>, Fp32, G>;
};

/// The format that weights travel in between ranks. Losses, weights and moments are the same.
/// - `GatherIn<>`: as they are stored, BF16 but in a model in FP32.
/// - `GatherIn<E4M3>`: those of blocks that linear layers multiply with in FP8 and by one scale a
///   tensor travel cast: each rank casts its shard, by the scale of the whole, and the others make
///   their transposed copies of what they get. All other weights travel as they are stored: those
///   of the embedding, the head and norms, biases, and what has scales of rows or blocks.
template <class Format = void>
struct GatherIn {
  static_assert(std::is_void_v<Format> || std::is_same_v<Format, E4M3>,
                "GatherIn: choose GatherIn<> or GatherIn<E4M3>");
  static constexpr bool is_cast = std::is_same_v<Format, E4M3>;
};

}  // namespace octavo
