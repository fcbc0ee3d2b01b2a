// One model in one precision, for the benchmark's list.
#pragma once

#include <octavo/cuda.cuh>
#include <train_step/registry.hpp>

#include <memory>
#include <utility>

namespace benchmarks {

/// A session and the context that it works on: BF16 weights, gradients and moments.
template <class Model, class Ranks>
struct SessionOwner {
  using Session = octavo::ModelSession<
      Model, octavo::AdamW<octavo::MasterWeights<octavo::Bf16>, octavo::Moments<octavo::Bf16>>,
      Ranks>;

  explicit SessionOwner(const Request& request) {
    context.set_deterministic(request.deterministic);
    take_gemm_plans(request.gemm_plans, context);
    session = std::make_unique<Session>(request.options, context);
  }

  octavo::Context<octavo::Cuda> context;
  std::unique_ptr<Session> session;
};

/// What makes sessions of `Model`.
template <class Model, class Ranks = octavo::OneRank>
Instance instance_of(std::string model, std::string precision) {
  return {std::move(model), std::move(precision),
          [](const Request& request) -> std::shared_ptr<octavo::TrainingSession> {
            const auto owner = std::make_shared<SessionOwner<Model, Ranks>>(request);
            return {owner, owner->session.get()};
          }};
}

}  // namespace benchmarks
