// Ranks under mpirun: what they send each other, and what happens to the others when one fails.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#if defined(OCTAVO_TEST_MPIRUN)
#include "../support/mpirun.hpp"
#endif

namespace mpi_comm_test {

#if !defined(OCTAVO_TEST_MPIRUN)

TEST(MpiComm, IsNotBuiltHere) { GTEST_SKIP() << "this build has no MPI"; }

#else

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

/// Waits in operations this long where a fault is awaited; other programs may use all processors.
constexpr int timeout = 3;
/// A run ends this many seconds after its time-out at the latest.
constexpr int grace = 20;

/// Runs mpi_ranks.
ChildResult mpirun(int ranks, int seconds, const std::vector<std::string>& mode,
                   const std::vector<std::string>& options = {}) {
  std::vector<std::string> program{OCTAVO_TEST_MPI_RANKS, std::to_string(seconds * 1000)};
  program.insert(program.end(), mode.begin(), mode.end());
  return run_mpirun(ranks, program, options);
}

/// Whether nothing is left of the processes that said their numbers.
AssertionResult no_process_is_left(const ChildResult& result, int ranks) {
  const std::regex line("pid (\\d+)\n");
  std::vector<pid_t> pids;
  for (std::sregex_iterator match(result.out.begin(), result.out.end(), line), end; match != end;
       ++match) {
    pids.push_back(std::stoi((*match)[1]));
  }
  if (static_cast<int>(pids.size()) != ranks)
    return AssertionFailure() << pids.size() << " of " << ranks << " ranks said their number";
  for (const pid_t pid : pids) {
    // A killed process ends after a moment, which is seconds long on a busy machine.
    for (int i = 0; ::kill(pid, 0) == 0; ++i) {
      if (i == 1000) return AssertionFailure() << "process " << pid << " is still there";
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return AssertionSuccess();
}

AssertionResult says(const ChildResult& result, const std::string& pattern) {
  if (std::regex_search(result.err, std::regex(pattern))) return AssertionSuccess();
  return AssertionFailure() << "stderr lacks '" << pattern << "':\n" << result.err;
}

/// Runs into the fault with three ranks, of which rank 1 has it.
ChildResult fail_with(const std::string& mode, int seconds = timeout) {
  ChildResult result = mpirun(3, seconds, {mode});
  EXPECT_GT(result.exit_code, 0) << result.err;
  EXPECT_LT(result.seconds, seconds + grace) << result.err;
  EXPECT_TRUE(no_process_is_left(result, 3)) << result.out << result.err;
  return result;
}

/// Longer than any of these programs takes where no rank waits for another in vain.
constexpr int never = 100;

const std::string weights = "the all-gather 'weights of run 3'";

class MpiRanks : public ::testing::TestWithParam<int> {};

// Misuse of memory shows in fewer exchanges than an operation that rarely goes wrong.
#ifdef OCTAVO_TEST_FEW_TYPES
constexpr const char* repeats = "200";
#else
constexpr const char* repeats = "3000";
#endif

TEST_P(MpiRanks, AllOperationsGiveCorrectResults) {
  const ChildResult result = mpirun(GetParam(), never, {"operations", repeats});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (int rank = 0; rank < GetParam(); ++rank) {
    EXPECT_NE(result.out.find("rank " + std::to_string(rank) + " is done"), std::string::npos);
  }
  EXPECT_TRUE(no_process_is_left(result, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiRanks, ::testing::Values(1, 2, 4));

TEST(MpiFault, RankIsKilled) {
  const ChildResult result = fail_with("killed", never);
  EXPECT_TRUE(says(result, "process rank 1 .* signal 9"));  // mpirun, which ends the others
  EXPECT_TRUE(says(result, "rank [02] (waits for|is past) .*" + weights));
}

TEST(MpiFault, RankIsKilledUnderInterruptGuard) {
  const ChildResult result = fail_with("killed-with-guard", never);
  EXPECT_TRUE(says(result, "process rank 1 .* signal 9"));
  EXPECT_TRUE(says(result, "rank [02] (waits for|is past) .*" + weights));
}

TEST(MpiFault, RankIsKilledAndMpirunContinues) {
  // This mpirun's own exit code says nothing.
  const ChildResult result = mpirun(3, timeout, {"killed"}, {"--enable-recovery"});
  EXPECT_TRUE(says(result, "rank [02]: rank 1 has not answered for 3 s in " + weights));
  EXPECT_TRUE(no_process_is_left(result, 3)) << result.out << result.err;
}

TEST(MpiFault, RankIsStopped) {
  const ChildResult result = fail_with("stopped");
  EXPECT_TRUE(says(result, "rank [02]: rank 1 has not answered for 3 s in " + weights));
}

TEST(MpiFault, RankIsStoppedAtEndOfRun) {
  const ChildResult result = fail_with("stopped-at-end");
  EXPECT_TRUE(says(result,
                   "rank [02]: rank 1 has not answered for 3 s in "
                   "the barrier 'end of the run'"));
}

TEST(MpiFault, RankIsLate) {
  const ChildResult result = fail_with("absent");
  EXPECT_TRUE(says(result,
                   "rank [02]: rank 1 has not answered for 3 s in "
                   "the barrier 'start of a communicator'"));
}

TEST(MpiFault, RankThrows) {
  const ChildResult result = fail_with("throws", never);
  EXPECT_TRUE(says(result, "rank 1: the data ended"));
  EXPECT_TRUE(says(result, "rank [02] (waits for|is past) "));
  EXPECT_LT(result.seconds, never) << "the others waited";
}

TEST(MpiFault, RankThrowsPastMpi) {
  const ChildResult result = fail_with("throws-past-mpi", never);
  EXPECT_TRUE(says(result, "rank 1: the program leaves MPI after an error"));
  EXPECT_LT(result.seconds, never) << "the others waited";
}

TEST(MpiFault, RankExits) {
  const ChildResult result = fail_with("exits");
  EXPECT_TRUE(says(result, "process rank 1|rank 1 has not answered"));
}

TEST(MpiFault, RankCallsAnotherOperation) {
  const ChildResult result = fail_with("calls-another");
  EXPECT_TRUE(says(result, "rank [02]: rank 1 has not answered for 3 s in " + weights +
                               "; rank 1 has sent messages of another operation|"
                               "rank 1: ranks 0 and 2 have not answered for 3 s in "
                               "the maximum 'amaxes'; ranks 0 and 2 have sent messages"));
}

TEST(MpiFault, RankSendsTooFewBytes) {
  const ChildResult result = fail_with("sends-less");
  EXPECT_TRUE(says(result, "rank [02]: rank 1 sent 100000 bytes in " + weights +
                               ", but rank [02] waits for 300000|rank 1: rank [02] sent 300000 "
                               "bytes in " +
                               weights + ", but rank 1 waits for 100000"));
}

TEST(MpiFault, MpiAndLaunchDisagreeOnRank) {
  const ChildResult result = mpirun(2, timeout, {"alone"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_TRUE(
      says(result,
           "MPI reports rank [01] of 2, but no launcher reports rank 0 of 1; start with mpirun"));
}

#endif

}  // namespace mpi_comm_test
