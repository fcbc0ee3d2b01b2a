/// @file
/// A model, its optimizer and their memory: training steps and evaluation.
#pragma once

#include <octavo/session/session_factory.hpp>
#include <octavo/session/session_of_model.hpp>
#include <octavo/session/session_optimizer.hpp>
#include <octavo/session/session_plan.hpp>

namespace octavo OCTAVO_ABI {

/// The session of one model type.
/// @tparam Model      a `TrainableModel`, such as `Llama<llama_tiny, Bf16, Cpu>`
/// @tparam Optimizer  a `SessionOptimizer`, such as `AdamW<MasterWeights<Fp32>, Moments<Bf16>>`
/// @tparam Ranks      the collective operations of ranks; see `SingleRank`
template <class Model, class Optimizer = AdamW<>, class Ranks = SingleRank>
class ModelSession final : public detail::SessionOfModel<Model> {
 public:
  using D = typename Model::DeviceType;

  /// A session on a single rank.
  ModelSession(const SessionOptions& options, Context<D>& context)
      : Base(options, context, nullptr, detail::factory_of<Model, Optimizer, Ranks>()) {}

  /// One of the ranks that train a model. All ranks make the same calls in the same order, with the
  /// same options, which include the number of ranks for which memory was planned; each rank passes
  /// its own batches.
  /// @param communicator  must outlive the session
  ModelSession(const SessionOptions& options, Context<D>& context, Communicator<D>& communicator)
      : Base(options, context, &communicator, detail::factory_of<Model, Optimizer, Ranks>()) {}

  /// Returns the collectives of its ranks, for tests and programs that know their type.
  [[nodiscard]] auto& collectives() {
    return static_cast<
        detail::RanksFor<tensor_degree<Model>, Ranks, typename Model::T, typename Model::G, D>&>(
        this->rank_collectives());
  }

 private:
  using Base = detail::SessionOfModel<Model>;
};

}  // namespace octavo
