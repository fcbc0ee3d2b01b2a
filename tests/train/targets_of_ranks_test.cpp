// Ranks of which each has its own number of targets: loss and gradients are those of one session
// that has the batches of both.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/small_model.hpp"

namespace targets_of_ranks_test {

using namespace octavo;
using support::TokenBatch;

using Model = support::SmallModel<Fp32>;

/// Where two ranks in threads of their own show each other what they have.
struct Meeting {
  std::barrier<> both{2};
  std::array<Index, 2> targets{};
  std::array<double, 2> losses{};
  std::array<std::vector<float>, 2> gradients;
};

/// One of two ranks which add up all gradients, so that both hold those of all.
struct OneOfTwo {
  template <class Model>
  class For : public OneRank::For<Model> {
   public:
    For(Arena<Cpu>& arena, Model& model) : OneRank::For<Model>(arena, model) {
      model.visit_runs([&](const auto& run, const auto&) { runs_.push_back(&run); });
    }

    [[nodiscard]] Index total_targets(Index local) {
      const auto& all = exchange(meeting->targets, local);
      return all[0] + all[1];
    }
    void join(const Context<Cpu>&) {
      std::vector<float> own;
      for (const auto* run : runs_) {
        own.insert(own.end(), run->gradients().data(), run->gradients().data() + run->size());
      }
      const auto& all = exchange(meeting->gradients, own);
      std::size_t next = 0;
      for (const auto* run : runs_) {
        for (Index i = 0; i < run->size(); ++i, ++next) {
          run->gradients().data()[i] = all[0][next] + all[1][next];
        }
      }
    }
    /// The norm is that of all gradients already.
    void sum(TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>&) {
      const auto& all = exchange(meeting->losses, status.data()->loss_sum);
      status.data()->loss_sum = all[0] + all[1];
    }

    Meeting* meeting = nullptr;
    std::size_t number = 0;

   private:
    /// Both ranks' values. They stay until the next exchange of the kind, before which there is
    /// one of another kind.
    template <class Value>
    const std::array<Value, 2>& exchange(std::array<Value, 2>& place, const Value& own) {
      place[number] = own;
      meeting->both.arrive_and_wait();
      return place;
    }

    std::vector<const ParameterRun<float, float, Cpu>*> runs_;
  };
};

using Ranked = ModelSession<Model, AdamW<>, OneOfTwo>;

struct Step {
  StepResult result;
  std::vector<float> gradients, weights;
};

template <class Session>
Step take_step(Session& session, const TokenBatch& batch) {
  Step step{session.step({batch.tokens, batch.targets}, 1e-3), {}, {}};
  session.model().visit([&](const auto& parameter) {
    const auto append = [](auto& to, const auto& view) {
      to.insert(to.end(), view.data(), view.data() + view.size());
    };
    append(step.gradients, parameter.gradient);
    append(step.weights, parameter.weight);
  });
  return step;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum);
}

TEST(TargetsOfRanks, AddUp) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  std::array<TokenBatch, 2> batches{support::make_batch(48, support::small.vocabulary, 1),
                                    support::make_batch(48, support::small.vocabulary, 2)};
  for (std::size_t i = 5; i < 48; ++i) batches[1].targets[i] = -1;  // 48 targets, and 5

  Context<Cpu> context{1};
  Context<Cpu> another{1};
  Meeting meeting;
  Ranked first(options, context);
  Ranked second(options, another);
  first.ranks().meeting = second.ranks().meeting = &meeting;
  second.ranks().number = 1;
  Step of_second{};
  std::thread beside([&] { of_second = take_step(second, batches[1]); });
  const Step of_first = take_step(first, batches[0]);
  beside.join();

  TokenBatch both = batches[0];
  both.tokens.insert(both.tokens.end(), batches[1].tokens.begin(), batches[1].tokens.end());
  both.targets.insert(both.targets.end(), batches[1].targets.begin(), batches[1].targets.end());
  options.micro_batches = 2;
  ModelSession<Model> session(options, context);
  const Step whole = take_step(session, both);

  const double norm = whole.result.gradient_norm;
  EXPECT_GT(norm, 0.1);
  for (const Step& step : {of_first, of_second}) {
    EXPECT_FALSE(step.result.skipped);
    EXPECT_NEAR(step.result.loss, whole.result.loss, 1e-9);
    EXPECT_NEAR(step.result.gradient_norm, norm, 1e-5 * norm);
    ASSERT_EQ(step.gradients.size(), whole.gradients.size());
    EXPECT_LT(distance(step.gradients, whole.gradients), 1e-5 * norm);
  }
  EXPECT_EQ(of_first.weights, of_second.weights);
}

}  // namespace targets_of_ranks_test
