#pragma once

#include <octavo/cuda.cuh>

#include <cstddef>
#include <vector>

#include "small_model.hpp"

/// Sessions of the small model on either device, and their weights.
namespace octavo::support {

template <class Precision, Device D>
using Session = ModelSession<Llama<::support::small, Precision, D>>;

/// Of the `Cpu` device: more would wait for each other longer than they work on a small model.
inline constexpr int few_threads = 4;

inline SessionOptions small_session(Index micro_batches) {
  SessionOptions options = ::support::small_options();
  options.batch = {4, 64};
  options.micro_batches = micro_batches;
  return options;
}

/// Step `number` of a run with `options`.
inline StepResult take_step(TrainingSession& session, const SessionOptions& options,
                            unsigned number) {
  const ::support::TokenBatch batch = ::support::step_batch(options, number);
  return session.step({batch.tokens, batch.targets}, 3e-4);
}

/// The bits of all weights.
template <class AnySession>
std::vector<std::byte> weight_bits(AnySession& session, const Context<Cuda>& context) {
  std::vector<std::byte> bytes;
  session.model().visit([&](auto& parameter) {
    const std::size_t begin = bytes.size();
    bytes.resize(begin + parameter.weight.bytes());
    copy_to_host_sync(bytes.data() + begin, parameter.weight.data(), parameter.weight.bytes(),
                      context);
  });
  return bytes;
}

/// Gives all weights these bits; masters that the optimizer keeps stay.
template <class AnySession>
void set_weight_bits(AnySession& session, const std::vector<std::byte>& bytes,
                     const Context<Cuda>& context) {
  std::size_t begin = 0;
  session.model().visit([&](auto& parameter) {
    copy_to_device_sync(parameter.weight.data(), bytes.data() + begin, parameter.weight.bytes(),
                        context);
    begin += parameter.weight.bytes();
  });
}

}  // namespace octavo::support
