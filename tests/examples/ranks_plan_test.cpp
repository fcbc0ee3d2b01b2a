// What plan_memory says of ranks is what ranks allocate, whatever they send.
#include <plan_memory/options.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "support/thread_ranks.hpp"

namespace ranks_plan_test {

using namespace octavo;

/// The bytes that each of the ranks allocates.
template <class Ranks>
std::vector<std::size_t> allocated(const planner::Options& options) {
  using Model = Llama<llama_tiny, Fp8Recipe<Delayed>, Cpu>;
  std::vector<std::size_t> bytes(static_cast<std::size_t>(options.world));
  support::on_ranks(options.world, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    const ModelSession<Model, AdamW<>, Ranks> session(planner::request_of(options).session, context,
                                                      communicator);
    bytes[static_cast<std::size_t>(communicator.rank())] = session.facts().allocated_bytes;
  });
  return bytes;
}

/// Holds plans of ranks that send in these formats against sessions of `Ranks`.
/// @return  the plans' peaks
template <class Ranks>
std::vector<std::size_t> expect_plans(const std::string& reduce, const std::string& gather) {
  const planner::Plan plan({"llama_tiny", description_of(llama_tiny)}, "fp8-delayed");
  planner::Options options;
  options.model = "llama_tiny";
  options.device = "cpu";
  options.threads = 1;
  options.batch = 2;
  options.sequence_length = 32;
  options.master_weights = options.moments = "fp32";
  options.reduce = reduce;
  options.gather = gather;
  std::vector<std::size_t> peaks;
  for (options.world = 1; options.world <= 2; ++options.world) {
    for (options.zero = 1; options.zero <= 3; ++options.zero) {
      for (const std::string& copies : programs::weight_copies_names) {
        options.weight_copies = copies;
        options.micro_batches = options.zero;
        const std::size_t planned = plan.memory(planner::request_of(options)).peak;
        for (const std::size_t bytes : allocated<Ranks>(options)) {
          EXPECT_EQ(bytes, planned) << reduce << ", " << gather << ", " << copies << ", ZeRO-"
                                    << options.zero << " of " << options.world;
        }
        peaks.push_back(planned);
      }
    }
  }
  return peaks;
}

TEST(PlanOfRanks, MatchesAllocationsOfRanks) {
  std::set<std::vector<std::size_t>> distinct;
  distinct.insert(expect_plans<DataParallel<>>("stored", "stored"));
  distinct.insert(expect_plans<DataParallel<ReduceIn<Fp32>>>("fp32", "stored"));
  distinct.insert(expect_plans<DataParallel<ReduceIn<E4M3>>>("e4m3", "stored"));
  distinct.insert(expect_plans<DataParallel<ReduceIn<>, GatherIn<E4M3>>>("stored", "fp8"));
  distinct.insert(expect_plans<DataParallel<ReduceIn<Fp32>, GatherIn<E4M3>>>("fp32", "fp8"));
  EXPECT_EQ(distinct.size(), 5);
}

}  // namespace ranks_plan_test
