// Loops that threads share: every iteration once, whoever else uses the processors.
#include <octavo/core/context.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace thread_pool_test {

using octavo::Context;
using octavo::Cpu;
using octavo::Index;
using octavo::many_elements;
using octavo::parallel_for;

/// How often each iteration of a loop was run.
std::vector<int> calls_of(Index count, const Context<Cpu>& context) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
  parallel_for(count, many_elements, context,
               [&](Index i) { ++calls[static_cast<std::size_t>(i)]; });
  return {calls.begin(), calls.end()};
}

bool each_once(Index count, const Context<Cpu>& context) {
  return calls_of(count, context) == std::vector<int>(static_cast<std::size_t>(count), 1);
}

TEST(ThreadPool, RunsEachIterationOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const Context<Cpu> context(threads);
    for (const Index count : {0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, 100'003}) {
      EXPECT_TRUE(each_once(count, context)) << count << " iterations, " << threads << " threads";
    }
  }
}

TEST(ThreadPool, ManyShortLoopsLoseNothing) {
  const Context<Cpu> context(4);
  std::atomic<Index> sum{0};
  for (Index round = 0; round < 20'000; ++round) {
    parallel_for(3, many_elements, context, [&](Index i) { sum += i + round; });
  }
  EXPECT_EQ(sum.load(), 3 * Index{20'000} + 3 * (Index{20'000} * 19'999 / 2));
}

TEST(ThreadPool, ThreadIndicesAreUniqueAtAnyTime) {
  const Context<Cpu> context(4);
  std::array<std::atomic<int>, 4> inside{};
  std::atomic<bool> is_alone{true};
  for (int round = 0; round < 200; ++round) {
    parallel_for(64, many_elements, context, [&](Index) {
      const auto place = static_cast<std::size_t>(octavo::thread_index());
      if (++inside.at(place) != 1) is_alone = false;
      --inside.at(place);
    });
  }
  EXPECT_TRUE(is_alone) << "two threads had one number at a time";
  EXPECT_EQ(octavo::thread_index(), 0);
}

/// Threads that take part in a loop whose iterations wait for each other.
std::size_t threads_that_meet(Index elements, int threads) {
  const Context<Cpu> context(threads);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto begin = std::chrono::steady_clock::now();
  parallel_for(threads, elements, context, [&](Index) {
    const auto count = [&] {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.insert(std::this_thread::get_id());
      return seen.size();
    };
    while (count() < static_cast<std::size_t>(threads) &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(elements > 1 ? 20 : 0)) {
      std::this_thread::yield();
    }
  });
  return seen.size();
}

TEST(ThreadPool, SplitsOnlyLargeLoops) {
  EXPECT_EQ(threads_that_meet(many_elements, 3), 3u);
  EXPECT_EQ(threads_that_meet(1, 3), 1u);
}

TEST(ThreadPool, ThreadsStartWithTheirOwnShare) {
  const Context<Cpu> context(3);
  constexpr int rounds = 20;
  int with_own_shares = 0;
  for (int round = 0; round < rounds; ++round) {
    std::array<std::atomic<Index>, 3> first{-1, -1, -1};
    std::atomic<int> threads{0};
    parallel_for(300, many_elements, context, [&](Index i) {
      auto& begin = first.at(static_cast<std::size_t>(octavo::thread_index()));
      if (begin == -1) {
        begin = i;
        ++threads;
      }
      while (threads < 3) std::this_thread::yield();
    });
    with_own_shares += first[0] == 0 && first[1] == 100 && first[2] == 200 ? 1 : 0;
  }
  // A thread that still looks for parts of the last loop may take one of the next loop from another
  // thread's share.
  EXPECT_GE(with_own_shares, rounds / 2);
}

TEST(ThreadPool, StealsWorkOfDelayedThread) {
  const Context<Cpu> context(2);
  std::atomic<int> others{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  parallel_for(16, many_elements, context, [&](Index i) {
    if (i != 8) {
      ++others;
      return;
    }
    while (others < 15 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(others.load(), 15) << "iterations wait for a thread that is delayed";
  });
}

TEST(ThreadPool, NestedLoopRunsOnCallingThread) {
  const Context<Cpu> context(3);
  std::atomic<int> calls{0};
  std::atomic<bool> is_here{true};
  parallel_for(16, many_elements, context, [&](Index) {
    const auto self = std::this_thread::get_id();
    const int number = octavo::thread_index();
    parallel_for(5, many_elements, context, [&](Index) {
      if (std::this_thread::get_id() != self || octavo::thread_index() != 0) is_here = false;
      ++calls;
    });
    if (octavo::thread_index() != number) is_here = false;
  });
  EXPECT_EQ(calls.load(), 80);
  EXPECT_TRUE(is_here);
}

TEST(ThreadPool, PropagatesExceptionsToCaller) {
  const Context<Cpu> context(4);
  std::atomic<int> calls{0};
  const auto throws_at = [&](Index place) {
    parallel_for(100, many_elements, context, [&](Index i) {
      ++calls;
      if (i == place) throw std::runtime_error("iteration " + std::to_string(i));
    });
  };
  for (const Index place : {0, 50, 99}) EXPECT_THROW(throws_at(place), std::runtime_error) << place;
  EXPECT_TRUE(each_once(1000, context)) << "a loop that threw left something behind";
}

TEST(ThreadPool, TwoContextsWorkConcurrently) {
  const auto work = [](bool& is_right) {
    const Context<Cpu> context(3);
    for (int round = 0; round < 300; ++round) is_right = is_right && each_once(500, context);
  };
  bool first = true;
  bool second = true;
  std::thread other(work, std::ref(second));
  work(first);
  other.join();
  EXPECT_TRUE(first && second);
}

TEST(ThreadPool, WorksInForkedChild) {
  const Context<Cpu> context(3);
  ASSERT_TRUE(each_once(1000, context));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(each_once(1000, context) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(each_once(1000, context)) << "of the parent";
}

// A context that a child inherits and destroys: its threads cannot be joined there.
TEST(ThreadPool, ForkedChildCanDestroyInheritedContext) {
  auto context = std::make_unique<Context<Cpu>>(3);
  ASSERT_TRUE(each_once(1000, *context));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    context.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace thread_pool_test
