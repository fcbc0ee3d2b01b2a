// Examines a precision on a device.
#pragma once

#include <doctor/layer.hpp>

#include <span>

namespace doctor {

/// Takes one training step of llama_tiny on synthetic tokens. A step with learning rate 0 comes
/// first: it only sets the delayed scales, and on `Cuda` the second step runs from a graph.
template <class P, octavo::Device D>
octavo::StepResult training_step(octavo::Context<D>& context) {
  constexpr octavo::BatchShape batch{.sequences = 4, .tokens = 32};
  octavo::SessionOptions options;
  options.batch = batch;
  octavo::ModelSession<octavo::Llama<octavo::llama_tiny, P, D>> session(options, context);
  std::vector<std::int32_t> text;
  for (Index i = 0; i <= batch.rows(); ++i) {
    text.push_back(static_cast<std::int32_t>((i * i + 7 * i) % octavo::llama_tiny.vocabulary));
  }
  const auto tokens = std::span<const std::int32_t>(text).first(text.size() - 1);
  const auto targets = std::span<const std::int32_t>(text).last(text.size() - 1);
  const octavo::StepResult first = session.step({tokens, targets}, 0.0);
  if (first.skipped) return first;
  return session.step({tokens, targets}, 1e-3);
}

template <class P, class D>
Findings examine(octavo::Context<D>& context) {
  Findings findings;
  {
    Layer<P, D> layer(256, 384, 256, context, Magnitudes::of_blocks);
    layer.quantize();
    layer.quantize();
    layer.multiply();
    findings.products = layer.products();
  }
  findings.step = training_step<P, D>(context);
  return findings;
}

}  // namespace doctor
