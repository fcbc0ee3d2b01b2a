#pragma once

#include <octavo/comm/comm.hpp>
#include <octavo/memory/buffer.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

/// Ranks that are threads of one program.
namespace support {

/// What the first rank that failed threw. The others then do not wait for it.
struct ThreadFailure {
  std::mutex mutex;  ///< of all meetings, too
  std::condition_variable changed;
  std::exception_ptr thrown;

  /// Called by the rank that throws.
  void set(std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (thrown == nullptr) thrown = std::move(error);
    changed.notify_all();
  }
};

/// Where ranks show each other what they send.
struct ThreadRanks {
  /// @param shared  by the groups of ranks
  explicit ThreadRanks(int size,
                       std::shared_ptr<ThreadFailure> shared = std::make_shared<ThreadFailure>())
      : failure(std::move(shared)), sent(static_cast<std::size_t>(size)) {}

  /// Waits until all ranks are here.
  /// @throws CommError  on all of them, if a rank fails before
  void arrive_and_wait() {
    std::unique_lock lock(failure->mutex);
    const auto has_failed = [this] { return failure->thrown != nullptr; };
    octavo::require<octavo::CommError>(!has_failed(), "another rank failed");
    const int number = arrive();
    failure->changed.wait(lock, [&] { return meetings != number || has_failed(); });
    octavo::require<octavo::CommError>(meetings != number, "another rank failed");
  }
  /// Waits until all ranks that met are here.
  void part() {
    std::unique_lock lock(failure->mutex);
    failure->changed.wait(lock, [this, number = arrive()] { return meetings != number; });
  }
  /// Returns the number of the meeting at which this rank is.
  int arrive() {
    const int number = meetings;
    if (++arrived == sent.size()) {
      arrived = 0;
      ++meetings;
      failure->changed.notify_all();
    }
    return number;
  }

  std::shared_ptr<ThreadFailure> failure;
  std::size_t arrived = 0;
  int meetings = 0;
  std::vector<const std::byte*> sent;  ///< by each of the ranks
  std::mutex splitting;
  /// By the number of the split and of the group.
  std::map<std::pair<int, int>, std::shared_ptr<ThreadRanks>> groups;
};

/// On the `Cuda` device each operation waits for the rank's stream, so it cannot be recorded.
template <octavo::Device D>
class ThreadRank final : public octavo::Communicator<D> {
 public:
  using Context = octavo::Context<D>;
  using Bytes = octavo::TensorView<std::byte, 1, D>;
  using ConstBytes = octavo::TensorView<const std::byte, 1, D>;

  ThreadRank(ThreadRanks& ranks, int rank) : ranks_(ranks), rank_(rank) {}
  ThreadRank(std::shared_ptr<ThreadRanks> ranks, int rank)
      : owned_(std::move(ranks)), ranks_(*owned_), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(ranks_.sent.size()); }

  void all_gather(ConstBytes part, Bytes whole, const char*, const Context& context) override {
    context.synchronize();
    exchange(part.data(), [&](std::size_t rank, const std::byte* source) {
      std::byte* place = whole.data() + rank * part.bytes();
      if (place != source) copy_on_device(place, source, part.bytes(), context);
      context.synchronize();
    });
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char*) override {
    exchange(part.data(), [&](std::size_t rank, const std::byte* source) {
      std::memcpy(whole.data() + rank * part.size(), source, part.size());
    });
  }
  void all_to_all(ConstBytes parts, Bytes received, const char*, const Context& context) override {
    const std::size_t part = parts.bytes() / ranks_.sent.size();
    context.synchronize();
    exchange(parts.data(), [&](std::size_t rank, const std::byte* source) {
      if (rank == static_cast<std::size_t>(rank_)) return;
      copy_on_device(received.data() + rank * part, source + static_cast<std::size_t>(rank_) * part,
                     part, context);
      context.synchronize();
    });
  }
  void all_reduce_max(octavo::TensorView<std::uint32_t, 1, D> values, const char*,
                      const Context& context) override {
    std::vector<std::uint32_t> own(static_cast<std::size_t>(values.size()));
    copy_to_host_sync(own.data(), values.data(), values.bytes(), context);
    std::vector<std::uint32_t> largest = own;
    exchange(reinterpret_cast<const std::byte*>(own.data()),
             [&](std::size_t, const std::byte* source) {
               for (std::size_t i = 0; i < own.size(); ++i) {
                 std::uint32_t value = 0;
                 std::memcpy(&value, source + i * sizeof(value), sizeof(value));
                 largest[i] = std::max(largest[i], value);
               }
             });
    copy_to_device_sync(values.data(), largest.data(), values.bytes(), context);
  }

  [[nodiscard]] std::unique_ptr<octavo::Communicator<D>> split(int group) override {
    const std::vector<int> members = this->ranks_of_group(group);
    const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
    const std::lock_guard lock(ranks_.splitting);
    auto& of_group = ranks_.groups[{splits_++, group}];
    if (of_group == nullptr) {
      of_group = std::make_shared<ThreadRanks>(static_cast<int>(members.size()), ranks_.failure);
    }
    return std::make_unique<ThreadRank>(of_group, static_cast<int>(place));
  }

 private:
  struct ExitBarrier {
    ThreadRanks& ranks;
    ~ExitBarrier() { ranks.part(); }
  };

  /// Calls `take(rank, sent)` for what every rank sends.
  template <class Take>
  void exchange(const std::byte* sends, const Take& take) {
    ranks_.sent[static_cast<std::size_t>(rank_)] = sends;
    ranks_.arrive_and_wait();
    const ExitBarrier exit_barrier{ranks_};  // what this rank sends stays until all have read it
    for (std::size_t rank = 0; rank < ranks_.sent.size(); ++rank) take(rank, ranks_.sent[rank]);
  }

  std::shared_ptr<ThreadRanks> owned_;  ///< of a group
  ThreadRanks& ranks_;
  int rank_;
  int splits_ = 0;
};

using ThreadComm = ThreadRank<octavo::Cpu>;

/// Calls `body(communicator)` in a thread for each of the ranks, and waits. Throws what a rank
/// threw first; the exchanges of the others then throw as well.
template <octavo::Device D = octavo::Cpu, class Body>
void on_ranks(int ranks, const Body& body) {
  ThreadRanks meeting(ranks);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadRank<D> communicator(meeting, rank);
        body(communicator);
      } catch (...) {
        meeting.failure->set(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (meeting.failure->thrown != nullptr) std::rethrow_exception(meeting.failure->thrown);
}

}  // namespace support
