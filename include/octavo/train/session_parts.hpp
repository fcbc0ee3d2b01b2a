/// @file
/// The part of a session that depends on its optimizer and its ranks, but not on its model.
#pragma once

#include <octavo/train/session_optimizer.hpp>
#include <octavo/train/session_plan.hpp>
#include <octavo/train/with_tensor_parallel.hpp>

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

/// @tparam Degree  number of ranks that share the model's layers
template <class W, class G, Device D, int Degree, class OptimizerKind, class Ranks>
class PartsOfKind final : public SessionParts<W, G, D> {
  using RanksPart = RanksWithTensorParallel<Degree, W, G, D, typename Ranks::template For<W, G, D>>;

 public:
  PartsOfKind(Arena<D>& arena, const ModelRuns<W, G, D>& runs, const SessionOptions& options)
      : ranks(arena, runs, options.sharding),
        optimizer_(arena, trained(ranks.shards()),
                   options.optimizer.of<typename OptimizerKind::Settings>(), options.seed,
                   options.offload) {}

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

  [[nodiscard]] std::string optimizer_name() const override { return decltype(optimizer_)::name(); }
  [[nodiscard]] Optimizer<D>& optimizer() override { return optimizer_; }

  RanksPart ranks;

 private:
  typename OptimizerKind::template For<W, typename RanksPart::Gradient, D> optimizer_;
};

/// Creates a session's parts of this kind.
template <class Parts, class W, class G, Device D>
std::unique_ptr<SessionParts<W, G, D>> make_parts(Arena<D>& arena, const ModelRuns<W, G, D>& runs,
                                                  const SessionOptions& options) {
  return std::make_unique<Parts>(arena, runs, options);
}

}  // namespace octavo OCTAVO_ABI::detail
