// Creates the session of a compiled model.
#pragma once

#include <octavo/octavo.hpp>
#if defined(__CUDACC__) && defined(OCTAVO_PROGRAM_HAS_NCCL)
#include <octavo/comm/cuda/nccl_comm.cuh>
#endif

#include <train_llama/registry.hpp>

#include <memory>
#include <string>
#include <type_traits>

namespace trainer {
namespace detail {

/// Calls `f` with the optimizer of these formats, as `f.template operator()<Optimizer>()`. FP32
/// weights have no master weights.
template <class Model, class F>
auto with_optimizer(const StateFormats& formats, const F& f) {
  using namespace octavo;
  const auto with_moments = [&]<class Master>(Master) {
    if (formats.optimizer == "muon") {
      if (formats.moments == "8bit")
        return f.template operator()<Muon<Master, Moments<EightBit>>>();
      if (formats.moments == "bf16") return f.template operator()<Muon<Master, Moments<Bf16>>>();
      return f.template operator()<Muon<Master, Moments<Fp32>>>();
    }
    if (formats.moments == "8bit") return f.template operator()<AdamW<Master, Moments<EightBit>>>();
    if (formats.moments == "bf16") return f.template operator()<AdamW<Master, Moments<Bf16>>>();
    return f.template operator()<AdamW<Master, Moments<Fp32>>>();
  };
  if constexpr (!std::is_same_v<typename Model::T, float>) {
    if (formats.master_weights == "bf16") return with_moments(MasterWeights<Bf16>{});
  }
  return with_moments(MasterWeights<Fp32>{});
}

/// Calls `f` with the format of gradient reductions, as `f.template operator()<ReduceIn<…>>()`.
template <class F>
auto with_reduction(const SessionRequest& request, const F& f) {
  using namespace octavo;
#if defined(OCTAVO_PROGRAM_REDUCES_FP32)
  if (request.reduce == "fp32") return f.template operator()<ReduceIn<Fp32>>();
#endif
#if defined(OCTAVO_PROGRAM_REDUCES_E4M3)
  if (request.reduce == "e4m3") return f.template operator()<ReduceIn<E4M3>>();
#endif
  require<UsageError>(request.reduce == "stored", "gradients cannot be reduced in '",
                      request.reduce, "', because the program was built without it");
  return f.template operator()<ReduceIn<>>();
}

/// Calls `f` with the ranks' communication formats, as `f.template operator()<Ranks>()`. Frozen
/// weights are not gathered in FP8.
template <class Model, class F>
auto with_ranks(const SessionRequest& request, const F& f) {
  using namespace octavo;
  require<UsageError>(!Model::is_frozen || !request.gathers_fp8,
                      "frozen weights are not gathered in FP8; gather them in the storage format");
  return with_reduction(request, [&]<class Reduce>() {
    if constexpr (!Model::is_frozen) {
      if (request.gathers_fp8) return f.template operator()<DataParallel<Reduce, GatherIn<E4M3>>>();
    }
    return f.template operator()<DataParallel<Reduce>>();
  });
}

/// Returns the formats with "auto" replaced.
inline StateFormats resolved(const StateFormats& formats, const char* replacement) {
  const auto choose = [&](const std::string& format) {
    return format == "auto" ? replacement : format;
  };
  return {choose(formats.master_weights), choose(formats.moments), formats.optimizer};
}

/// Returns the bytes of GPU memory that CUDA's libraries need in addition to a session, more with
/// NCCL.
inline std::size_t library_bytes(const SessionRequest& request) {
  return std::size_t{request.rendezvous == nullptr ? 1u : 2u} << 30;
}

inline int gpu_of(const SessionRequest& request) {
#if defined(__CUDACC__)
  if (request.local_rank.has_value()) {
    return octavo::gpu_of_local_rank(*request.local_rank, octavo::visible_gpus());
  }
#endif
  return request.gpu;
}

/// Replaces "auto": FP32 state if the session fits in memory with it, otherwise BF16.
template <class Model, octavo::Device D>
StateFormats chosen_formats(const SessionRequest& request, const octavo::Context<D>& context) {
  StateFormats wide = resolved(request.formats, "fp32");
  if constexpr (std::is_same_v<D, octavo::Cuda>) {
    const std::size_t needed = with_optimizer<Model>(wide, [&]<class Optimizer>() {
      const auto limits = octavo::limits_of<Model>(request.options, context);
      return with_ranks<Model>(request, [&]<class Ranks>() {
        return octavo::plan_memory<Model, Optimizer, Ranks>(request.options, limits).peak;
      });
    });
    if (needed + library_bytes(request) > free_bytes(context))
      return resolved(request.formats, "bf16");
  }
  return wide;
}

}  // namespace detail

/// Creates a session of `Model` with the requested optimizer state, and its context.
template <class Model>
std::shared_ptr<octavo::TrainingSession> make_session(const SessionRequest& request) {
  using D = typename Model::DeviceType;
  constexpr bool on_gpu = std::is_same_v<D, octavo::Cuda>;
  struct Owner {
    explicit Owner(int number) : context(number) {}
    octavo::Context<D> context;
    std::unique_ptr<octavo::Communicator<D>> ranks;
    std::unique_ptr<octavo::TrainingSession> session;
  };
  const auto owner = std::make_shared<Owner>(on_gpu ? detail::gpu_of(request) : request.threads);
  octavo::Communicator<D>* ranks = nullptr;
  if constexpr (on_gpu) {
    owner->context.set_deterministic(request.deterministic);
#if defined(__CUDACC__) && defined(OCTAVO_PROGRAM_HAS_NCCL)
    if (request.rendezvous != nullptr) {
      using octavo::NcclComm;
      owner->ranks = std::make_unique<NcclComm>(
          *request.rendezvous, owner->context,
          request.only_nccl ? NcclComm::Ways::nccl_only : NcclComm::Ways::all);
    }
#endif
    ranks = owner->ranks.get();
  } else {
    ranks = request.ranks;
  }
  octavo::take_gemm_plans(request.gemm_plans, owner->context);
  const StateFormats formats = detail::chosen_formats<Model>(request, owner->context);
  owner->session = detail::with_optimizer<Model>(
      formats, [&]<class Optimizer>() -> std::unique_ptr<octavo::TrainingSession> {
        return detail::with_ranks<Model>(
            request, [&]<class Ranks>() -> std::unique_ptr<octavo::TrainingSession> {
              using Session = octavo::ModelSession<Model, Optimizer, Ranks>;
              return ranks == nullptr
                         ? std::make_unique<Session>(request.options, owner->context)
                         : std::make_unique<Session>(request.options, owner->context, *ranks);
            });
      });
  return {owner, owner->session.get()};
}

}  // namespace trainer
