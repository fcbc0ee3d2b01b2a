// Sessions of ranks of which some weights travel cast.
#pragma once

#include <octavo/parallel/data_parallel.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace cast_weights_test {

using namespace octavo;
using support::TokenBatch;

/// Blocks whose weights cannot travel in FP8, can with scales from histories, and with current
/// ones.
using Precision = Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Fp8Recipe<Tensorwise>>>;
inline constexpr LlamaConfig shape = [] {
  LlamaConfig deep = support::small;
  deep.layers = 4;  // so that blocks lend each other memory
  return deep;
}();
inline constexpr std::size_t fp8_blocks = 3;
using Model = Llama<shape, Precision, Cpu>;
template <class Gather>
using Session = ModelSession<Model, AdamW<>, DataParallel<ReduceIn<>, Gather>>;

struct Setting {
  int ranks = 2;
  Zero zero = Zero::optimizer;
  WeightCopies copies = WeightCopies::kept;
  Index check_replicas = 0;
};

inline SessionOptions options_of(const Setting& setting) {
  SessionOptions options = support::small_options();
  options.batch = {1, 16};
  options.micro_batches = 2;
  options.model.weight_copies = setting.copies;
  options.sharding.zero = setting.zero;
  options.check_replicas = setting.check_replicas;
  return options;
}

template <class Gather>
StepResult take_step(Session<Gather>& session, int rank, unsigned step) {
  const TokenBatch batch =
      support::make_batch(32, shape.vocabulary, 100 * step + static_cast<unsigned>(rank));
  return session.step({batch.tokens, batch.targets}, 3e-3);
}

template <class Gather>
double validate(Session<Gather>& session) {
  const TokenBatch batch = support::make_batch(16, shape.vocabulary, 7);
  return session.evaluate({batch.tokens, batch.targets}).mean();
}

/// What a session gives away of its weights.
template <class Gather>
std::map<std::string, std::vector<float>> read_weights(Session<Gather>& session) {
  std::map<std::string, std::vector<float>> weights;
  session.weights().read_sync(
      [&](const WeightInfo& weight, Index begin, std::span<const float> values) {
        std::vector<float>& all = weights[weight.name];
        all.resize(static_cast<std::size_t>(weight.rows * weight.columns), 1e30f);
        std::copy(values.begin(), values.end(), all.begin() + begin);
      });
  return weights;
}

}  // namespace cast_weights_test
