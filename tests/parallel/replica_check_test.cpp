// Ranks compare the weights that all of them hold, and name the one whose bits differ: ranks that
// are threads, and ranks under mpirun.
#include <octavo/parallel/data_parallel.hpp>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#if defined(OCTAVO_TEST_MPIRUN)
#include <octavo/comm/mpi_comm.hpp>

#include "support/mpirun.hpp"
#endif
#include "support/handing_comm.hpp"
#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace replica_check_test {

using namespace octavo;
using Session = ModelSession<support::SmallModel<Bf16>, AdamW<>, DataParallel<>>;

/// Runs of parameters in the order of forwards; each is gathered once per step.
constexpr std::array<std::string_view, 5> runs{"embedding.weight", "blocks.0", "blocks.1",
                                               "blocks.2", "final_norm.weight to head.weight"};

/// Where a bit of a gathered weight is turned.
struct Fault {
  int rank = 0;
  std::size_t step = 1;  ///< from 1 on
  std::size_t run = 0;
};

/// Ranks of which one gets a wrong bit in what another sent it.
class FaultyLink final : public ::support::ForwardingComm {
 public:
  FaultyLink(Communicator<Cpu>& ranks, Fault fault) : ForwardingComm(ranks), fault_(fault) {}

  void all_gather(Elements<const std::byte> part, Elements<std::byte> whole, const char* what,
                  const Context& context) override {
    ForwardingComm::all_gather(part, whole, what, context);
    if (!std::string_view(what).starts_with("weights of ")) return;
    const std::size_t number = gathers_++;
    if (rank() == fault_.rank && number == (fault_.step - 1) * runs.size() + fault_.run) {
      const int other = (rank() + 1) % size();
      whole.data()[other * part.size() + 17] ^= std::byte{0x10};
    }
  }

 private:
  Fault fault_;
  std::size_t gathers_ = 0;
};

/// Four steps, of which every second compares.
void train(Communicator<Cpu>& ranks, Fault fault, Zero zero = Zero::optimizer) {
  FaultyLink link(ranks, fault);
  Context<Cpu> context{1};
  SessionOptions options = support::small_options();
  options.batch = {1, 16};
  options.check_replicas = 2;
  options.sharding.zero = zero;
  Session session(options, context, link);
  for (unsigned step = 0; step < 4; ++step) {
    const auto batch = support::make_batch(16, support::small.vocabulary,
                                           10 * step + static_cast<unsigned>(ranks.rank()));
    (void)session.step({batch.tokens, batch.targets}, 1e-3);
  }
}

/// What each rank that is a thread says; empty: all is well.
std::vector<std::string> said_by(int ranks, Fault fault, Zero zero = Zero::optimizer) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    try {
      train(communicator, fault, zero);
    } catch (const CommError& error) {
      said[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  return said;
}

void expect_said(const std::vector<std::string>& by_rank, const std::string& text) {
  for (const std::string& said : by_rank) EXPECT_EQ(said.substr(0, text.size()), text);
}

TEST(ReplicaCheck, AcceptsEqualReplicas) {
  EXPECT_EQ(said_by(3, {.step = 5}), std::vector<std::string>(3));
}

TEST(ReplicaCheck, ReportsRankThatDisagreesWithMajority) {
  for (const Zero zero : {Zero::optimizer, Zero::gradients}) {
    for (const int rank : {0, 2}) {
      expect_said(said_by(3, {.rank = rank, .step = 2, .run = 2}, zero),
                  message("in step 2 rank ", rank, " read different weights of '", runs[2],
                          "' than most ranks; "));
    }
  }
}

TEST(ReplicaCheck, ComparesEveryRun) {
  for (std::size_t run = 0; run < runs.size(); ++run) {
    expect_said(said_by(3, {.rank = 1, .step = 4, .run = run}),
                message("in step 4 rank 1 read different weights of '", runs[run], "'"));
  }
}

TEST(ReplicaCheck, ReportsBothOfTwoRanks) {
  expect_said(
      said_by(2, {.rank = 1, .step = 2, .run = 1}),
      "in step 2 ranks 0 and 1 read different weights of 'blocks.0', and no more than half of "
      "them agree; ");
}

// What a rank got wrong in a step between is gathered anew in the next.
TEST(ReplicaCheck, SkipsOtherSteps) {
  EXPECT_EQ(said_by(3, {.rank = 1, .step = 3, .run = 1}), std::vector<std::string>(3));
}

TEST(ReplicaCheck, CountsDifferingRuns) {
  const std::vector<std::uint64_t> hashes{1, 2, 3, 4, 1, 2, 9, 9, 1, 7, 8, 9};
  try {
    octavo::detail::require_equal_replicas(hashes, {"a", "b", "c", "d"}, 1, 5);
    FAIL() << "nothing was said";
  } catch (const CommError& error) {
    EXPECT_TRUE(
        std::string_view(error.what())
            .starts_with("in step 5 rank 2 read different weights of 'b' than most ranks, and "
                         "of 2 more flat buffers; "))
        << error.what();
  }
}

// Replicas are in the same place of their groups.
TEST(ReplicaCheck, ReportsRankWithinTensorParallelGroups) {
  const std::vector<std::uint64_t> hashes{1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3, 4};
  try {
    octavo::detail::require_equal_replicas(hashes, {"a", "b"}, 2, 5);
    FAIL() << "nothing was said";
  } catch (const CommError& error) {
    EXPECT_TRUE(
        std::string_view(error.what())
            .starts_with("in step 5 rank 3 read different weights of 'b' than most ranks; "))
        << error.what();
  }
}

TEST(ReplicaCheck, RejectsShardedWeights) {
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    SessionOptions options = support::small_options();
    options.check_replicas = 1;
    options.sharding.zero = Zero::weights;
    EXPECT_THROW(Session(options, context, communicator), ConfigError);
  });
}

#if defined(OCTAVO_TEST_MPIRUN)

/// A rank, which the test below starts through mpirun.
TEST(ReplicaCheckRank, DISABLED_HasAWrongBit) {
  Mpi mpi(read_launch(), std::chrono::seconds(30));
  try {
    MpiComm ranks(mpi);
    train(ranks, Fault{.rank = 1, .step = 2, .run = 3});
  } catch (const std::exception& error) {
    mpi.abort(error.what());
  }
}

TEST(ReplicaCheck, ReportsDifferingRankUnderMpirun) {
  const ChildResult result = run_mpirun(
      3, {std::filesystem::read_symlink("/proc/self/exe"), "--gtest_also_run_disabled_tests",
          "--gtest_filter=ReplicaCheckRank.DISABLED_HasAWrongBit"});
  EXPECT_GT(result.exit_code, 0);
  EXPECT_NE(
      result.err.find(": in step 2 rank 1 read different weights of 'blocks.2' than most ranks"),
      std::string::npos)
      << result.err;
}

#endif

}  // namespace replica_check_test
