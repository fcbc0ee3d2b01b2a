/// @file
/// One rank's shards of a model's parameters, and the memory of their exchange.
#pragma once

#include <octavo/kernels/packed_parts.hpp>
#include <octavo/parallel/cast_weights.hpp>
#include <octavo/parallel/single_rank.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The memory of `DataParallel`. The formats in which gradients and weights are sent are not
/// template parameters, so that it is compiled once for each format of sums.
/// @tparam Sum  format of the gradients' sums
template <class W, class G, class Sum, Device D>
class ShardedParameters : public SingleRank::Memory<W, G, D> {
  using Base = SingleRank::Memory<W, G, D>;

 public:
  using Gradient = Sum;
  using Parameters = FlatParameters<W, G, D>;

  /// @param packs  whether gradients are sent as `PackedPart`s
  /// @param casts  whether weights are sent in FP8
  ShardedParameters(Arena<D>& arena, const ModelParameters<W, G, D>& parameters,
                    const Sharding& sharding, bool packs, bool casts)
      : Base(arena, parameters, sharding), sharding_(sharding) {
    if (!shares()) return;
    Index largest = 0;
    Index rest = -1;
    for (const StageParameters<W, G, D>& stage : parameters) {
      const Parameters& flat = *stage.flat;
      require<UsageError>(flat.size() % (Parameters::alignment * sharding_.ranks) == 0,
                          "a flat buffer of ", flat.size(), " elements does not divide among ",
                          sharding_.ranks, " ranks; lay it out with ModelOptions::flat_multiple");
      const Index size = flat.size() / sharding_.ranks;
      Shared shared{&flat, shard_of(flat.weights()), {}, {}};
      if (sharding_.shards_weights()) {
        shared.weights = {arena.template allocate<W>(MemoryKind::weights, size), {size}};
      }
      if (flat.has_fp8_values()) {
        shared.cast = {stage, shared.weights, shard_of(flat.fp8_values()), sharding_};
        rest = std::max(rest, shared.cast.rest_size());
      }
      if (!flat.is_frozen()) {
        shared.gradients = {arena.template allocate<Gradient>(MemoryKind::gradients, size), {size}};
        largest = std::max(largest, flat.size());
      }
      sharded_.push_back(shared);
    }
    constexpr auto kind = MemoryKind::communication;
    if (casts && sharding_.ranks > 1) {
      require_casts(rest >= 0);
      rest_ = {arena.template allocate<W>(kind, rest), {rest}};
    }
    if (packs) {
      const Index bytes = sharding_.ranks * PackedPart::bytes(largest / sharding_.ranks);
      packed_ = {arena.template allocate<std::byte>(kind, bytes), {bytes}};
      received_ = {arena.template allocate<std::byte>(kind, bytes), {bytes}};
    } else {
      const Index bytes = largest * static_cast<Index>(sizeof(G));
      received_ = {arena.template allocate<std::byte>(kind, bytes), {bytes}};
    }
    const Index sums = sharding_.ranks * StepStatus::sums;
    sums_ = {arena.template allocate<double>(kind, sums), {sharding_.ranks, StepStatus::sums}};
  }

  [[nodiscard]] std::vector<FlatShard<W, Gradient, D>> shards() const {
    if constexpr (std::is_same_v<Gradient, G>) {
      if (!shares()) return Base::shards();
    }
    std::vector<FlatShard<W, Gradient, D>> result;
    const ModelParameters<W, G, D>& parameters = Base::parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Index begin = parameters[i].flat->size() / sharding_.ranks * sharding_.rank;
      result.push_back({sharded_[i].weights, sharded_[i].gradients, begin, parameters[i].places(),
                        parameters[i].flat->size()});
    }
    return result;
  }

 protected:
  /// A flat buffer of parameters whose work ranks share.
  struct Shared {
    const Parameters* flat;
    TensorView<W, 1, D> weights;           ///< [a shard], this rank's
    TensorView<Gradient, 1, D> gradients;  ///< [a shard], summed over ranks; none if frozen
    CastWeights<W, G, D> cast;             ///< empty if weights are sent in the storage format
  };

  /// Returns whether there is anything to send or to sum.
  [[nodiscard]] bool shares() const { return sharding_.ranks > 1 || !std::is_same_v<Gradient, G>; }
  template <class T>
  [[nodiscard]] TensorView<T, 1, D> shard_of(TensorView<T, 1, D> flat) const {
    const Index size = flat.size() / sharding_.ranks;
    return flat.rows(size * sharding_.rank, size);
  }
  Sharding sharding_;
  std::vector<Shared> sharded_;           ///< in forward order; empty if nothing is shared
  TensorView<W, 1, D> rest_;              ///< weights that are sent in addition to FP8 values
  TensorView<std::byte, 1, D> packed_;    ///< [of the largest flat buffer], empty unless packed
  TensorView<std::byte, 1, D> received_;  ///< [of the largest flat buffer], gradients from all
                                          ///< ranks
  TensorView<double, 2, D> sums_;         ///< [ranks, StepStatus::sums]
};

}  // namespace octavo OCTAVO_ABI::detail
