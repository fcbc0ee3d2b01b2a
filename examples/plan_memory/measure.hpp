// The library's plan of every choice that a request has.
#pragma once

#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <plan_memory/plan.hpp>

#include <numeric>

namespace planner {

namespace detail {

/// What ranks do together in the session that a request names.
template <class Kind>
typename Kind::OfRanks ranks_of(const Request& request) {
  using namespace octavo;
  const auto with_reduce = [&]<class Reduce>() {
    return request.gather == "fp8" ? Kind::template of_ranks<DataParallel<Reduce, GatherIn<E4M3>>>()
                                   : Kind::template of_ranks<DataParallel<Reduce>>();
  };
  if (request.reduce == "fp32") return with_reduce.template operator()<ReduceIn<Fp32>>();
  if (request.reduce == "e4m3") return with_reduce.template operator()<ReduceIn<E4M3>>();
  return with_reduce.template operator()<ReduceIn<>>();
}

/// Its optimizer.
template <class Kind>
typename Kind::OfOptimizer optimizer_of(const Request& request) {
  using namespace octavo;
  const auto with_master = [&]<class Master>() {
    if (request.moments == "8bit") {
      return Kind::template of_optimizer<AdamW<Master, Moments<EightBit>>>();
    }
    if (request.moments == "bf16") {
      return Kind::template of_optimizer<AdamW<Master, Moments<Bf16>>>();
    }
    return Kind::template of_optimizer<AdamW<Master, Moments<Fp32>>>();
  };
  return request.master_weights == "bf16" ? with_master.template operator()<MasterWeights<Bf16>>()
                                          : with_master.template operator()<MasterWeights<Fp32>>();
}

/// The plan of a training session.
template <class Model>
octavo::MemoryPlan plan(const Request& request,
                        const octavo::DeviceLimits<typename Model::DeviceType>& limits) {
  using Kind = octavo::SessionKindOf<Model>;
  return octavo::plan_memory<Model>(request.session, limits,
                                    Kind{ranks_of<Kind>(request), optimizer_of<Kind>(request)});
}

/// What a precision asks of a layer's features; those that differ between layers are for all.
template <class Precision>
inline constexpr int shape_multiple = 1;
template <octavo::LinearPrecision Precision>
inline constexpr int shape_multiple<Precision> = octavo::PrecisionTraits<Precision>::shape_multiple;

/// The model that `Degree` ranks share.
template <auto Config, class Precision, octavo::Device D, int Degree>
using SharedModel = octavo::PresetModel<Config, Precision, D, octavo::StorageOf<Precision>,
                                        octavo::TensorParallel<Degree>>;

template <auto Config, class Precision, int Degree>
octavo::MemoryPlan make(const Request& request) {
  if constexpr (Config.feature_divisor() % shape_multiple<Precision> != 0) {
    throw octavo::ConfigError(
        octavo::message("its layers' features are no multiples of ", shape_multiple<Precision>,
                        ", as these blocks ask: choose --precision fp8-tensorwise"));
  } else if (request.device == "cpu") {
    return plan<SharedModel<Config, Precision, octavo::Cpu, Degree>>(request, request.cpu);
  } else if constexpr (octavo::runs_on<Precision, octavo::Cuda>) {
    return plan<SharedModel<Config, Precision, octavo::Cuda, Degree>>(request, request.cuda);
  } else {
    throw octavo::ConfigError(
        "no GPU that this library serves multiplies these blocks: choose --precision "
        "fp8-blockwise, or --device cpu");
  }
}

/// The products of a model, on the `Cuda` device; where ranks share it, of one of them.
template <auto Config, class Precision, int Degree>
std::vector<octavo::GemmEntry> gemms(const Request& request) {
  if constexpr (Config.feature_divisor() % shape_multiple<Precision> == 0 &&
                octavo::runs_on<Precision, octavo::Cuda>) {
    using Model = SharedModel<Config, Precision, octavo::Cuda, Degree>;
    octavo::Arena<octavo::Cuda> arena;
    const Model model(arena, Model::run_shape(request.session.batch), request.session.model,
                      request.cuda);
    return model.manifest().entries();
  } else {
    return {};
  }
}

template <auto Config, class Precision, int Degree>
octavo::BatchShape run_shape(const Request& request) {
  const octavo::BatchShape batch = request.session.batch;
  if constexpr (Config.feature_divisor() % shape_multiple<Precision> == 0) {
    if (request.device == "cpu") {
      return SharedModel<Config, Precision, octavo::Cpu, Degree>::run_shape(batch);
    } else if constexpr (octavo::runs_on<Precision, octavo::Cuda>) {
      return SharedModel<Config, Precision, octavo::Cuda, Degree>::run_shape(batch);
    }
  }
  return batch;
}

template <auto Config>
SharedShape shared_shape() {
  SharedShape shape{Config.layers, Config.hidden};
  if constexpr (requires { Config.kv_heads; }) {
    shape.divisor = std::gcd(std::gcd(Config.heads, Config.kv_heads), Config.ffn);
  }
  return shape;
}

}  // namespace detail

template <auto Config, class Precision, int Degree>
Plan plan_of(const std::string& precision) {
  return {Config.facts(),
          detail::shared_shape<Config>(),
          precision,
          Degree,
          octavo::is_lora<Precision>,
          detail::make<Config, Precision, Degree>,
          detail::gemms<Config, Precision, Degree>,
          detail::run_shape<Config, Precision, Degree>};
}

template <auto Config>
std::vector<Plan> plans() {
  const auto in = [](auto... named) {
    return std::vector<Plan>{
        plan_of<Config, typename decltype(named)::Precision, 1>(named.name)...};
  };
  return std::apply(in, octavo::named_precisions);
}

}  // namespace planner
