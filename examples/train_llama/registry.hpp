// The models that the trainer was compiled with, one for each preset, precision and device.
#pragma once

#include <octavo/octavo.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace trainer {

/// Formats of the optimizer's state.
struct StateFormats {
  std::string master_weights = "fp32";
  std::string moments = "fp32";
};

/// Everything that a session is made from.
struct SessionRequest {
  octavo::SessionOptions options;
  StateFormats formats;
  int threads = 0;             ///< of the `Cpu` device; 0: all
  int gpu = 0;                 ///< of the `Cuda` device
  bool deterministic = false;  ///< the `Cuda` device gives the same bits in every run
};

/// One preset in one precision on one device.
struct Instance {
  std::string model;
  std::string precision;
  std::string device;
  std::shared_ptr<octavo::TrainingSession> (*make)(const SessionRequest&);
};

/// All instances; each translation unit of an instance adds its own.
inline std::vector<Instance>& instances() {
  static std::vector<Instance> all;
  return all;
}

namespace detail {

/// A session that owns its context.
template <class Model, class Optimizer>
std::shared_ptr<octavo::TrainingSession> make_with(const SessionRequest& request) {
  using D = typename Model::DeviceType;
  constexpr bool on_gpu = std::is_same_v<D, octavo::Cuda>;
  struct Owner {
    explicit Owner(const SessionRequest& from)
        : context(on_gpu ? from.gpu : from.threads), session(from.options, context) {}
    octavo::Context<D> context;
    octavo::ModelSession<Model, Optimizer> session;
  };
  const auto owner = std::make_shared<Owner>(request);
  if constexpr (on_gpu) owner->context.set_deterministic(request.deterministic);
  return {owner, &owner->session};
}

template <class Model, class Master>
std::shared_ptr<octavo::TrainingSession> make_with_master(const SessionRequest& request) {
  using octavo::AdamW;
  using octavo::Moments;
  return request.formats.moments == "bf16"
             ? make_with<Model, AdamW<Master, Moments<octavo::Bf16>>>(request)
             : make_with<Model, AdamW<Master, Moments<octavo::Fp32>>>(request);
}

}  // namespace detail

/// Makes a session of `Model` with the optimizer state that is asked for.
template <class Model>
std::shared_ptr<octavo::TrainingSession> make_session(const SessionRequest& request) {
  using octavo::MasterWeights;
  return request.formats.master_weights == "bf16"
             ? detail::make_with_master<Model, MasterWeights<octavo::Bf16>>(request)
             : detail::make_with_master<Model, MasterWeights<octavo::Fp32>>(request);
}

/// Adds an instance at program start.
struct Registration {
  explicit Registration(Instance instance) { instances().push_back(std::move(instance)); }
};

}  // namespace trainer
