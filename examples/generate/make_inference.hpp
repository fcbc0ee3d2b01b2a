// Creates the inference session of a compiled model.
#pragma once

#include <octavo/inference/session.hpp>

#include <train_llama/registry.hpp>

#include <memory>
#include <type_traits>

namespace trainer {

/// Creates an inference session of a preset, and its context.
template <class Family, class Precision, octavo::Device D>
std::shared_ptr<octavo::Inferring> make_inference(const InferenceRequest& request) {
  struct Owner {
    explicit Owner(int number) : context(number) {}
    octavo::Context<D> context;
    std::unique_ptr<octavo::Inferring> session;
  };
  const bool on_gpu = std::is_same_v<D, octavo::Cuda>;
  const auto owner = std::make_shared<Owner>(on_gpu ? request.gpu : request.threads);
  owner->session = std::make_unique<octavo::InferenceSession<Family, Precision, D>>(request.shape,
                                                                                    owner->context);
  return {owner, owner->session.get()};
}

}  // namespace trainer
