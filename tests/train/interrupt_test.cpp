#include <octavo/train/interrupt.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace interrupt_test {

using octavo::InterruptGuard;
using testing::KilledBySignal;

TEST(InterruptGuard, NotesASignal) {
  const InterruptGuard guard;
  EXPECT_EQ(InterruptGuard::received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(InterruptGuard::received(), SIGTERM);
}

TEST(InterruptGuard, StartsAnew) {
  {
    const InterruptGuard guard;
    std::raise(SIGINT);
  }
  const InterruptGuard guard;
  EXPECT_EQ(InterruptGuard::received(), 0);
  std::raise(SIGINT);
  EXPECT_EQ(InterruptGuard::received(), SIGINT);
}

TEST(InterruptGuard, TakesWhatComesWithinASecondForOneSignal) {
  const InterruptGuard guard;
  for (const int signal : {SIGTERM, SIGTERM, SIGINT, SIGTERM}) std::raise(signal);
  EXPECT_EQ(InterruptGuard::received(), SIGTERM);
}

TEST(InterruptGuardDeathTest, EndsTheProgramAtALaterSignal) {
  const auto twice = [](int first, int second) {
    const InterruptGuard guard;
    std::raise(first);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    std::raise(second);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), KilledBySignal(SIGTERM), "");
}

TEST(InterruptGuardDeathTest, LeavesSignalsAsTheyWere) {
  { const InterruptGuard guard; }
  EXPECT_EXIT(std::raise(SIGTERM), KilledBySignal(SIGTERM), "");
}

}  // namespace interrupt_test
