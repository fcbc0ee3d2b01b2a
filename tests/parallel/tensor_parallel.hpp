// Small models whose layers ranks share, and how a run of them is divided.
#pragma once

#include <octavo/parallel/data_parallel.hpp>

#include <type_traits>

#include "support/small_model.hpp"

namespace tensor_parallel_test {

using namespace octavo;
using support::TokenBatch;

constexpr LlamaConfig config{.name = "shared",
                             .layers = 2,
                             .hidden = 64,
                             .ffn = 96,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .vocabulary = 200,
                             .rope_theta = 10000.0f,
                             .qk_norm = true};
/// As it, with what it has not: a table that the head reads, too.
constexpr LlamaConfig tied{.name = "tied",
                           .layers = config.layers,
                           .hidden = config.hidden,
                           .ffn = config.ffn,
                           .heads = config.heads,
                           .kv_heads = config.kv_heads,
                           .head_dim = config.head_dim,
                           .vocabulary = config.vocabulary,
                           .rope_theta = config.rope_theta,
                           .tied_embeddings = true};

/// Of models in FP32 one shape, of others the other.
template <class Precision, int Degree>
using Model = Llama<std::is_same_v<Precision, Fp32> ? config : tied, Precision, Cpu,
                    StorageOf<Precision>, TensorParallel<Degree>>;
template <class Precision, int Degree, class Gather = GatherIn<>, class Optimizer = AdamW<>>
using Session = ModelSession<Model<Precision, Degree>, Optimizer, DataParallel<ReduceIn<>, Gather>>;

constexpr Index sequence = 32;

/// How a run is divided.
struct Setting {
  int groups = 1;  ///< of ranks that share the layers
  Zero zero = Zero::optimizer;
  Index micro_batches = 1;  ///< of all groups together
  unsigned steps = 3;
  SessionOptions options{};
};

inline SessionOptions options_of(const Setting& setting) {
  SessionOptions options = setting.options;
  options.batch.sequences = 1;
  options.batch.tokens = sequence;
  options.seed = 7;
  options.micro_batches = setting.micro_batches / setting.groups;
  options.sharding.zero = setting.zero;
  return options;
}

/// A group's part of a step's batch.
inline TokenBatch part_of_step(const Setting& setting, int group, unsigned step) {
  const Index count = setting.micro_batches / setting.groups;
  TokenBatch part;
  for (Index m = 0; m < count; ++m) {
    const auto number = static_cast<unsigned>(group * count + m);
    TokenBatch one = support::make_batch(sequence, config.vocabulary, 100 * step + number);
    for (unsigned i = 0; i < 2 * number; ++i) one.targets[i] = -1;
    part.tokens.insert(part.tokens.end(), one.tokens.begin(), one.tokens.end());
    part.targets.insert(part.targets.end(), one.targets.begin(), one.targets.end());
  }
  return part;
}

}  // namespace tensor_parallel_test
