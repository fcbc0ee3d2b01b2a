// Copies between ranks, which are processes here: they need no GPU each.
#include "../support/on_gpu.cuh"
#include "../support/rank_processes.hpp"

#include <octavo/comm/cuda/copy_exchange.cuh>
#include <octavo/comm/rendezvous.hpp>
#include <octavo/core/cuda/lane.cuh>
#include <octavo/core/cuda/replay.cuh>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace copy_exchange_test {

using octavo::Buffer;
using octavo::Context;
using octavo::CopyExchange;
using octavo::Cuda;
using octavo::PeerMemory;

constexpr std::size_t part_bytes = 300'000;  // no multiple of anything

std::byte byte_of(int from, int to, int step, std::size_t i) {
  return static_cast<std::byte>(i * 7 + (i >> 8) * 11 + static_cast<std::size_t>(from * 131) +
                                static_cast<std::size_t>(to * 37 + step * 59));
}

/// What one rank has.
struct Rank {
  Rank(octavo::Rendezvous& host_rendezvous, std::chrono::nanoseconds timeout,
       const Context<Cuda>& on)
      : rendezvous(host_rendezvous),
        context(on),
        ranks(static_cast<std::size_t>(host_rendezvous.size())),
        memory(host_rendezvous.rank(), host_rendezvous.size(),
               [&host_rendezvous](auto part, auto whole, const char* what) {
                 host_rendezvous.all_gather_sync(part, whole, what);
               }),
        shared(PeerMemory::min_bytes + 2 * ranks * part_bytes, on) {
    memory.add(shared.data(), shared.size(), on);
    std::vector<int> members;
    for (int rank = 0; rank < host_rendezvous.size(); ++rank) members.push_back(rank);
    exchange.emplace(memory, members, host_rendezvous.rank(), timeout, on);
  }
  ~Rank() {
    if (!exchange.has_value()) return;
    exchange->close(true);
    memory.remove(shared.data(), true);
  }

  [[nodiscard]] int number() const { return rendezvous.rank(); }
  [[nodiscard]] std::byte* gathered() const { return shared.data() + 100; }
  [[nodiscard]] std::byte* exchanged() const { return gathered() + ranks * part_bytes; }

  octavo::Rendezvous& rendezvous;
  const Context<Cuda>& context;
  std::size_t ranks;
  PeerMemory memory;
  Buffer<Cuda> shared;
  std::optional<CopyExchange> exchange;
};

void fill(std::byte* parts, const Rank& rank, int step, const Context<Cuda>& context) {
  std::vector<std::byte> bytes(rank.ranks * part_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = byte_of(rank.number(), static_cast<int>(i / part_bytes), step, i % part_bytes);
  }
  octavo::copy_to_device_sync(parts, bytes.data(), bytes.size(), context);
}

/// What has to have come, to the part of the gather that each rank gave and to this one's parts.
void expect(const std::byte* gathered, const std::byte* exchanged, const Rank& rank, int step,
            const Context<Cuda>& context) {
  std::vector<std::byte> all(rank.ranks * part_bytes);
  for (const bool is_gather : {true, false}) {
    octavo::copy_to_host_sync(all.data(), is_gather ? gathered : exchanged, all.size(), context);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int from = static_cast<int>(i / part_bytes);
      if (!is_gather && from == rank.number()) continue;  // stays where it is
      ASSERT_EQ(all[i], byte_of(from, is_gather ? 0 : rank.number(), step, i % part_bytes))
          << "rank " << rank.number() << ", byte " << i << ", step " << step << ", " << is_gather;
    }
  }
}

/// Recorded and launched on, one rank after the other the last to come.
void check_steps(Rank& rank) {
  const Context<Cuda>& context = rank.context;
  const Buffer<Cuda> parts(rank.ranks * part_bytes, context);
  octavo::Replay<Cuda> replay;
  for (int step = 0; step < 20; ++step) {
    fill(parts.data(), rank, step, context);
    const auto late_in = [&](int place) {
      if ((step + place) % static_cast<int>(rank.ranks) != rank.number()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    late_in(0);
    replay.run(context, [&] {
      rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", context);
      rank.exchange->all_to_all(parts.data(), rank.exchanged(), part_bytes, "parts", context);
    });
    context.synchronize();
    EXPECT_EQ(rank.exchange->current_operation(), "");
    late_in(1);  // others come to the next step, and must not write over what this one has to read
    expect(rank.gathered(), rank.exchanged(), rank, step, context);
  }
}

/// On two streams at once, which nothing orders.
void check_lanes(Rank& rank) {
  const Buffer<Cuda> parts(rank.ranks * part_bytes, rank.context);
  std::optional<octavo::Lane<Cuda>> made;
  std::vector<std::unique_ptr<Context<Cuda>>> others;
  for (int step = 0; step < 20; ++step) {
    // Lanes come and go, and each rank has contexts besides, so that streams' addresses differ.
    if (step % 4 == 0) {
      made.reset();
      for (int i = 0; i < rank.number(); ++i) {
        others.push_back(std::make_unique<Context<Cuda>>(rank.context.gpu()));
      }
      made.emplace(rank.context);
    }
    const octavo::Lane<Cuda>& lane = *made;
    fill(parts.data(), rank, step, rank.context);
    lane.fork();
    rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", lane.context());
    rank.exchange->all_to_all(parts.data(), rank.exchanged(), part_bytes, "parts", rank.context);
    lane.join();
    expect(rank.gathered(), rank.exchanged(), rank, step, rank.context);
  }
}

/// A rank that waits in vain, and gives up.
void check_giving_up(Rank& rank) {
  const Buffer<Cuda> parts(rank.ranks * part_bytes, rank.context);
  if (rank.number() == 0) {
    rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", rank.context);
    for (int round = 0; rank.exchange->current_operation().empty() && round < 2000; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(rank.exchange->current_operation(), "the all-gather 'parts'");
    EXPECT_EQ(cudaStreamQuery(rank.context.stream()), cudaErrorNotReady);
    EXPECT_FALSE(rank.exchange->has_given_up());
    rank.exchange->give_up();
    rank.context.synchronize();
    EXPECT_TRUE(rank.exchange->has_given_up());
    EXPECT_EQ(rank.exchange->current_operation(), "the all-gather 'parts'") << "it did not end";
  }
}

/// A rank that gives up alone: others may still write to the words that it had for them.
void check_leaving(Rank& rank) {
  const Buffer<Cuda> parts(rank.ranks * part_bytes, rank.context);
  const auto all_are_here = [&] {
    std::vector<std::byte> all(rank.ranks);
    const std::byte here{1};
    rank.rendezvous.all_gather_sync({&here, 1}, all, "here");
  };
  rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", rank.context);
  rank.context.synchronize();
  all_are_here();
  if (rank.number() == 0) {
    rank.exchange->close(false);
    rank.exchange.reset();
  }
  all_are_here();
  if (rank.number() == 1) {
    rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", rank.context);
    rank.context.synchronize();  // throws for an address that is no longer mapped
    EXPECT_TRUE(rank.exchange->has_given_up());
    rank.exchange->close(false);
    rank.exchange.reset();
  }
  all_are_here();
}

/// A rank whose peer is late gives up after its time-out, and then joins no further barrier.
void check_timeout(Rank& rank) {
  const Buffer<Cuda> parts(rank.ranks * part_bytes, rank.context);
  const auto meet = [&] {
    std::vector<std::byte> all(rank.ranks);
    const std::byte here{1};
    rank.rendezvous.all_gather_sync({&here, 1}, all, "next");
  };
  if (rank.number() == 0) {
    rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", rank.context);
    rank.context.synchronize();
    EXPECT_TRUE(rank.exchange->has_given_up());
    rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", rank.context);
    rank.context.synchronize();
  }
  meet();
  if (rank.number() == 1) {
    rank.exchange->all_gather(parts.data(), rank.gathered(), part_bytes, "parts", rank.context);
    rank.context.synchronize();
    EXPECT_TRUE(rank.exchange->has_given_up()) << "rank 0 came to only one of the two barriers";
  }
  meet();
}

/// Memory that one rank lacks is had by none.
void check_lacking(Rank& rank) {
  const bool lacks = rank.number() == 1;
  try {
    const auto memory =
        rank.memory.allocate(lacks ? std::size_t{1} << 50 : PeerMemory::min_bytes, rank.context);
    ADD_FAILURE() << "rank 1 had all memory";
  } catch (const octavo::MemoryError& error) {
    const std::string said = error.what();
    EXPECT_EQ(said.find("rank 1 does not have the ") != std::string::npos, !lacks) << said;
  }
}

/// Ranks that come for different things.
void check_differing(Rank& rank) {
  const Buffer<Cuda> parts(rank.ranks * part_bytes, rank.context);
  EXPECT_EQ(rank.exchange->mismatched_rank(), -1);
  const std::size_t bytes = part_bytes - static_cast<std::size_t>(rank.number());
  rank.exchange->all_gather(parts.data(), rank.gathered(), bytes, "parts", rank.context);
  for (int round = 0; rank.exchange->mismatched_rank() < 0 && round < 2000; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(rank.exchange->mismatched_rank(), 0);
  EXPECT_NE(rank.exchange->mismatched_rank(), rank.number());
  const std::byte seen{1};
  std::vector<std::byte> all(rank.ranks);
  rank.rendezvous.all_gather_sync({&seen, 1}, all, "what was seen");
  rank.exchange->give_up();
  rank.context.synchronize();
}

/// Ranks that come for as many bytes of another place, such as those of the next block.
void check_places(Rank& rank) {
  const Buffer<Cuda> parts(rank.ranks * part_bytes, rank.context);
  const auto place = 64 * static_cast<std::size_t>(rank.number());
  rank.exchange->all_gather(parts.data(), rank.gathered() + place, part_bytes - 64, "parts",
                            rank.context);
  for (int round = 0; rank.exchange->mismatched_rank() < 0 && round < 2000; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(rank.exchange->mismatched_rank(), 1 - rank.number());
  const std::byte seen{1};
  std::vector<std::byte> all(rank.ranks);
  rank.rendezvous.all_gather_sync({&seen, 1}, all, "what was seen");
  rank.exchange->give_up();
  rank.context.synchronize();
}

/// Groups of every second rank, which know nothing of each other.
void check_groups(Rank& rank) {
  const Context<Cuda>& context = rank.context;
  const int number = rank.number();
  CopyExchange group(rank.memory, {number % 2, number % 2 + 2}, number / 2,
                     std::chrono::seconds(60), context);
  const Buffer<Cuda> parts(2 * part_bytes, context);
  std::vector<std::byte> bytes(2 * part_bytes);
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = byte_of(number, static_cast<int>(i / part_bytes), step, i % part_bytes);
    }
    octavo::copy_to_device_sync(parts.data(), bytes.data(), bytes.size(), context);
    if (step % 4 == number) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    group.all_gather(parts.data(), rank.gathered(), part_bytes, "parts", context);
    group.all_to_all(parts.data(), rank.exchanged(), part_bytes, "parts", context);
    context.synchronize();
    for (const bool is_gather : {true, false}) {
      octavo::copy_to_host_sync(bytes.data(), is_gather ? rank.gathered() : rank.exchanged(),
                                bytes.size(), context);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        const int from = number % 2 + 2 * static_cast<int>(i / part_bytes);
        if (!is_gather && from == number) continue;
        ASSERT_EQ(bytes[i], byte_of(from, is_gather ? 0 : number / 2, step, i % part_bytes))
            << "rank " << number << ", byte " << i << ", step " << step;
      }
    }
  }
  group.close(true);
}

/// What one rank cannot share, all know of.
void check_obstacle(Rank& rank) {
  const Buffer<Cuda> memory(PeerMemory::min_bytes, rank.context);
  std::vector<std::byte> of_host(PeerMemory::min_bytes);
  std::byte* given = rank.number() == 1 ? of_host.data() : memory.data();
  rank.memory.add(given, PeerMemory::min_bytes, rank.context);
  const std::string& obstacle = rank.memory.obstacle();
  EXPECT_NE(obstacle.find("rank 1 cannot share its GPU's memory"), std::string::npos) << obstacle;
  EXPECT_EQ(rank.memory.address_on_rank(1 - rank.number(), given, 1), nullptr);
  rank.memory.remove(given, true);
}

/// A rank, in a process of its own.
TEST(CopyRank, DoesItsPart) {
  const char* part = std::getenv("OCTAVO_TEST_COPY_RANK");
  if (part == nullptr) GTEST_SKIP() << "the other tests of this file start it";
  std::istringstream words(part);
  std::string mode;
  int number = 0;
  int size = 0;
  int port = 0;
  words >> mode >> number >> size >> port;
  octavo::Rendezvous rendezvous(launch_of(number, size, port), std::chrono::seconds(100));
  const Context<Cuda> context(number % octavo::visible_gpus());
  Rank rank(rendezvous, std::chrono::seconds(mode == "timeout" || mode == "leaving" ? 1 : 60),
            context);
  EXPECT_EQ(rank.exchange->obstacle(), "");
  EXPECT_TRUE(rank.exchange->reaches(rank.gathered(), 2 * rank.ranks * part_bytes));
  EXPECT_FALSE(rank.exchange->reaches(rank.shared.data() + rank.shared.size() - 1, 2));
  const Buffer<Cuda> own(PeerMemory::min_bytes, context);
  EXPECT_FALSE(rank.exchange->reaches(own.data(), 1));
  if (mode == "steps") check_steps(rank);
  if (mode == "lanes") check_lanes(rank);
  if (mode == "giving-up") check_giving_up(rank);
  if (mode == "differing") check_differing(rank);
  if (mode == "timeout") check_timeout(rank);
  if (mode == "leaving") check_leaving(rank);
  if (mode == "lacking") check_lacking(rank);
  if (mode == "places") check_places(rank);
  if (mode == "groups") check_groups(rank);
  if (mode == "obstacle") check_obstacle(rank);
}

/// Starts this program anew for each rank, because a forked one cannot use CUDA.
void run(const std::string& mode, int size) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&] {
      const std::string part = octavo::message(mode, ' ', rank, ' ', size, ' ', port);
      exec_as_test("--gtest_filter=CopyRank.*", "OCTAVO_TEST_COPY_RANK", part);
    });
  }
  for (const RankResult& end : processes.wait(200, -1)) EXPECT_EQ(end.exit_code, 0) << mode;
}

using CopyExchangeOnGpu = octavo::support::OnGpu;

TEST_F(CopyExchangeOnGpu, DeliversAllPartsToEveryRank) {
  for (const int ranks : {1, 2, 3}) run("steps", ranks);
}
TEST_F(CopyExchangeOnGpu, ServesTwoStreamsAtOnce) { run("lanes", 2); }
TEST_F(CopyExchangeOnGpu, GiveUpReleasesWaitingKernels) { run("giving-up", 2); }
TEST_F(CopyExchangeOnGpu, GivesUpAfterTimeout) { run("timeout", 2); }
TEST_F(CopyExchangeOnGpu, ClosedRankLeavesFlagsWritable) { run("leaving", 2); }
TEST_F(CopyExchangeOnGpu, AllocationFailsOnAllRanksOrNone) { run("lacking", 2); }
TEST_F(CopyExchangeOnGpu, DetectsDifferentSizes) { run("differing", 2); }
TEST_F(CopyExchangeOnGpu, DetectsDifferentDestinations) { run("places", 2); }
TEST_F(CopyExchangeOnGpu, GroupsAreIndependent) { run("groups", 4); }
TEST_F(CopyExchangeOnGpu, AllRanksLearnOfUnshareableMemory) { run("obstacle", 2); }

}  // namespace copy_exchange_test
