// What plan_memory says of ranks that share a model's layers is what such ranks do.
#include <plan_memory/predict.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string_view>

#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace shared_plan_test {

using namespace octavo;

constexpr int degree = 2;

/// Counts what this rank sends of rows between layers, in all that it is split into.
class CountingRank final : public Communicator<Cpu> {
 public:
  using ConstBytes = TensorView<const std::byte, 1, Cpu>;
  using Bytes = TensorView<std::byte, 1, Cpu>;

  CountingRank(Communicator<Cpu>& of, std::size_t& sent) : of_(of), sent_(sent) {}

  [[nodiscard]] int rank() const override { return of_.rank(); }
  [[nodiscard]] int size() const override { return of_.size(); }
  void all_gather(ConstBytes part, Bytes whole, const char* what,
                  const Context<Cpu>& context) override {
    count(what, part.bytes() * static_cast<std::size_t>(size() - 1));
    of_.all_gather(part, whole, what, context);
  }
  void all_to_all(ConstBytes parts, Bytes received, const char* what,
                  const Context<Cpu>& context) override {
    count(what,
          parts.bytes() / static_cast<std::size_t>(size()) * static_cast<std::size_t>(size() - 1));
    of_.all_to_all(parts, received, what, context);
  }
  void all_reduce_max(TensorView<std::uint32_t, 1, Cpu> values, const char* what,
                      const Context<Cpu>& context) override {
    of_.all_reduce_max(values, what, context);
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    of_.all_gather_host_sync(part, whole, what);
  }
  [[nodiscard]] std::unique_ptr<Communicator<Cpu>> split(int group) override {
    owned_.push_back(of_.split(group));
    return std::make_unique<CountingRank>(*owned_.back(), sent_);
  }

 private:
  void count(std::string_view what, std::size_t bytes) {
    const bool is_of_rows = what.starts_with("rows of") || what.starts_with("sums of a layer") ||
                            what.starts_with("gradients of a layer") ||
                            what == "gradients of the embedding" ||
                            what == "sums of the head's gradients";
    if (is_of_rows) sent_ += bytes;
  }

  Communicator<Cpu>& of_;
  std::size_t& sent_;
  std::vector<std::unique_ptr<Communicator<Cpu>>> owned_;
};

/// The request of a plan of four ranks, two of which share each layer.
planner::Options options_of(const char* recompute) {
  planner::Options options;
  options.model = "llama_tiny";
  options.precision = "fp32";
  options.device = "cpu";
  options.threads = 1;
  options.recompute = recompute;
  options.batch = 2;
  options.sequence_length = 16;
  options.micro_batches = 3;
  options.world = 2 * degree;
  options.tensor_parallel = degree;
  options.zero = 2;
  return options;
}

/// A step of such ranks: what each allocated, and what it sent of rows.
struct Outcome {
  std::size_t allocated = 0;
  std::size_t sent = 0;
};

std::vector<Outcome> step_of(const planner::Options& options) {
  using Model = Llama<llama_tiny, Fp32, Cpu, Fp32, TensorParallel<degree>>;
  std::vector<Outcome> outcomes(static_cast<std::size_t>(options.world));
  support::on_ranks(options.world, [&](support::ThreadComm& communicator) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    CountingRank counted(communicator, outcome.sent);
    Context<Cpu> context{1};
    ModelSession<Model, AdamW<>, DataParallel<>> session(planner::request_of(options).session,
                                                         context, counted);
    const support::TokenBatch batch = support::make_batch(
        static_cast<std::size_t>(options.micro_batches * options.batch * options.sequence_length),
        llama_tiny.vocabulary, 1);
    (void)session.step({batch.tokens, batch.targets}, 1e-3);
    outcome.allocated = session.facts().allocated_bytes;
  });
  return outcomes;
}

TEST(SharedLayersPlan, MatchesAllocationsAndTrafficOfRanks) {
  const planner::Plan plan({"llama_tiny", description_of(llama_tiny)}, "fp32");
  EXPECT_EQ(plan.shape().shared_by() % degree, 0);
  for (const char* recompute : {"none", "swiglu", "block"}) {
    planner::Options options = options_of(recompute);
    options.master_weights = options.moments = "fp32";
    const double bytes = planner::row_exchange_bytes(
        options.batch * options.sequence_length, plan.shape().model.hidden, degree, sizeof(float));
    const Index exchanges =
        options.micro_batches *
        planner::row_exchanges(plan.shape().model.layers, programs::recompute_named(recompute));
    for (const Outcome& rank : step_of(options)) {
      EXPECT_EQ(rank.allocated, plan.memory(planner::request_of(options)).peak) << recompute;
      EXPECT_EQ(static_cast<double>(rank.sent), static_cast<double>(exchanges) * bytes)
          << recompute;
    }
  }
}

}  // namespace shared_plan_test
