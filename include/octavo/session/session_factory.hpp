/// @file
/// Creates the optimizer and the ranks of a session.
#pragma once

#include <octavo/optim/optimizer.hpp>
#include <octavo/parallel/with_tensor_parallel.hpp>
#include <octavo/session/session_plan.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// An optimizer and the collectives of ranks, whose types depend on the program's choices.
template <class W, class G, Device D>
struct OptimizerAndRanks {
  std::unique_ptr<RankCollectives<W, G, D>> ranks;
  std::unique_ptr<Optimizer<D>> optimizer;
  std::string optimizer_name;
  /// The shards that this rank updates, without gradients, whose format depends on the ranks.
  std::vector<FlatShard<W, G, D>> shards;
};

/// The collectives of ranks, `Degree` of which share each layer of the model.
template <int Degree, class Ranks, class W, class G, Device D>
using RanksFor =
    std::conditional_t<Degree == 1, typename Ranks::template For<W, G, D>,
                       WithTensorParallel<Degree, W, G, D, typename Ranks::template For<W, G, D>>>;

/// Creates an optimizer and ranks, which take their memory from the arena as `SessionMemory` does.
/// This is the only function of a session that is compiled for each combination of both.
template <int Degree, class Kind, class Ranks, class W, class G, Device D>
OptimizerAndRanks<W, G, D> make_optimizer_and_ranks(Arena<D>& arena,
                                                    const ModelParameters<W, G, D>& parameters,
                                                    const SessionOptions& options) {
  using RanksType = RanksFor<Degree, Ranks, W, G, D>;
  using OptimizerType = typename Kind::template For<W, typename RanksType::Gradient, D>;
  OptimizerAndRanks<W, G, D> made;
  auto ranks = std::make_unique<RanksType>(arena, parameters, options.sharding);
  made.optimizer = std::make_unique<OptimizerType>(arena, trained(ranks->shards()),
                                                   options.optimizer.of<typename Kind::Settings>(),
                                                   options.seed, options.offload);
  made.optimizer_name = OptimizerType::name();
  for (auto& shard : ranks->shards()) {
    made.shards.push_back({shard.weights, {}, shard.begin, std::move(shard.parameters)});
  }
  made.ranks = std::move(ranks);
  return made;
}

/// Plans and creates the optimizer and the ranks of a session.
template <class W, class G, Device D>
struct SessionFactory {
  SessionMemory<W, G, D> memory;
  OptimizerAndRanks<W, G, D> (*make)(Arena<D>&, const ModelParameters<W, G, D>&,
                                     const SessionOptions&);
};

/// Returns the factory of `ModelSession<Model, Optimizer, Ranks>`.
template <class Model, class Optimizer, class Ranks>
SessionFactory<typename Model::T, typename Model::G, typename Model::DeviceType> factory_of() {
  using Memory = SessionMemoryOf<Model>;
  constexpr int degree = tensor_degree<Model>;
  return {{Memory::template of_ranks<Ranks>(degree), Memory::template of_optimizer<Optimizer>()},
          make_optimizer_and_ranks<degree, Optimizer, Ranks>};
}

}  // namespace octavo OCTAVO_ABI::detail
