// What ranks that share a model's layers send each other has names, for errors, and what they give
// away of weights comes once.
#include <octavo/train/data_parallel.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"
#include "train/tensor_parallel.hpp"

namespace tensor_parallel_exchanges_test {

using namespace octavo;
using tensor_parallel_test::options_of;
using tensor_parallel_test::part_of_step;

/// Notes what is gathered, also by the groups that it is split into.
class NotedLink final : public Communicator<Cpu> {
 public:
  NotedLink(Communicator<Cpu>& ranks, std::set<std::string>& names)
      : ranks_(ranks), names_(names) {}
  NotedLink(std::unique_ptr<Communicator<Cpu>> ranks, std::set<std::string>& names)
      : owned_(std::move(ranks)), ranks_(*owned_), names_(names) {}

  [[nodiscard]] int rank() const override { return ranks_.rank(); }
  [[nodiscard]] int size() const override { return ranks_.size(); }
  void all_gather(TensorView<const std::byte, 1, Cpu> part, TensorView<std::byte, 1, Cpu> whole,
                  const char* what, const Context<Cpu>& context) override {
    names_.insert(what);
    ranks_.all_gather(part, whole, what, context);
  }
  void all_to_all(TensorView<const std::byte, 1, Cpu> parts, TensorView<std::byte, 1, Cpu> received,
                  const char* what, const Context<Cpu>& context) override {
    ranks_.all_to_all(parts, received, what, context);
  }
  void all_reduce_max(TensorView<std::uint32_t, 1, Cpu> values, const char* what,
                      const Context<Cpu>& context) override {
    ranks_.all_reduce_max(values, what, context);
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    ranks_.all_gather_host_sync(part, whole, what);
  }
  [[nodiscard]] std::unique_ptr<Communicator<Cpu>> split(int group) override {
    return std::make_unique<NotedLink>(ranks_.split(group), names_);
  }

 private:
  std::unique_ptr<Communicator<Cpu>> owned_;
  Communicator<Cpu>& ranks_;
  std::set<std::string>& names_;
};

TEST(TensorParallelExchanges, SayOfWhichRunNormsAre) {
  std::set<std::string> names;
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    std::set<std::string> own;
    NotedLink link(communicator, own);
    tensor_parallel_test::Session<Fp32, 2> session(options_of({}), context, link);
    const support::TokenBatch batch = part_of_step({}, 0, 1);
    (void)session.step({batch.tokens, batch.targets}, 1e-3);
    if (communicator.rank() == 0) names = own;
  });
  for (const char* run : {"blocks.0", "blocks.1"}) {
    EXPECT_EQ(names.count(std::string("gradients of norms of ") + run), 1u) << run;
  }
}

// 200 tokens have 256 rows, of which each rank has half.
TEST(TensorParallelExchanges, GiveEachElementOfAWeightOnce) {
  const tensor_parallel_test::Setting setting{
      .groups = 2, .zero = Zero::weights, .micro_batches = 2};
  support::on_ranks(4, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    tensor_parallel_test::Session<Fp32, 2> session(options_of(setting), context, communicator);
    std::map<std::string, std::vector<int>> given;
    session.read_weights_sync(
        [&](const WeightInfo& weight, Index begin, std::span<const float> values) {
          std::vector<int>& times = given[weight.name];
          times.resize(static_cast<std::size_t>(weight.rows * weight.columns));
          for (std::size_t i = 0; i < values.size(); ++i) {
            ++times.at(static_cast<std::size_t>(begin) + i);
          }
        });
    for (const WeightInfo& weight : session.weights()) {
      EXPECT_TRUE(std::ranges::all_of(given[weight.name], [](int times) { return times == 1; }))
          << weight.name;
    }
  });
}

}  // namespace tensor_parallel_exchanges_test
