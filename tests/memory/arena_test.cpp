#include <octavo/memory/arena.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <numeric>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace arena_test {

using namespace octavo;

/// What a program takes: odd sizes, an overlay, and something after it.
struct Program {
  std::vector<std::byte*> pieces;
  std::vector<std::byte*> overlaid;

  void allocate(Arena<Cpu>& arena) {
    pieces.push_back(arena.allocate<std::byte>(MemoryKind::weights, 1));
    pieces.push_back(bytes(arena.allocate<float>(MemoryKind::gradients, 65)));
    arena.overlay(
        [&] { overlaid.push_back(arena.allocate<std::byte>(MemoryKind::activations, 300)); },
        [&] {
          overlaid.push_back(arena.allocate<std::byte>(MemoryKind::activations, 256));
          overlaid.push_back(arena.allocate<std::byte>(MemoryKind::workspace, 1000));
        },
        [&] { overlaid.push_back(arena.allocate<std::byte>(MemoryKind::workspace, 10)); });
    pieces.push_back(bytes(arena.allocate<double>(MemoryKind::optimizer, 32)));
  }

  template <class T>
  static std::byte* bytes(T* pointer) {
    return reinterpret_cast<std::byte*>(pointer);
  }
};

// 256 + 512 + max(512, 256 + 1024, 256) + 256
constexpr std::size_t program_bytes = 2304;

MemoryPlan measured_plan() {
  Arena<Cpu> arena;
  Program program;
  program.allocate(arena);
  return arena.plan();
}

TEST(Arena, MeasuringCountsWithoutAllocating) {
  Arena<Cpu> arena;
  EXPECT_TRUE(arena.measuring());
  EXPECT_EQ(arena.allocate<float>(MemoryKind::weights, 1000), nullptr);
  EXPECT_EQ(arena.allocated(), 0u);
  EXPECT_EQ(arena.plan().peak, 4096u);
  EXPECT_EQ(measured_plan().peak, program_bytes);
}

TEST(Arena, TakesExactlyPlannedMemory) {
  const Context<Cpu> context(1);
  const MemoryPlan plan = measured_plan();
  Arena<Cpu> arena(plan, context);
  Program program;
  program.allocate(arena);
  EXPECT_FALSE(arena.measuring());
  EXPECT_EQ(arena.allocated(), plan.peak);
  EXPECT_EQ(arena.plan().peak, plan.peak);
  EXPECT_EQ(arena.plan().by_kind, plan.by_kind);
}

TEST(Arena, TakesExactlyPlannedHostMemory) {
  const auto allocate = [](Arena<Cpu>& arena) {
    std::vector<std::byte*> pieces{arena.allocate_host<std::byte>(300)};
    arena.overlay([&] { pieces.push_back(arena.allocate_host<std::byte>(1)); },
                  [&] { arena.allocate<std::byte>(MemoryKind::workspace, 1000); });
    return pieces;
  };
  Arena<Cpu> measuring;
  EXPECT_EQ(allocate(measuring), std::vector<std::byte*>(2));
  MemoryPlan plan = measuring.plan();
  EXPECT_EQ(plan.host, 512U + 256U);
  EXPECT_EQ(plan.peak, 1024U);
  const Context<Cpu> context(1);
  Arena<Cpu> arena(plan, context);
  const std::vector<std::byte*> pieces = allocate(arena);
  EXPECT_EQ(pieces[1] - pieces[0], 512);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[0]) % allocation_alignment, 0U);
  EXPECT_EQ(arena.plan().host, plan.host);
  EXPECT_EQ(arena.allocated_on_host(), plan.host);
  EXPECT_EQ(arena.allocated(), plan.peak);
  plan.host -= 1;
  Arena<Cpu> small(plan, context);
  EXPECT_THROW(allocate(small), UsageError);
}

TEST(Arena, RangesCoverTakenMemory) {
  const auto allocate = [](Arena<Cpu>& arena) {
    std::vector<ArenaRange> ranges(2);
    std::byte* first = arena.allocate<std::byte>(MemoryKind::weights, 1);
    ranges[0] = arena.range_of([&] {
      arena.allocate<float>(MemoryKind::activations, 65);
      arena.allocate_host<float>(1000);
      arena.allocate<float>(MemoryKind::workspace, 1);
    });
    ranges[1] = arena.range_of([] {});
    if (!arena.measuring()) {
      EXPECT_EQ(ranges[0].data, first + 256);
    }
    return ranges;
  };
  Arena<Cpu> measuring;
  const std::vector<ArenaRange> measured = allocate(measuring);
  EXPECT_EQ(measured[0].data, nullptr);
  EXPECT_EQ(measured[0].bytes, 512U + 256U);
  EXPECT_EQ(measured[1].bytes, 0U);
  const Context<Cpu> context(1);
  Arena<Cpu> arena(measuring.plan(), context);
  EXPECT_EQ(allocate(arena)[0].bytes, measured[0].bytes);
}

TEST(Arena, KindsSumToThePeak) {
  const MemoryPlan plan = measured_plan();
  EXPECT_EQ(std::accumulate(plan.by_kind.begin(), plan.by_kind.end(), std::size_t{0}), plan.peak);
  EXPECT_EQ(plan.bytes(MemoryKind::weights), 256u);
  EXPECT_EQ(plan.bytes(MemoryKind::gradients), 512u);
  EXPECT_EQ(plan.bytes(MemoryKind::activations), 256u);
  EXPECT_EQ(plan.bytes(MemoryKind::workspace), 1024u);
  EXPECT_EQ(plan.bytes(MemoryKind::optimizer), 256u);
  EXPECT_EQ(plan.bytes(MemoryKind::scaling), 0u);
}

TEST(Arena, PiecesAreAlignedAndDoNotOverlap) {
  const Context<Cpu> context(1);
  Arena<Cpu> arena(measured_plan(), context);
  Program program;
  program.allocate(arena);
  ASSERT_EQ(program.pieces.size(), 3u);
  ASSERT_EQ(program.overlaid.size(), 4u);
  for (const std::byte* piece : program.pieces)
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece) % 256, 0u);
  for (const std::byte* piece : program.overlaid)
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece) % 256, 0u);
  EXPECT_EQ(program.pieces[1] - program.pieces[0], 256);
  EXPECT_EQ(program.overlaid[0] - program.pieces[1], 512);
  EXPECT_EQ(program.overlaid[1], program.overlaid[0]) << "alternatives share their memory";
  EXPECT_EQ(program.overlaid[3], program.overlaid[0]) << "alternatives share their memory";
  EXPECT_EQ(program.overlaid[2] - program.overlaid[1], 256) << "one alternative's pieces do not";
  EXPECT_EQ(program.pieces[2] - program.overlaid[0], 256 + 1024) << "after the largest";
}

TEST(Arena, NestedOverlaysTakeLargestPath) {
  Arena<Cpu> arena;
  const auto allocate = [&](Index pages) {
    return [&arena, pages] { arena.allocate<std::byte>(MemoryKind::activations, pages * 256); };
  };
  arena.overlay([&] { arena.overlay(allocate(2), allocate(7)); },
                [&] {
                  allocate(3)();
                  arena.overlay(allocate(1), allocate(5), allocate(4));
                });
  allocate(1)();
  EXPECT_EQ(arena.plan().peak, 256u * (3 + 5 + 1));
}

TEST(Arena, PeakMayLieInAnyAlternative) {
  for (const Index first : {7, 2}) {
    const Index second = 9 - first;
    Arena<Cpu> arena;
    arena.overlay([&] { arena.allocate<std::byte>(MemoryKind::activations, first * 256); },
                  [&] { arena.allocate<std::byte>(MemoryKind::gradients, second * 256); });
    EXPECT_EQ(arena.plan().peak, 256u * 7);
    EXPECT_EQ(arena.plan().bytes(MemoryKind::activations), first == 7 ? 256u * 7 : 0u);
  }
}

TEST(Arena, EmptyPiecesCostNothing) {
  Arena<Cpu> arena;
  arena.allocate<float>(MemoryKind::weights, 0);
  EXPECT_EQ(arena.plan().peak, 0u);
}

TEST(Arena, ThrowsWhenTooSmall) {
  const Context<Cpu> context(1);
  MemoryPlan plan = measured_plan();
  plan.peak -= 1;
  Arena<Cpu> arena(plan, context);
  Program program;
  EXPECT_THROW(program.allocate(arena), UsageError);
}

/// More than any processor can address.
constexpr std::size_t absurd = std::size_t{1} << 60;

/// What is said of it; AddressSanitizer would end the program.
std::string refusal_of_absurd_memory(const auto& allocate) {
  try {
    allocate();
  } catch (const MemoryError& error) {
    return error.what();
  }
  return "it was allocated";
}

TEST(Buffer, ReportsMissingHostMemory) {
  const Context<Cpu> context(1);
  const std::regex expected(
      R"(the host has \d+ bytes of free memory, not 1152921504606846976; use a smaller batch or )"
      "shorter sequences, or recompute more: plan_memory --device cpu reports the memory of each");
  const auto refused = [&](const auto& allocate) {
    return std::regex_match(refusal_of_absurd_memory(allocate), expected);
  };
  EXPECT_TRUE(refused([&] { Buffer<Cpu>(absurd, context); }));
  EXPECT_TRUE(refused([&] { Arena<Cpu>({.peak = absurd}, context); }));
  const std::string of_host =
      refusal_of_absurd_memory([&] { Arena<Cpu>({.host = absurd}, context); });
  EXPECT_NE(of_host.find("not 1152921504606846976; offload less"), std::string::npos) << of_host;
  // What is refused leaves nothing behind.
  EXPECT_EQ(Buffer<Cpu>(1000, context).size(), 1000u);
}

// Linux grants more than there is, and kills the program when it writes to it.
TEST(Buffer, RejectsMoreThanAvailableHostMemory) {
  const Context<Cpu> context(1);
  const std::size_t available = available_host_memory();
  if (available == std::numeric_limits<std::size_t>::max()) GTEST_SKIP() << "unknown here";
  EXPECT_GT(available, std::size_t{1} << 20);
  // Before the system is asked, which refuses more than all that there is.
  const std::string text =
      refusal_of_absurd_memory([&] { Buffer<Cpu>(available + (available >> 4), context); });
  EXPECT_TRUE(text.starts_with("the host has ")) << text;
}

/// The bytes that this process may still take, as Linux's tools count them.
double free_bytes_of_linux() {
  double kibibytes = 0;
  std::ifstream machine("/proc/meminfo");
  for (std::string name, unit; machine >> name;) {
    double number = 0;
    if (!(machine >> number) || !std::getline(machine, unit)) break;
    if (name == "MemAvailable:" || name == "SwapFree:") kibibytes += number;
  }
  double most = 0;
  double used = 0;
  const bool has_limit = (std::ifstream("/sys/fs/cgroup/memory.max") >> most) &&
                         (std::ifstream("/sys/fs/cgroup/memory.current") >> used);
  return has_limit ? std::min(1024 * kibibytes, most - used) : 1024 * kibibytes;
}

TEST(HostMemory, MatchesFreeMemoryOfLinux) {
  const double expected = free_bytes_of_linux();
  if (expected <= 0) GTEST_SKIP() << "unknown here";
  // Other programs take and free some in between.
  EXPECT_GT(static_cast<double>(available_host_memory()), expected / 2);
  EXPECT_LT(static_cast<double>(available_host_memory()), expected * 2);
}

TEST(Buffer, MovesItsMemory) {
  const Context<Cpu> context(1);
  Buffer<Cpu> first(1000, context);
  const std::byte* data = first.data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % allocation_alignment, 0u);
  Buffer<Cpu> second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 1000u);
  Buffer<Cpu> third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(Buffer<Cpu>(0, context).data(), nullptr);
}

}  // namespace arena_test
