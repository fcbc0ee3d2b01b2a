#include <octavo/run/interrupt.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace interrupt_test {

using octavo::InterruptGuard;
using testing::KilledBySignal;

TEST(InterruptGuard, RecordsSignal) {
  const InterruptGuard guard;
  EXPECT_EQ(InterruptGuard::received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(InterruptGuard::received(), SIGTERM);
}

TEST(InterruptGuard, RecordsSchedulerWarning) {
  const InterruptGuard guard;
  std::raise(SIGUSR1);
  EXPECT_EQ(InterruptGuard::received(), SIGUSR1);
}

// The terminal of a run is gone, such as at the end of an ssh connection.
TEST(InterruptGuard, RecordsHangup) {
  const InterruptGuard guard;
  std::raise(SIGHUP);
  EXPECT_EQ(InterruptGuard::received(), SIGHUP);
}

// As nohup ignores it.
TEST(InterruptGuard, LeavesIgnoredHangupIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    EXPECT_EQ(InterruptGuard::received(), 0);
  }
  std::raise(SIGHUP);
  std::signal(SIGHUP, before);
}

TEST(InterruptGuard, AcceptsRequestOfProgram) {
  testing::internal::CaptureStderr();
  {
    const InterruptGuard guard("stopping\n");
    InterruptGuard::request(SIGTERM);
    EXPECT_EQ(InterruptGuard::received(), SIGTERM);
    InterruptGuard::request(SIGINT);
    EXPECT_EQ(InterruptGuard::received(), SIGTERM);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(InterruptGuard, StartsWithoutPendingSignal) {
  {
    const InterruptGuard guard;
    std::raise(SIGINT);
  }
  EXPECT_EQ(InterruptGuard::received(), 0) << "what is not guarded is not interrupted";
  const InterruptGuard guard;
  EXPECT_EQ(InterruptGuard::received(), 0);
  std::raise(SIGINT);
  EXPECT_EQ(InterruptGuard::received(), SIGINT);
}

TEST(InterruptGuard, MergesSignalsWithinOneSecond) {
  const InterruptGuard guard;
  for (const int signal : {SIGTERM, SIGTERM, SIGINT, SIGTERM}) std::raise(signal);
  EXPECT_EQ(InterruptGuard::received(), SIGTERM);
}

TEST(InterruptGuardDeathTest, LaterSignalEndsProgram) {
  const auto twice = [](int first, int second) {
    const InterruptGuard guard;
    std::raise(first);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    std::raise(second);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), KilledBySignal(SIGTERM), "");
}

/// What a guard with `text` writes when these signals come.
std::string written_at(const std::vector<int>& signals, const char* text) {
  testing::internal::CaptureStderr();
  {
    const InterruptGuard guard(text);
    errno = EDOM;
    for (const int signal : signals) std::raise(signal);
    EXPECT_EQ(errno, EDOM);
  }
  return testing::internal::GetCapturedStderr();
}

TEST(InterruptGuard, AcknowledgesOnlyFirstSignal) {
  EXPECT_EQ(written_at({}, "stopping\n"), "");
  EXPECT_EQ(written_at({SIGINT}, "stopping\n"), "stopping\n");
  EXPECT_EQ(written_at({SIGINT, SIGINT, SIGTERM}, "stopping\n"), "stopping\n");
  EXPECT_EQ(written_at({SIGTERM}, nullptr), "");
}

TEST(InterruptGuardDeathTest, RestoresSignalHandlers) {
  {
    const InterruptGuard guard;
  }
  EXPECT_EXIT(std::raise(SIGTERM), KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(std::raise(SIGUSR1), KilledBySignal(SIGUSR1), "");
  EXPECT_EXIT(std::raise(SIGHUP), KilledBySignal(SIGHUP), "");
}

}  // namespace interrupt_test
