// What ranks that share a model's layers send each other has names, for errors, and what they give
// away of weights comes once.
#include <octavo/parallel/data_parallel.hpp>

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

#include "parallel/tensor_parallel.hpp"
#include "support/handing_comm.hpp"
#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace tensor_parallel_exchanges_test {

using namespace octavo;
using tensor_parallel_test::options_of;
using tensor_parallel_test::part_of_step;

/// Notes what is gathered, also by the groups that it is split into.
class NotedLink final : public ::support::ForwardingComm {
 public:
  NotedLink(Communicator<Cpu>& ranks, std::set<std::string>& names)
      : ForwardingComm(ranks), names_(names) {}
  NotedLink(std::unique_ptr<Communicator<Cpu>> ranks, std::set<std::string>& names)
      : ForwardingComm(*ranks), owned_(std::move(ranks)), names_(names) {}

  void all_gather(Elements<const std::byte> part, Elements<std::byte> whole, const char* what,
                  const Context& context) override {
    names_.insert(what);
    ForwardingComm::all_gather(part, whole, what, context);
  }
  [[nodiscard]] std::unique_ptr<Communicator<Cpu>> split(int group) override {
    return std::make_unique<NotedLink>(ForwardingComm::split(group), names_);
  }

 private:
  std::unique_ptr<Communicator<Cpu>> owned_;
  std::set<std::string>& names_;
};

TEST(TensorParallelExchanges, NameRunOfNorms) {
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
TEST(TensorParallelExchanges, ReadEachWeightElementOnce) {
  const tensor_parallel_test::Setting setting{
      .groups = 2, .zero = Zero::weights, .micro_batches = 2};
  support::on_ranks(4, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    tensor_parallel_test::Session<Fp32, 2> session(options_of(setting), context, communicator);
    std::map<std::string, std::vector<int>> given;
    session.weights().read_sync(
        [&](const WeightInfo& weight, Index begin, std::span<const float> values) {
          std::vector<int>& times = given[weight.name];
          times.resize(static_cast<std::size_t>(weight.rows * weight.columns));
          for (std::size_t i = 0; i < values.size(); ++i) {
            ++times.at(static_cast<std::size_t>(begin) + i);
          }
        });
    for (const WeightInfo& weight : session.weights().list()) {
      EXPECT_TRUE(std::ranges::all_of(given[weight.name], [](int times) { return times == 1; }))
          << weight.name;
    }
  });
}

}  // namespace tensor_parallel_exchanges_test
