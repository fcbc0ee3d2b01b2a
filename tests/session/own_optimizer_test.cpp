// An optimizer of one's own, in the place of AdamW.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace own_optimizer_test {

using namespace octavo;
using support::SmallModel;

/// w -= rate · clip · g, and a count of its steps.
struct Sgd {
  struct Settings {};

  template <class W, class G, Device D>
  class For final : public Optimizer<D> {
   public:
    For(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards, const Settings&,
        std::uint64_t, const Offload&)
        : shards_(shards), rate_{arena.template allocate<float>(MemoryKind::optimizer, 1), {1}} {}

    static std::string name() { return "SGD"; }

    void initialize(const Context<D>&) override {}
    void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) override {
      const auto rate = static_cast<float>(learning_rate);
      staging.copy(rate_.data(), &rate, sizeof(rate), context);
    }
    [[nodiscard]] std::size_t staged_bytes() const override { return sizeof(float); }
    void add_squared_norms(TensorView<StepStatus, 1, D> status,
                           const Context<D>& context) const override {
      for (const auto& shard : shards_) add_squared_norm(shard.gradients, status, context);
    }
    void step(TensorView<const StepStatus, 1, D> status, ShardExchange<D>&, Timeline<D>&,
              const Context<D>& context) const override {
      if (status.data()->skip != 0) return;
      const float factor = rate_.data()[0] * status.data()->clip_coefficient;
      for (const auto& shard : shards_) {
        parallel_for(shard.weights.size(), 1, context, [&](Index i) {
          shard.weights.data()[i] = W(static_cast<float>(shard.weights.data()[i]) -
                                      factor * static_cast<float>(shard.gradients.data()[i]));
        });
      }
    }
    void advance() override { ++steps_; }
    void set_master(const std::string&, Index, std::span<const float>,
                    const Context<D>&) const override {}
    void visit_state(StateVisitor<D>& visitor) override { visitor("optimizer.steps", steps_); }

   private:
    std::vector<FlatShard<W, G, D>> shards_;
    TensorView<float, 1, D> rate_;
    std::int64_t steps_ = 0;
  };
};

using Session = ModelSession<SmallModel<Fp32>, Sgd>;

std::map<std::string, std::vector<float>> weights_of(Session& session) {
  std::map<std::string, std::vector<float>> all;
  session.weights().read_sync([&](const WeightInfo& weight, Index, std::span<const float> values) {
    std::vector<float>& own = all[weight.name];
    own.insert(own.end(), values.begin(), values.end());
  });
  return all;
}

// The way that all weights went is the rate times the gradients' norm.
TEST(OwnOptimizer, UpdatesWeightsByItsRule) {
  Context<Cpu> context;
  SessionOptions options = support::small_options();
  options.max_gradient_norm = 0;
  Session session(options, context);
  EXPECT_EQ(session.facts().optimizer, "SGD");
  const auto before = weights_of(session);
  const support::TokenBatch batch = support::step_batch(options, 0);
  constexpr double rate = 0.125;
  const StepResult result = session.step({batch.tokens, batch.targets}, rate);
  ASSERT_FALSE(result.skipped);
  double squared_way = 0;
  for (const auto& [name, values] : weights_of(session)) {
    const std::vector<float>& old = before.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double way = static_cast<double>(values[i]) - static_cast<double>(old[i]);
      squared_way += way * way;
    }
  }
  const double expected = rate * result.gradient_norm;
  EXPECT_NEAR(std::sqrt(squared_way), expected, 1e-4 * expected);
}

TEST(OwnOptimizer, LearnsAndRestoresItsState) {
  Context<Cpu> context;
  const SessionOptions options = support::small_options();
  const support::TokenBatch batch = support::step_batch(options, 0);
  const auto step = [&](Session& session) {
    return session.step({batch.tokens, batch.targets}, 0.1).loss;
  };
  Session session(options, context);
  const double first = step(session);
  EXPECT_LT(step(session), first);
  const SavedState saved = save_state_sync(session.state().entries());
  const double next = step(session);
  Session other(options, context);
  load_state_sync(saved, other.state().entries());
  EXPECT_EQ(step(other), next);
}

}  // namespace own_optimizer_test
