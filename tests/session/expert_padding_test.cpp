// Rows that only pad sequences do not count in the load-balancing loss of experts.
#include <octavo/models/models.hpp>
#include <octavo/session/session.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "support/adapters.hpp"
#include "support/small_model.hpp"

namespace expert_padding_test {

using namespace octavo;

constexpr LlamaConfig small = [] {
  LlamaConfig config = support::small;
  config.layers = 2;
  config.hidden = 32;
  config.ffn = 16;
  config.head_dim = 16;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 2.0f;  // a large part of the gradient
  return config;
}();
using Model = Llama<small, Fp32, Cpu>;

/// The same model, which runs longer sequences.
class Padded : public Model {
 public:
  using Model::Model;
  static constexpr BatchShape run_shape(BatchShape batch) {
    batch.tokens += 7;
    return batch;
  }
};

using Gradients = std::map<std::string, std::vector<double>>;

template <class AnyModel>
Gradients gradients(Recompute recompute) {
  SessionOptions options;
  options.batch = {3, 20};
  options.micro_batches = 2;
  options.seed = 7;
  options.model.recompute = recompute;
  Context<Cpu> context{2};
  ModelSession<AnyModel> session(options, context);
  const support::TokenBatch batch = support::make_batch(120, small.vocabulary, 5);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
  return support::values_by_parameter(session, [](auto& parameter) { return parameter.gradient; });
}

TEST(ExpertPadding, ChangesNoGradient) {
  for (const Recompute recompute : {Recompute::none, Recompute::block}) {
    const Gradients expected = gradients<Model>(recompute);
    const Gradients found = gradients<Padded>(recompute);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, values] : expected) {
      double largest = 0;
      for (const double value : values) largest = std::max(largest, std::abs(value));
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(found.at(name)[i], values[i], 1e-4 * largest) << name << ' ' << i;
      }
    }
  }
}

}  // namespace expert_padding_test
