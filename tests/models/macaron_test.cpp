// A block of three branches, as docs and examples make one: what is recomputed changes no bit.
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace macaron_test {

using namespace octavo;

constexpr LlamaConfig small = [] {
  LlamaConfig config = support::small;
  config.layers = 2;
  return config;
}();

/// A Llama's parts, but for the block, which has an MLP before the attention and one behind it.
struct Macaron : LlamaFamily<small> {
  template <ConfigName NormName, ConfigName Prefix, class Part, class T, class G, Device D>
  using Branch = ResidualBranch<NormName, Prefix, Norm<T, G, D>, Part, T, config.hidden, D>;
  template <int Kind, class T, class P, class G, Device D>
  using Block = PreNormBlock<T, config.hidden, G, D,  //
                             Branch<"first_norm", "first", Mlp<T, P, G, D>, T, G, D>,
                             Branch<"attention_norm", "", Attention<Kind, T, P, G, D>, T, G, D>,
                             Branch<"last_norm", "last", Mlp<T, P, G, D>, T, G, D>>;
};

struct Trace {
  std::vector<double> losses;
  std::vector<std::byte> gradients, weights, scaling;

  friend bool operator==(const Trace&, const Trace&) = default;
};

/// Two steps of two micro-batches.
template <class Precision>
Trace train(Recompute recompute) {
  SessionOptions options = support::small_options();
  options.batch = {1, 16};
  options.micro_batches = 2;
  options.model.recompute = recompute;
  Context<Cpu> context{2};
  ModelSession<Decoder<Macaron, Precision, Cpu>> session(options, context);
  Trace trace;
  for (unsigned i = 0; i < 2; ++i) {
    const support::TokenBatch batch = support::step_batch(options, i);
    const StepResult result = session.step({batch.tokens, batch.targets}, 3e-3);
    EXPECT_FALSE(result.skipped);
    trace.losses.push_back(result.loss);
  }
  trace.gradients = support::weight_gradients(session);
  trace.weights = support::weights(session);
  trace.scaling = support::scaling_state(session);
  return trace;
}

template <class Precision>
void expect_equal_bits() {
  const Trace none = train<Precision>(Recompute::none);
  EXPECT_NE(none.losses[0], none.losses[1]);
  for (const Recompute policy : {Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    EXPECT_TRUE(train<Precision>(policy) == none) << static_cast<int>(policy);
  }
}

TEST(Macaron, RecomputationIsBitwiseEqual) {
  expect_equal_bits<Bf16>();
  expect_equal_bits<Fp8Recipe<Delayed>>();
}

/// One in which both norms have one name.
struct NormsOfOneName : Macaron {
  template <int Kind, class T, class P, class G, Device D>
  using Block =
      PreNormBlock<T, config.hidden, G, D, Branch<"norm", "", Attention<Kind, T, P, G, D>, T, G, D>,
                   Branch<"norm", "", Mlp<T, P, G, D>, T, G, D>>;
};

// The manifest knows names of linear layers alone.
TEST(Macaron, RejectsDuplicateParameterNames) {
  Context<Cpu> context{1};
  try {
    const ModelSession<Decoder<NormsOfOneName, Bf16, Cpu>> session(support::small_options(),
                                                                   context);
    ADD_FAILURE() << "a session was made";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("blocks.0.norm.weight"), std::string::npos)
        << error.what();
  }
}

// Two branches have layers of one name, which what stands before it tells apart.
TEST(Macaron, NamesEachParameterOnce) {
  Context<Cpu> context{1};
  ModelSession<Decoder<Macaron, Bf16, Cpu>> session(support::small_options(), context);
  std::set<std::string> names;
  std::size_t count = 0;
  session.model().visit([&](const auto& parameter) {
    names.insert(parameter.name);
    ++count;
  });
  EXPECT_EQ(names.size(), count);
  EXPECT_EQ(count, 2U * 9U + 3U) << "three norms and six layers a block, two tables, a norm";
  EXPECT_TRUE(names.contains("blocks.0.first.down.weight"));
  EXPECT_TRUE(names.contains("blocks.1.last.gate_up.weight"));
}

}  // namespace macaron_test
