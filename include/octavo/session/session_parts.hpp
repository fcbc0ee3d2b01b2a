/// @file
/// The part of a session that depends on its optimizer and its ranks, but not on its model.
#pragma once

#include <octavo/parallel/with_tensor_parallel.hpp>
#include <octavo/session/session_optimizer.hpp>
#include <octavo/session/session_plan.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// An optimizer and the collective operations of ranks, without their types. `SingleRank::For`
/// documents `start`.
template <class W, class G, Device D>
class SessionParts {
 public:
  SessionParts() = default;
  SessionParts(const SessionParts&) = delete;
  SessionParts& operator=(const SessionParts&) = delete;
  virtual ~SessionParts() = default;

  [[nodiscard]] virtual StepCollectives<D>& collectives() = 0;
  [[nodiscard]] virtual StageHooks<W, G, D>& hooks() = 0;
  /// Returns the shards that this rank updates, without gradients, whose format depends on the
  /// ranks.
  [[nodiscard]] virtual std::vector<FlatShard<W, G, D>> shards() const = 0;
  /// @param group  the ranks that share the model's layers; null if none do
  virtual void start(const Context<D>& context, Communicator<D>& communicator,
                     TensorParallelGroup<D>* group) = 0;

  [[nodiscard]] virtual std::string optimizer_name() const = 0;
  [[nodiscard]] virtual Optimizer<D>& optimizer() = 0;
};

/// An optimizer and its name.
template <Device D>
struct NamedOptimizer {
  std::string name;
  std::unique_ptr<Optimizer<D>> optimizer;
};

/// Creates an optimizer of a rank's shards.
template <class W, class G, Device D>
using MakeOptimizer = NamedOptimizer<D> (*)(Arena<D>&, const std::vector<FlatShard<W, G, D>>&,
                                            const SessionOptions&);
template <class Kind, class W, class G, Device D>
NamedOptimizer<D> make_optimizer(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards,
                                 const SessionOptions& options) {
  using Type = typename Kind::template For<W, G, D>;
  return {Type::name(),
          std::make_unique<Type>(arena, shards, options.optimizer.of<typename Kind::Settings>(),
                                 options.seed, options.offload)};
}

/// The optimizer is created by a function, so that programs with several optimizers and several
/// types of ranks compile each of them once, instead of every combination.
/// @tparam Degree  number of ranks that share the model's layers
template <class W, class G, Device D, int Degree, class Ranks>
class PartsOfKind final : public SessionParts<W, G, D> {
  using RanksPart = RanksWithTensorParallel<Degree, W, G, D, typename Ranks::template For<W, G, D>>;

 public:
  /// The format of the gradients that the optimizer updates with.
  using Gradient = typename RanksPart::Gradient;

  PartsOfKind(Arena<D>& arena, const ModelRuns<W, G, D>& runs, const SessionOptions& options,
              MakeOptimizer<W, Gradient, D> make)
      : ranks(arena, runs, options.sharding),
        optimizer_(make(arena, trained(ranks.shards()), options)) {}

  [[nodiscard]] StepCollectives<D>& collectives() override { return ranks; }
  [[nodiscard]] StageHooks<W, G, D>& hooks() override { return ranks; }
  [[nodiscard]] std::vector<FlatShard<W, G, D>> shards() const override {
    std::vector<FlatShard<W, G, D>> shards;
    for (auto& shard : ranks.shards()) {
      shards.push_back({shard.weights, {}, shard.begin, std::move(shard.parameters)});
    }
    return shards;
  }
  void start(const Context<D>& context, Communicator<D>& communicator,
             [[maybe_unused]] TensorParallelGroup<D>* group) override {
    ranks.start(context, communicator);
    if constexpr (Degree != 1) ranks.share(*group);
  }

  [[nodiscard]] std::string optimizer_name() const override { return optimizer_.name; }
  [[nodiscard]] Optimizer<D>& optimizer() override { return *optimizer_.optimizer; }

  RanksPart ranks;

 private:
  NamedOptimizer<D> optimizer_;
};

/// Creates a session's parts of this kind.
template <class Parts, class OptimizerKind, class W, class G, Device D>
std::unique_ptr<SessionParts<W, G, D>> make_parts(Arena<D>& arena, const ModelRuns<W, G, D>& runs,
                                                  const SessionOptions& options) {
  return std::make_unique<Parts>(arena, runs, options,
                                 make_optimizer<OptimizerKind, W, typename Parts::Gradient, D>);
}

}  // namespace octavo OCTAVO_ABI::detail
