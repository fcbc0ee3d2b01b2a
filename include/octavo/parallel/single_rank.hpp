/// @file
/// A step on a single rank, and the members that every way of training with ranks has.
#pragma once

#include <octavo/comm/sharding.hpp>
#include <octavo/core/error.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/parallel/rank_collectives.hpp>

#include <vector>

namespace octavo OCTAVO_ABI {

/// The way in which a session trains with other ranks. `For<W, G, D>` implements it for weights in
/// W and gradients in G. A custom type derives its `For` from this one and overrides members; see
/// the examples in `tests/support` and `tests/parallel`.
///
/// All ranks must call the same functions of their sessions in the same order. The loss of a step
/// is the mean over the targets of all ranks. A rank's gradients come from its own targets, divided
/// by the number of all targets, so ranks sum gradients and do not average them. An evaluation
/// calls the hooks and returns the sum of this rank's losses; to get the sum over all ranks, add up
/// both members of `LossSum`.
struct SingleRank {
  /// The memory of ranks and each rank's share of the parameters. A plan needs only this type, so
  /// that a plan for `Cuda` can be computed without device code. For a custom type without a
  /// `Memory`, a plan constructs its `For`.
  template <class W, class G, Device D>
  class Memory {
   public:
    /// The format of the gradients that the optimizer updates with.
    using Gradient = G;
    /// Whether ranks cast weights and send each other FP8 values: see
    /// ModelOptions::gather_weights_in_fp8.
    static constexpr bool casts_weights = false;

    /// @param parameters  the model's, which outlive this object
    Memory(Arena<D>&, const ModelParameters<W, G, D>& parameters, const Sharding&)
        : parameters_(&parameters) {}

    /// Returns this rank's shard of every flat buffer, in buffer order, including empty shards.
    [[nodiscard]] std::vector<FlatShard<W, Gradient, D>> shards() const {
      std::vector<FlatShard<W, Gradient, D>> result;
      for (const StageParameters<W, G, D>& stage : *parameters_) {
        result.push_back({stage.flat->weights(), stage.flat->gradients(), 0, stage.places()});
      }
      return result;
    }

   protected:
    [[nodiscard]] const ModelParameters<W, G, D>& parameters() const { return *parameters_; }

   private:
    const ModelParameters<W, G, D>* parameters_;
  };

  /// The hooks and collective operations, which do nothing.
  template <class W, class G, Device D>
  class For : public Memory<W, G, D>, public RankCollectives<W, G, D> {
   public:
    using Memory<W, G, D>::Memory;

    /// @throws UsageError  if there is more than one rank
    void start(const Context<D>&, Communicator<D>& ranks) override {
      require<UsageError>(ranks.size() == 1,
                          "a session of SingleRank must have 1 rank, but its communicator has ",
                          ranks.size(), "; pass DataParallel<> as its third type");
    }
  };
};

namespace detail {

/// @throws UsageError  for a sharding that `SingleRank` would ignore
inline void check_single_rank(const Sharding& sharding) {
  require<UsageError>(
      sharding.ranks == 1 && sharding.zero == Zero::optimizer && !sharding.reduce_each_micro_batch,
      "SessionOptions: with SingleRank, sharding must have 1 rank, Zero::optimizer and no "
      "reduce_each_micro_batch, but has ",
      sharding.ranks, sharding.ranks == 1 ? " rank" : " ranks", ", zero ",
      static_cast<int>(sharding.zero), " and reduce_each_micro_batch ",
      sharding.reduce_each_micro_batch ? "true" : "false",
      "; pass DataParallel<> as the third type of the session or plan, or omit sharding");
}

}  // namespace detail
}  // namespace octavo
