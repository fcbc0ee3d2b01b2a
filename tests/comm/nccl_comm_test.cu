// Ranks of NCCL: alone on one GPU, and one process a GPU on all of them.
#include "../support/on_gpu.cuh"
#include "../support/rank_processes.hpp"

#include <octavo/comm/cuda/nccl_comm.cuh>
#include <octavo/core/cuda/replay.cuh>
#include <octavo/memory/cuda/buffer.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace nccl_comm_test {

using octavo::Buffer;
using octavo::Context;
using octavo::Cuda;
using octavo::Index;
using octavo::NcclComm;
using octavo::Rendezvous;
using octavo::TensorView;

std::byte byte_of(int from, int to, std::size_t i) {
  return static_cast<std::byte>(i * 7 + (i >> 8) * 11 + static_cast<std::size_t>(from * 131) +
                                static_cast<std::size_t>(to * 37));
}
std::uint32_t value_of(int rank, std::size_t i) {
  if (i == 0) return rank == 0 ? 0xffffffffu : 0u;
  return static_cast<std::uint32_t>((i + static_cast<std::size_t>(rank) * 977) * 2654435761u);
}

/// Every operation with parts of so many bytes, enqueued and then twice as a recorded graph.
class Operations {
 public:
  /// @param gives  what allocates, in all groups at once; null: the device
  Operations(octavo::Communicator<Cuda>& communicator, const Context<Cuda>& context,
             std::size_t bytes, octavo::Communicator<Cuda>* gives)
      : communicator_(communicator),
        context_(context),
        bytes_(bytes),
        ranks_(static_cast<std::size_t>(communicator.size())),
        parts_(allocate(bytes * ranks_ + 1, gives)),
        gathered_(allocate(bytes * ranks_ + 1, gives)),
        exchanged_(allocate(bytes * ranks_ + 1, gives)),
        values_(bytes * sizeof(std::uint32_t) + 1, context) {}

  void check() {
    octavo::Replay<Cuda> replay;
    for (int run = 0; run < 3; ++run) {
      fill();
      replay.run(context_, [&] { enqueue(); });
      communicator_.wait_sync(context_, "the test");
      compare();
    }
    EXPECT_EQ(replay.counts().launches, 2);
  }

  /// Kernels and copies that a gather and an exchange are made of.
  struct Nodes {
    int kernels = 0;
    int copies = 0;
  };
  [[nodiscard]] Nodes nodes() {
    octavo::check(cudaStreamBeginCapture(context_.stream(), cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCapture");
    gather_and_exchange();
    cudaGraph_t graph = nullptr;
    octavo::check(cudaStreamEndCapture(context_.stream(), &graph), "cudaStreamEndCapture");
    std::size_t count = 0;
    octavo::check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> all(count);
    octavo::check(cudaGraphGetNodes(graph, all.data(), &count), "cudaGraphGetNodes");
    Nodes nodes;
    for (const cudaGraphNode_t node : all) {
      cudaGraphNodeType type{};
      octavo::check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
      nodes.kernels += type == cudaGraphNodeTypeKernel;
      nodes.copies += type == cudaGraphNodeTypeMemcpy;
    }
    cudaGraphDestroy(graph);
    return nodes;
  }

 private:
  [[nodiscard]] Buffer<Cuda> allocate(std::size_t bytes, octavo::Communicator<Cuda>* gives) {
    return gives == nullptr ? Buffer<Cuda>(bytes, context_) : gives->allocate(bytes, context_);
  }

  [[nodiscard]] TensorView<std::byte, 1, Cuda> view(const Buffer<Cuda>& buffer) const {
    return {buffer.data(), {static_cast<Index>(bytes_ * ranks_)}};
  }

  void fill() {
    std::vector<std::byte> parts(bytes_ * ranks_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = byte_of(communicator_.rank(), static_cast<int>(i / bytes_), i % bytes_);
    }
    std::vector<std::uint32_t> values(bytes_);
    for (std::size_t i = 0; i < bytes_; ++i) values[i] = value_of(communicator_.rank(), i);
    octavo::copy_to_device_sync(parts_.data(), parts.data(), parts.size(), context_);
    octavo::copy_to_device_sync(values_.data(), values.data(), 4 * bytes_, context_);
    octavo::fill_zero(gathered_.data(), parts.size(), context_);
    octavo::fill_zero(exchanged_.data(), parts.size(), context_);
  }

  void gather_and_exchange() {
    const TensorView<std::byte, 1, Cuda> part{parts_.data(), {static_cast<Index>(bytes_)}};
    communicator_.all_gather(part, view(gathered_), "parts", context_);
    communicator_.all_to_all(view(parts_), view(exchanged_), "parts", context_);
  }

  void enqueue() {
    gather_and_exchange();
    communicator_.all_reduce_max(
        {reinterpret_cast<std::uint32_t*>(values_.data()), {static_cast<Index>(bytes_)}}, "amaxes",
        context_);
    // In its own place.
    std::byte* own = gathered_.data() + static_cast<std::size_t>(communicator_.rank()) * bytes_;
    communicator_.all_gather(TensorView<std::byte, 1, Cuda>{own, {static_cast<Index>(bytes_)}},
                             view(gathered_), "parts", context_);
  }

  void compare() {
    std::vector<std::byte> gathered(bytes_ * ranks_);
    std::vector<std::byte> exchanged(bytes_ * ranks_);
    std::vector<std::uint32_t> values(bytes_);
    octavo::copy_to_host_sync(gathered.data(), gathered_.data(), gathered.size(), context_);
    octavo::copy_to_host_sync(exchanged.data(), exchanged_.data(), exchanged.size(), context_);
    octavo::copy_to_host_sync(values.data(), values_.data(), 4 * bytes_, context_);
    for (std::size_t i = 0; i < gathered.size(); ++i) {
      const int from = static_cast<int>(i / bytes_);
      ASSERT_EQ(gathered[i], byte_of(from, 0, i % bytes_)) << i;
      const bool is_own = from == communicator_.rank();  // stays where it is
      ASSERT_EQ(exchanged[i],
                is_own ? std::byte{0} : byte_of(from, communicator_.rank(), i % bytes_))
          << i;
    }
    for (std::size_t i = 0; i < bytes_; ++i) {
      std::uint32_t largest = 0;
      for (int rank = 0; rank < communicator_.size(); ++rank) {
        largest = std::max(largest, value_of(rank, i));
      }
      ASSERT_EQ(values[i], largest) << i;
    }
  }

  octavo::Communicator<Cuda>& communicator_;
  const Context<Cuda>& context_;
  std::size_t bytes_;
  std::size_t ranks_;
  Buffer<Cuda> parts_;
  Buffer<Cuda> gathered_;
  Buffer<Cuda> exchanged_;
  Buffer<Cuda> values_;
};

/// @param whole  what allocates
/// @param copies  whether memory that it gave is reached by copy engines
void check_operations(octavo::Communicator<Cuda>& communicator, octavo::Communicator<Cuda>& whole,
                      bool copies, const Context<Cuda>& context) {
  for (const std::size_t bytes : {0, 1, 3, 4096, 65535, 65536, 65537, 3'000'001}) {
    for (auto* gives : {static_cast<octavo::Communicator<Cuda>*>(nullptr), &whole}) {
      Operations operations(communicator, context, bytes, gives);
      operations.check();
      if (bytes == 0) continue;
      const auto [kernels, sent] = operations.nodes();
      if (copies && gives != nullptr && bytes >= 65536) {
        EXPECT_EQ(kernels, 4) << bytes << " bytes: ranks meet twice in each";
        EXPECT_EQ(sent, 2 * communicator.size() - 1) << bytes;
      } else if (communicator.size() > 1) {
        EXPECT_LE(kernels, 3) << bytes;
        EXPECT_LT(sent, 2 * communicator.size() - 1) << bytes;
      }
    }
  }
  const std::uint64_t own = 40 + static_cast<std::uint64_t>(communicator.rank());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather_host_sync(std::as_bytes(std::span(&own, 1)),
                                    std::as_writable_bytes(std::span(all)), "targets");
  for (std::size_t rank = 0; rank < all.size(); ++rank) EXPECT_EQ(all[rank], 40 + rank);
}

/// Groups of neighbours, and of every second rank.
void check_groups(NcclComm& communicator, bool copies, const Context<Cuda>& context) {
  for (const bool are_neighbours : {true, false}) {
    const int rank = communicator.rank();
    const auto group = communicator.split(are_neighbours ? rank / 2 : rank % 2);
    EXPECT_EQ(group->size(), are_neighbours ? 2 : communicator.size() / 2);
    EXPECT_EQ(group->rank(), are_neighbours ? rank % 2 : rank / 2);
    check_operations(*group, communicator, copies && group->size() > 1, context);
    std::vector<int> members(static_cast<std::size_t>(group->size()));
    group->all_gather_host_sync(std::as_bytes(std::span(&rank, 1)),
                                std::as_writable_bytes(std::span(members)), "members");
    for (std::size_t i = 0; i < members.size(); ++i) {
      const int place = static_cast<int>(i);
      EXPECT_EQ(members[i], are_neighbours ? rank / 2 * 2 + place : rank % 2 + 2 * place);
    }
  }
}

TEST(NcclVersion, IsFormattedAndCompatible) {
  EXPECT_EQ(octavo::nccl_version_text(22809), "2.28.9");
  EXPECT_GE(octavo::checked_nccl_version() / 100, NCCL_VERSION_CODE / 100);
}

using NcclCommOnGpu = octavo::support::OnGpu;

TEST_F(NcclCommOnGpu, OneRankGetsAllParts) {
  octavo::Rendezvous rendezvous(launch_of(0, 1, free_port()), std::chrono::seconds(60));
  const Context<Cuda> context;
  NcclComm communicator(rendezvous, context);
  check_operations(communicator, communicator, false, context);
  EXPECT_EQ(communicator.transport(), "");
  const TensorView<std::byte, 1, Cuda> three{nullptr, {3}};
  const TensorView<std::byte, 1, Cuda> four{nullptr, {4}};
  EXPECT_THROW(communicator.all_gather(three, four, "parts", context), octavo::ShapeError);
  EXPECT_THROW(communicator.all_to_all(three, four, "parts", context), octavo::ShapeError);
}

constexpr std::chrono::seconds timeout(10);  // of ranks of which one has a fault

/// What a rank does that no longer takes part, and which one.
struct Fault {
  std::string kind = "none";  ///< "killed", "stopped", "throws", "throws-inside" or "absent"
  int rank = -1;              ///< -1: none
  bool by_copies = false;
  std::string file = "-";  ///< takes the time of it

  [[nodiscard]] bool is(const char* name) const { return kind == name; }
  friend void PrintTo(const Fault& fault, std::ostream* out) {
    *out << fault.kind << " rank " << fault.rank;
  }
  void note_time() const {
    std::ofstream(file) << std::chrono::steady_clock::now().time_since_epoch().count();
  }
};

/// What a rank throws as its fault: no error of Octavo's.
struct Thrown {};

/// Gathers in a recorded graph without an end, until a rank has its fault.
void gather_on(Rendezvous& rendezvous, NcclComm& communicator, const Context<Cuda>& context,
               const Fault& fault) {
  constexpr int steps_before = 100;
  const Index bytes = Index{1} << 24;
  const Buffer<Cuda> part(static_cast<std::size_t>(bytes), context);
  const auto all = static_cast<std::size_t>(bytes * communicator.size());
  const Buffer<Cuda> whole =
      fault.by_copies ? communicator.allocate(all, context) : Buffer<Cuda>(all, context);
  octavo::Replay<Cuda> replay;
  for (int step = 0;; ++step) {
    const bool has_fault = communicator.rank() == fault.rank && step == steps_before;
    if (has_fault) fault.note_time();
    if (has_fault && (fault.is("killed") || fault.is("stopped"))) {
      std::thread([signal = fault.is("stopped") ? SIGSTOP : SIGKILL] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // somewhere in a step
        ::kill(::getpid(), signal);
      }).detach();
    }
    if (has_fault && fault.is("absent")) {
      while (rendezvous.fault().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (has_fault && (fault.is("throws") || fault.is("absent"))) throw Thrown{};
    replay.run(context, [&] {
      communicator.all_gather(TensorView<std::byte, 1, Cuda>{part.data(), {bytes}},
                              {whole.data(), {bytes * communicator.size()}}, "weights of run 3",
                              context);
    });
    if (has_fault && fault.is("throws-inside")) throw Thrown{};
    communicator.wait_sync(context, "step 7");
  }
}

/// What the others say of it.
void take_part(const Fault& fault, int rank, int size, int port) {
  try {
    Rendezvous rendezvous(launch_of(rank, size, port), timeout);
    const Context<Cuda> context(rank);
    NcclComm communicator(rendezvous, context);
    gather_on(rendezvous, communicator, context, fault);
  } catch (const Thrown&) {
    EXPECT_EQ(rank, fault.rank);
  } catch (const octavo::CommError& error) {
    const std::string said = error.what();
    const auto expect_said = [&](const std::string& text) {
      EXPECT_NE(said.find(text), std::string::npos) << "'" << said << "' lacks '" << text << "'";
    };
    const bool throws = fault.kind.starts_with("throws");
    expect_said(octavo::message("rank ", fault.rank, throws ? " gave up: " : " has "));
    if (fault.is("absent")) expect_said("was last in the end of the wait for 'step 7'");
    expect_said("the wait for 'step 7'");
    if (fault.by_copies) expect_said("its GPU in the all-gather 'weights of run 3'");
  }
}

/// Rank 1 comes for an exchange where others gather.
void exchange_something_else(NcclComm& communicator, const Context<Cuda>& context) {
  const Index bytes = Index{1} << 20;
  const auto all = static_cast<std::size_t>(bytes * communicator.size());
  const Buffer<Cuda> parts(all, context);
  const Buffer<Cuda> memory = communicator.allocate(all, context);
  const TensorView<std::byte, 1, Cuda> whole{memory.data(), {bytes * communicator.size()}};
  try {
    if (communicator.rank() == 1) {
      const TensorView<std::byte, 1, Cuda> sent{parts.data(), whole.shape()};
      communicator.all_to_all(sent, whole, "gradients", context);
    } else {
      communicator.all_gather(TensorView<std::byte, 1, Cuda>{parts.data(), {bytes}}, whole,
                              "weights", context);
    }
    communicator.wait_sync(context, "step 7");
    ADD_FAILURE() << "nobody noticed";
  } catch (const octavo::CommError& error) {
    const std::string said = error.what();
    EXPECT_TRUE(said.find(" exchange different data") != std::string::npos ||
                said.find(" gave up") != std::string::npos)
        << said;
  }
}

/// A rank, in a process of its own; see run_on_gpus.
TEST(NcclRank, DoesItsPart) {
  const char* part = std::getenv("OCTAVO_TEST_NCCL_RANK");
  if (part == nullptr) GTEST_SKIP() << "the other tests of this file start it";
  std::istringstream words(part);
  std::string mode;
  int rank = 0;
  int size = 0;
  int port = 0;
  Fault fault;
  words >> mode >> rank >> size >> port >> fault.kind >> fault.rank >> fault.by_copies >>
      fault.file;
  if (mode == "fault") return take_part(fault, rank, size, port);
  if (mode == "one-gpu") {
    octavo::Rendezvous rendezvous(launch_of(rank, size, port), std::chrono::seconds(20));
    const Context<Cuda> first;
    try {
      const NcclComm communicator(rendezvous, first);
      ADD_FAILURE() << "two ranks have one GPU";
    } catch (const octavo::ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("ranks 0 and 1 have the same GPU"),
                std::string::npos)
          << error.what();
    }
    return;
  }
  const bool only_nccl = mode == "nccl";
  Rendezvous rendezvous(launch_of(rank, size, port),
                        mode == "differing" ? timeout : std::chrono::seconds(120));
  const Context<Cuda> context(rank);
  NcclComm communicator(rendezvous, context,
                        only_nccl ? NcclComm::Ways::nccl_only : NcclComm::Ways::all);
  if (mode == "copies" || only_nccl) {
    EXPECT_EQ(communicator.transport().starts_with("copy engines"), !only_nccl)
        << communicator.transport();
    check_operations(communicator, communicator, !only_nccl, context);
    if (size % 2 == 0) check_groups(communicator, !only_nccl, context);
    return;
  }
  if (mode == "differing") exchange_something_else(communicator, context);
}

/// Starts this program anew for each rank, because a forked one cannot use CUDA.
std::vector<RankResult> run_on_gpus(const std::string& mode, int size, const Fault& fault = {}) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&] {
      const std::string part =
          octavo::message(mode, ' ', rank, ' ', size, ' ', port, ' ', fault.kind, ' ', fault.rank,
                          ' ', fault.by_copies, ' ', fault.file);
      exec_as_test("--gtest_filter=NcclRank.*", "OCTAVO_TEST_NCCL_RANK", part);
    });
  }
  return processes.wait(300, fault.rank);
}

TEST_F(NcclCommOnGpu, RejectsTwoRanksOnOneGpu) {
  for (const RankResult& end : run_on_gpus("one-gpu", 2)) EXPECT_EQ(end.exit_code, 0);
}

class NcclCommOnGpus : public octavo::support::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    octavo::check(cudaGetDeviceCount(&gpus_), "cudaGetDeviceCount");
    if (gpus_ < 2) GTEST_SKIP() << "this machine has one GPU, and ranks take one each";
  }

  int gpus_ = 0;
};

TEST_F(NcclCommOnGpus, AllOperationsGiveCorrectResults) {
  for (int size = 2; size <= gpus_; ++size) {
    for (const char* ways : {"copies", "nccl"}) {
      for (const RankResult& end : run_on_gpus(ways, size)) EXPECT_EQ(end.exit_code, 0) << ways;
    }
  }
}

/// Of rank 0, at which ranks meet, and of another, where all goes through NCCL and where by copies;
/// those that take a time-out, or throw, in one of these ways each.
std::vector<Fault> faults() {
  std::vector<Fault> all;
  for (const int rank : {0, 1}) {
    for (const bool by_copies : {false, true}) {
      all.push_back({"killed", rank, by_copies});
      all.push_back({by_copies ? "throws-inside" : "throws", rank, by_copies});
      all.push_back({by_copies == (rank == 0) ? "stopped" : "absent", rank, by_copies});
    }
  }
  return all;
}

class FaultsOnGpus : public NcclCommOnGpus, public testing::WithParamInterface<Fault> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FaultsOnGpus, testing::ValuesIn(faults()), [](const auto& test) {
  std::string name = octavo::message(test.param.kind, '_', test.param.rank,
                                     test.param.by_copies ? "_copies" : "_nccl");
  std::ranges::replace(name, '-', '_');
  return name;
});

// A rank notices within a time-out. It then waits for NCCL to let go, and rank 0 for the others to
// end, at most another one; the rest is for processes to end.
TEST_P(FaultsOnGpus, AreReportedInTime) {
  const auto begin = std::chrono::steady_clock::now();
  Fault fault = GetParam();
  fault.file = octavo::message(testing::TempDir(), "octavo_fault_", ::getpid());
  const std::vector<RankResult> ends = run_on_gpus("fault", gpus_, fault);
  std::chrono::steady_clock::rep of_fault = 0;
  ASSERT_TRUE(std::ifstream(fault.file) >> of_fault) << "rank " << fault.rank << " had no fault";
  std::filesystem::remove(fault.file);
  const std::chrono::duration<double> before =
      std::chrono::steady_clock::duration(of_fault) - begin.time_since_epoch();
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (static_cast<int>(rank) == fault.rank) continue;
    EXPECT_EQ(ends[rank].exit_code, 0) << "rank " << rank;
    EXPECT_LT(ends[rank].seconds - before.count(), 2 * timeout.count() + 5) << "rank " << rank;
  }
}

TEST_F(NcclCommOnGpus, ReportsRanksWithDifferentCopies) {
  for (const RankResult& end : run_on_gpus("differing", gpus_)) EXPECT_EQ(end.exit_code, 0);
}

}  // namespace nccl_comm_test
