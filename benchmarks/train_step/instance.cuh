// One model in one precision, for the benchmark's list.
#pragma once

#include <octavo/cuda.cuh>
#include <octavo/precision/named_precisions.hpp>
#ifdef OCTAVO_BENCHMARK_HAS_NCCL
#include <octavo/comm/cuda/nccl_comm.cuh>
#endif
#include <train_step/registry.hpp>

#include <memory>
#include <string>
#include <utility>

namespace benchmarks {

/// llama3_small with 8 experts, of which 2 process a token, and a dense model with the same number
/// of active parameters, except those of the routers. The width of an expert is a multiple of 128,
/// which every recipe accepts.
inline constexpr octavo::LlamaConfig small_experts{
    .name = "small_experts",
    .layers = 12,
    .hidden = 2048,
    .ffn = 2816,
    .heads = 16,
    .kv_heads = 4,
    .head_dim = 128,
    .vocabulary = 128256,
    .experts = {.experts = 8, .choices = 2, .balance_coefficient = 0.01f}};
inline constexpr octavo::LlamaConfig small_dense{.name = "small_dense",
                                                 .layers = 12,
                                                 .hidden = 2048,
                                                 .ffn = 5632,
                                                 .heads = 16,
                                                 .kv_heads = 4,
                                                 .head_dim = 128,
                                                 .vocabulary = 128256};

/// A session and its context: BF16 weights and gradients.
template <class Model, class Ranks>
struct SessionOwner {
  explicit SessionOwner(const Request& request)
      : context(octavo::gpu_of_local_rank(request.local_rank, octavo::visible_gpus())) {
    context.set_deterministic(request.deterministic);
    take_gemm_plans(request.gemm_plans, context);
#ifdef OCTAVO_BENCHMARK_HAS_NCCL
    using octavo::NcclComm;
    if (request.rendezvous != nullptr) {
      ranks = std::make_unique<NcclComm>(
          *request.rendezvous, context,
          request.only_nccl ? NcclComm::Ways::nccl_only : NcclComm::Ways::all);
    }
#endif
    using namespace octavo;
    switch (request.optimizer) {
      case OptimizerKind::adamw:
        session = make<AdamW<MasterWeights<Bf16>, Moments<Bf16>>>(request);
        break;
      case OptimizerKind::adamw_8bit:
        session = make<AdamW<MasterWeights<Bf16>, Moments<EightBit>>>(request);
        break;
      case OptimizerKind::muon:
        session = make<Muon<MasterWeights<Bf16>, Moments<Bf16>>>(request);
        break;
    }
  }

  template <class Optimizer>
  std::unique_ptr<octavo::TrainingSession> make(const Request& request) {
    using Session = octavo::ModelSession<Model, Optimizer, Ranks>;
    if (ranks == nullptr) return std::make_unique<Session>(request.options, context);
    return std::make_unique<Session>(request.options, context, *ranks);
  }

  octavo::Context<octavo::Cuda> context;
  std::unique_ptr<octavo::Communicator<octavo::Cuda>> ranks;
  std::unique_ptr<octavo::TrainingSession> session;
};

/// What makes sessions of `Model`.
/// @param reduce  what gradients travel in between ranks; empty: of one rank
/// @param gather  what weights travel in
template <class Model, class Ranks = octavo::SingleRank>
Instance instance_of(std::string model, std::string precision, std::string reduce = {},
                     std::string gather = {}) {
  return {std::move(model), std::move(precision), std::move(reduce), std::move(gather),
          [](const Request& request) -> std::shared_ptr<octavo::TrainingSession> {
            const auto owner = std::make_shared<SessionOwner<Model, Ranks>>(request);
            return {owner, owner->session.get()};
          }};
}

}  // namespace benchmarks
