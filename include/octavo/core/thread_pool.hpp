/// @file
/// Threads that share the iterations of a loop.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/host_clock.hpp>
#include <octavo/core/start_thread.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The state of a loop as seen by the calling thread.
struct LoopPlace {
  int thread = 0;          ///< index among the loop's threads; the caller's is 0
  bool is_inside = false;  ///< whether the thread is running an iteration
};
inline LoopPlace& loop_place() {
  thread_local LoopPlace place;
  return place;
}

/// Sets the calling thread's place until the end of the scope.
class InLoop {
 public:
  explicit InLoop(int thread) { loop_place() = {thread, true}; }
  InLoop(const InLoop&) = delete;
  InLoop& operator=(const InLoop&) = delete;
  ~InLoop() { loop_place() = before_; }

 private:
  LoopPlace before_ = loop_place();
};

/// Signals to the processor that the thread is spinning.
inline void pause_spinning() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `value` differs from `old`. Spins briefly, because the next loop of a step usually
/// starts soon, then sleeps in the kernel.
inline void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  constexpr double moment = 200;  // µs
  const double begin = host_microseconds();
  do {
    for (int i = 0; i < 50; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_spinning();
    }
  } while (host_microseconds() - begin < moment);
  value.wait(old, std::memory_order_acquire);
}

/// The number of forks between the process that created the library's first pool and this process.
inline std::atomic<unsigned>& fork_count() {
  static std::atomic<unsigned> count{0};
  static const int is_registered =
      ::pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(is_registered);
  return count;
}

}  // namespace detail

/// Threads that share the iterations of one loop at a time with the thread that calls `run`. They
/// start with the first loop, and sleep between loops. Each thread begins with its own contiguous
/// share of the iterations, so that loops over the same rows find them in the same processor's
/// cache, and then takes iterations of other threads' shares. A thread takes a few iterations at a
/// time, so a thread that the system does not schedule delays only a few. After a fork the child
/// starts new threads.
class ThreadPool {
 public:
  /// @param threads  threads for each loop, including the calling thread; at least 1
  explicit ThreadPool(int threads) : threads_(threads) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() { forget_after_fork(); }

  [[nodiscard]] int threads() const { return threads_; }

  /// Calls `body(i)` for 0 ≤ i < count on the pool's threads, and returns when all calls have
  /// ended. Supports one caller at a time.
  /// @throws  the first exception that a call threw; all other calls are still made
  /// @throws Error  if the system cannot start a thread
  template <class Body>
  void run(Index count, const Body& body) {
    Team& team = started();
    const Index parts = std::min(count, Index{threads_} * parts_per_thread);
    team.loop = {[](const void* all, Index begin, Index end) {
                   const Body& call = *static_cast<const Body*>(all);
                   for (Index i = begin; i < end; ++i) call(i);
                 },
                 &body, count, parts};
    team.error = nullptr;
    team.done.store(0, std::memory_order_relaxed);
    for (int thread = 0; thread < threads_; ++thread) {
      const Index size = team.end_of_share(thread) - team.end_of_share(thread - 1);
      team.shares[static_cast<std::size_t>(thread)].left.store(static_cast<std::uint32_t>(size),
                                                               std::memory_order_release);
    }
    team.loops.fetch_add(1, std::memory_order_release);
    team.loops.notify_all();
    team.run_parts(0);
    const auto all = static_cast<std::uint32_t>(parts);
    for (std::uint32_t done = team.done.load(std::memory_order_acquire); done != all;
         done = team.done.load(std::memory_order_acquire)) {
      detail::wait_for_change(team.done, done);
    }
    if (team.error != nullptr) std::rethrow_exception(std::exchange(team.error, nullptr));
  }

 private:
  /// Parts of a loop for each thread: the smaller the parts, the fewer iterations wait for a thread
  /// that is not scheduled.
  static constexpr Index parts_per_thread = 8;

  struct Loop {
    void (*call)(const void* body, Index begin, Index end) = nullptr;
    const void* body = nullptr;
    Index count = 0;
    Index parts = 0;
  };

  /// The parts of a loop that a thread begins with.
  struct alignas(64) Share {
    std::atomic<std::uint32_t> left{0};  ///< parts that no thread has taken
  };

  /// The started threads, and the state that they share.
  struct Team {
    explicit Team(int threads) : shares(static_cast<std::size_t>(threads)) {
      try {
        for (int thread = 1; thread < threads; ++thread) {
          members.push_back(detail::start_thread("a loop", [this, thread] { run_worker(thread); }));
        }
      } catch (...) {
        end();
        throw;
      }
    }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;
    ~Team() { end(); }

    void end() {
      has_ended.store(true, std::memory_order_relaxed);
      loops.fetch_add(1, std::memory_order_release);
      loops.notify_all();
      for (std::thread& member : members) member.join();
      members.clear();
    }

    void run_worker(int thread) {
      for (std::uint32_t seen = 0; !has_ended.load(std::memory_order_relaxed);) {
        run_parts(thread);
        detail::wait_for_change(loops, seen);
        seen = loops.load(std::memory_order_acquire);
      }
    }

    /// Returns the end of a thread's share, in parts of the current loop.
    [[nodiscard]] Index end_of_share(int thread) const {
      return loop.parts * (thread + 1) / static_cast<Index>(shares.size());
    }

    /// Takes parts of the current loop until none is left, first those of the thread's own share.
    void run_parts(int thread) {
      const auto threads = static_cast<int>(shares.size());
      for (int i = 0; i < threads; ++i) run_share((thread + i) % threads, thread);
    }

    /// Takes parts of a share until none is left. A part can be taken only while the loop waits for
    /// it, so `loop` cannot change meanwhile. `now` may come from an earlier loop: if it
    /// equals the current number of parts, the thread takes a part of the current loop.
    void run_share(int share, int thread) {
      std::atomic<std::uint32_t>& left = shares[static_cast<std::size_t>(share)].left;
      std::uint32_t now = left.load(std::memory_order_acquire);
      while (now != 0) {
        if (!left.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
          continue;
        }
        const auto all = static_cast<std::uint32_t>(loop.parts);
        run_part(end_of_share(share) - Index{now}, thread);
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == all) done.notify_one();
        now = left.load(std::memory_order_acquire);
      }
    }

    void run_part(Index part, int thread) {
      const detail::InLoop inside(thread);
      try {
        loop.call(loop.body, loop.count * part / loop.parts, loop.count * (part + 1) / loop.parts);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex);
        if (error == nullptr) error = std::current_exception();
      }
    }

    Loop loop;
    std::vector<Share> shares;                        ///< one for each thread
    alignas(64) std::atomic<std::uint32_t> done{0};   ///< parts of the loop that have ended
    alignas(64) std::atomic<std::uint32_t> loops{0};  ///< the number of the newest loop
    std::atomic<bool> has_ended{false};
    std::mutex error_mutex;
    std::exception_ptr error;
    std::vector<std::thread> members;
  };

  Team& started() {
    forget_after_fork();
    if (team_ == nullptr) {
      forks_ = detail::fork_count().load(std::memory_order_relaxed);
      team_ = std::make_unique<Team>(threads_);
    }
    return *team_;
  }
  /// The threads of a parent process do not exist in its child: the child can neither use nor join
  /// them.
  void forget_after_fork() {
    if (team_ != nullptr && forks_ != detail::fork_count().load(std::memory_order_relaxed)) {
      static_cast<void>(team_.release());
    }
  }

  int threads_;
  unsigned forks_ = 0;  ///< the fork count when the team was started
  std::unique_ptr<Team> team_;
};

}  // namespace octavo
