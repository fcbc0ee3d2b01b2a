// The library's memory plan for every choice in a request.
#pragma once

#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <plan_memory/model_layout.hpp>
#include <plan_memory/plan.hpp>

namespace planner {

namespace detail {

/// Applies the ranks' settings of a request: sharding and communication formats.
template <class Memory>
typename Memory::Ranks ranks_of(const Request& request) {
  using namespace octavo;
  const Index degree = request.tensor_parallel;
  const auto with_reduce = [&]<class Reduce>() {
    return request.gather == "fp8"
               ? Memory::template of_ranks<DataParallel<Reduce, GatherIn<E4M3>>>(degree)
               : Memory::template of_ranks<DataParallel<Reduce>>(degree);
  };
  if (request.reduce == "fp32") return with_reduce.template operator()<ReduceIn<Fp32>>();
  if (request.reduce == "e4m3") return with_reduce.template operator()<ReduceIn<E4M3>>();
  return with_reduce.template operator()<ReduceIn<>>();
}

/// Selects the optimizer of a request.
template <class Memory>
typename Memory::Optimizer optimizer_of(const Request& request) {
  using namespace octavo;
  const auto with_master = [&]<class Master>() {
    if (request.optimizer == "muon") {
      if (request.moments == "8bit") {
        return Memory::template of_optimizer<Muon<Master, Moments<EightBit>>>();
      }
      return request.moments == "bf16"
                 ? Memory::template of_optimizer<Muon<Master, Moments<Bf16>>>()
                 : Memory::template of_optimizer<Muon<Master, Moments<Fp32>>>();
    }
    if (request.moments == "8bit") {
      return Memory::template of_optimizer<AdamW<Master, Moments<EightBit>>>();
    }
    if (request.moments == "bf16") {
      return Memory::template of_optimizer<AdamW<Master, Moments<Bf16>>>();
    }
    return Memory::template of_optimizer<AdamW<Master, Moments<Fp32>>>();
  };
  return request.master_weights == "bf16" ? with_master.template operator()<MasterWeights<Bf16>>()
                                          : with_master.template operator()<MasterWeights<Fp32>>();
}

template <octavo::Device D>
const octavo::DeviceLimits<D>& limits_of(const Request& request) {
  if constexpr (std::is_same_v<D, octavo::Cpu>) {
    return request.cpu;
  } else {
    return request.cuda;
  }
}

template <class P, octavo::Device D>
octavo::BatchShape run_shape(const Shape& shape, const Request& request) {
  return run_shape_of<P, D>(shape, request.session.batch, request.tensor_parallel);
}

/// The same as octavo::plan_memory.
template <class P, octavo::Device D>
octavo::MemoryPlan memory(const Shape& shape, const Request& request) {
  using T = octavo::StorageOf<P>;
  using Memory = octavo::SessionMemory<T, T, D>;
  require_possible(shape);
  octavo::detail::check_options(request.session);
  octavo::SessionOptions options = request.session;
  options.batch = run_shape<P, D>(shape, request);
  const Memory memory{ranks_of<Memory>(request), optimizer_of<Memory>(request)};
  octavo::Arena<D> arena;
  const ModelLayout<P, D> model(arena, shape, request.tensor_parallel, options.batch,
                                octavo::detail::model_options(options, memory.ranks.casts_weights),
                                limits_of<D>(request));
  memory.allocate(arena, model.parameters(), model.scaling(), options);
  return arena.plan();
}

template <class P, octavo::Device D>
std::vector<octavo::GemmEntry> gemms(const Shape& shape, const Request& request) {
  require_possible(shape);
  octavo::Arena<D> arena;
  const ModelLayout<P, D> model(arena, shape, request.tensor_parallel,
                                run_shape<P, D>(shape, request), request.session.model,
                                limits_of<D>(request));
  return model.manifest().entries();
}

}  // namespace detail

/// Appends the plans of a precision, and of adapters with it, if the device supports it.
template <class P, octavo::Device D>
void append_plans(std::vector<PrecisionPlans>& all, const char* name) {
  const auto append = [&]<class Q>() {
    all.push_back({name, octavo::is_lora<Q>, detail::memory<Q, D>, detail::gemms<Q, D>,
                   detail::run_shape<Q, D>, octavo::attention_forward_of<Q>});
  };
  if constexpr (octavo::runs_on<P, D>) {
    append.template operator()<P>();
    append.template operator()<octavo::Lora<P>>();
  }
}

/// Returns the plans of every named precision that the device supports.
template <octavo::Device D>
std::vector<PrecisionPlans> plans_on() {
  std::vector<PrecisionPlans> all;
  octavo::named_precisions.for_each(
      [&]<class P>(octavo::NamedPrecision<P> named) { append_plans<P, D>(all, named.name); });
  return all;
}

}  // namespace planner
