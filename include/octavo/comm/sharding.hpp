/// @file
/// How ranks share the training of a model: formats are compile-time types, the number of ranks is
/// a run-time value.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/formats/formats.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// Which state is sharded among ranks; each rank stores the rest completely. Losses, weights and
/// moments do not depend on it, see `reduces_each_micro_batch`. Source: Rajbhandari et al. 2019,
/// arXiv 1910.02054.
enum class Zero {
  optimizer = 1,  ///< the optimizer's state
  gradients = 2,  ///< also the gradients
  weights = 3,    ///< also the weights, which are gathered for each stage that reads them
};

/// The number of ranks, and the index of this one. With tensor parallelism (`TensorParallel`),
/// `rank` and `ranks` count the ranks that have the same shard of the layers.
struct Sharding {
  int rank = 0;
  int ranks = 1;
  int tensor_ranks = 1;  ///< ranks that share the layers
  int tensor_rank = 0;   ///< index of this rank among them
  Zero zero = Zero::optimizer;
  /// Reduces the gradients of each micro-batch over ranks before accumulation, instead of
  /// accumulating each rank's gradients first. `Zero::gradients` and `Zero::weights` imply it. With
  /// it, `Zero::optimizer` gives the same bits as `Zero::gradients`, even with several
  /// micro-batches per step.
  bool reduce_each_micro_batch = false;

  /// Of all ranks.
  [[nodiscard]] int world_size() const { return ranks * tensor_ranks; }
  [[nodiscard]] int world_rank() const { return rank * tensor_ranks + tensor_rank; }
  [[nodiscard]] bool shards_weights() const { return ranks > 1 && zero >= Zero::weights; }
  [[nodiscard]] bool shards_gradients() const { return ranks > 1 && zero >= Zero::gradients; }
  [[nodiscard]] bool reduces_each_micro_batch() const {
    return shards_gradients() || (ranks > 1 && reduce_each_micro_batch);
  }
};

/// Returns `sharding` for one of the ranks.
/// @param degree  ranks that share each layer
/// @throws ConfigError  if the number of ranks is not a multiple of `degree`
[[nodiscard]] inline Sharding sharding_of_rank(Sharding sharding, int rank, int ranks, int degree) {
  require<ConfigError>(ranks % degree == 0, "the model is TensorParallel<", degree, ">: ", degree,
                       " ranks share its layers, but there are ", ranks,
                       "; start a number of ranks that is a multiple of ", degree);
  sharding.rank = rank / degree;
  sharding.ranks = ranks / degree;
  sharding.tensor_ranks = degree;
  sharding.tensor_rank = rank % degree;
  return sharding;
}

/// The format in which ranks send gradients. They are summed in FP32.
/// - `ReduceIn<>`: the model's format, BF16 (FP32 for an FP32 model); the sum is rounded to that
///   format once.
/// - `ReduceIn<Fp32>`: the same, but the sum stays in FP32. BF16 gradients are still sent in BF16.
/// - `ReduceIn<E4M3>`: blocks of 128 with a scale each (`PackedPart`), 0.52 of the bytes of BF16;
///   each value is rounded once for sending, and the sum once more.
template <class Format = void>
struct ReduceIn {
  static_assert(std::is_void_v<Format> || std::is_same_v<Format, Fp32> ||
                    std::is_same_v<Format, E4M3>,
                "ReduceIn: choose ReduceIn<>, ReduceIn<Fp32> or ReduceIn<E4M3>");
  static constexpr bool is_packed = std::is_same_v<Format, E4M3>;
  /// The format of the sums of gradients in format `G`.
  template <class G>
  using Sum = std::conditional_t<std::is_same_v<Format, Fp32>, Fp32, G>;
};

/// The format in which ranks send weights. Losses, weights and moments do not depend on it.
/// - `GatherIn<>`: the stored format, BF16 (FP32 for an FP32 model).
/// - `GatherIn<E4M3>`: weights of blocks that linear layers use in FP8 with one scale per tensor
/// are sent in FP8: each rank casts its shard with the scale of the whole tensor, and the receivers
/// compute transposed copies. All other weights are sent as stored: the embedding, the head, norms,
/// biases, and weights with scales per row or block.
template <class Format = void>
struct GatherIn {
  static_assert(std::is_void_v<Format> || std::is_same_v<Format, E4M3>,
                "GatherIn: choose GatherIn<> or GatherIn<E4M3>");
  static constexpr bool is_cast = std::is_same_v<Format, E4M3>;
};

}  // namespace octavo
