// The library's plan of every choice that a request has.
#pragma once

#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/octavo.hpp>
#include <plan_memory/plan.hpp>

namespace planner {

namespace detail {

template <class Model, class Master>
octavo::MemoryPlan plan_with(const Request& request,
                             const octavo::DeviceLimits<typename Model::DeviceType>& limits) {
  using octavo::AdamW;
  using octavo::Moments;
  return request.moments == "bf16"
             ? octavo::plan_memory<Model, AdamW<Master, Moments<octavo::Bf16>>>(request.session,
                                                                                limits)
             : octavo::plan_memory<Model, AdamW<Master, Moments<octavo::Fp32>>>(request.session,
                                                                                limits);
}

/// The plan of a training session.
template <class Model>
octavo::MemoryPlan plan(const Request& request,
                        const octavo::DeviceLimits<typename Model::DeviceType>& limits) {
  using octavo::MasterWeights;
  return request.master_weights == "bf16"
             ? plan_with<Model, MasterWeights<octavo::Bf16>>(request, limits)
             : plan_with<Model, MasterWeights<octavo::Fp32>>(request, limits);
}

template <octavo::LlamaConfig Config, class Precision>
octavo::MemoryPlan make(const Request& request) {
  using octavo::Llama;
  if (request.device == "cpu") {
    return plan<Llama<Config, Precision, octavo::Cpu>>(request, request.cpu);
  }
  if constexpr (octavo::runs_on<Precision, octavo::Cuda>) {
    return plan<Llama<Config, Precision, octavo::Cuda>>(request, request.cuda);
  } else {
    throw octavo::ConfigError(
        "no GPU that this library serves multiplies these blocks: choose --precision "
        "fp8-blockwise, or --device cpu");
  }
}

}  // namespace detail

template <octavo::LlamaConfig Config>
std::vector<Plan> plans() {
  const auto in = [](auto... named) {
    return std::vector<Plan>{
        {Config, named.name, detail::make<Config, typename decltype(named)::Precision>}...};
  };
  return std::apply(in, octavo::named_precisions);
}

}  // namespace planner
