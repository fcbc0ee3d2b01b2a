// Ranks of which each has its own number of targets: loss and gradients are those of one session
// that has the batches of both.
#include <gtest/gtest.h>

#include <algorithm>
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
  template <class W, class G, Device D>
  class For : public SingleRank::For<W, G, D> {
   public:
    using SingleRank::For<W, G, D>::For;

    [[nodiscard]] Index total_targets(Index local) override {
      const auto& all = exchange(meeting->targets, local);
      return all[0] + all[1];
    }
    void join(const Context<Cpu>&) override {
      std::vector<float> own;
      for (const auto& [run, parameters] : this->parameters()) {
        own.insert(own.end(), run->gradients().data(), run->gradients().data() + run->size());
      }
      const auto& all = exchange(meeting->gradients, own);
      std::size_t next = 0;
      for (const auto& [run, parameters] : this->parameters()) {
        for (Index i = 0; i < run->size(); ++i, ++next) {
          run->gradients().data()[i] = all[0][next] + all[1][next];
        }
      }
    }
    /// The norm is that of all gradients already.
    void sum(TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>&) override {
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
  };
};

using Ranked = ModelSession<Model, AdamW<>, OneOfTwo>;

struct Step {
  StepResult result;
  std::vector<float> gradients, weights;
};

template <class Session>
Step take_step(Session& session, const TokenBatch& batch, double rate) {
  Step step{session.step({batch.tokens, batch.targets}, rate), {}, {}};
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

/// The batch of rank `rank` in step `number`. One of the two has 48 targets, and the other 5 in the
/// first step, 11 in the second.
TokenBatch batch_of(std::size_t rank, unsigned number) {
  TokenBatch batch = support::make_batch(48, support::small.vocabulary,
                                         1 + static_cast<unsigned>(rank) + 2 * number);
  const std::size_t few = number == 0 ? 5 : 11;
  if (rank != number)
    std::fill(batch.targets.begin() + static_cast<int>(few), batch.targets.end(), -1);
  return batch;
}

/// Those of both ranks.
TokenBatch batch_of_both(unsigned number) {
  TokenBatch both = batch_of(0, number);
  const TokenBatch other = batch_of(1, number);
  both.tokens.insert(both.tokens.end(), other.tokens.begin(), other.tokens.end());
  both.targets.insert(both.targets.end(), other.targets.begin(), other.targets.end());
  return both;
}

TEST(TargetsOfRanks, AreSummedInEveryStep) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  Context<Cpu> context{1};
  Context<Cpu> another{1};
  Context<Cpu> third{1};
  Meeting meeting;
  Ranked first(options, context);
  Ranked second(options, another);
  first.collectives().meeting = second.collectives().meeting = &meeting;
  second.collectives().number = 1;
  options.micro_batches = 2;

  for (const unsigned number : {0u, 1u}) {
    const double rate = number == 0 ? 0.0 : 1e-3;  // the second starts from the same weights
    Step of_second{};
    std::thread beside([&] { of_second = take_step(second, batch_of(1, number), rate); });
    const Step of_first = take_step(first, batch_of(0, number), rate);
    beside.join();
    ModelSession<Model> session(options, third);  // which has taken no step before
    const Step whole = take_step(session, batch_of_both(number), rate);

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
}

}  // namespace targets_of_ranks_test
