/// @file
/// Memory of GPUs of one host that several processes reach.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// Runs of memory that every rank has of its own, of one size, and in which each reaches those of
/// the ranks of its host, by CUDA's interprocess handles: over NVLink where it connects the GPUs.
/// All ranks make the same calls in the same order.
class PeerMemory {
 public:
  /// Gives each rank the parts of all, in the order of ranks; see
  /// Communicator::all_gather_host_sync.
  using Gather = std::function<void(std::span<const std::byte> part, std::span<std::byte> whole,
                                    const char* what)>;

  /// An allocation is to have at least so many bytes: smaller ones share a handle with others.
  static constexpr std::size_t smallest = std::size_t{2} << 20;

  PeerMemory(int rank, int ranks, Gather gather)
      : rank_(static_cast<std::size_t>(rank)), ranks_(ranks), gather_(std::move(gather)) {}
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() {
    for (const Run& run : runs_) close(run);
  }

  /// Opens what the other ranks have for this one. Where one of them cannot, none does: see
  /// `obstacle`.
  /// @param memory  as cudaMalloc gave it, `smallest` bytes or more
  /// @throws CommError  if ranks have different numbers of bytes
  void add(std::byte* memory, std::size_t bytes, const Context<Cuda>& context) {
    context.make_current();
    const std::vector<Offer> offers = exchange_offers(memory, bytes);
    Run run{memory, bytes, std::vector<std::byte*>(offers.size(), nullptr)};
    Text found{};
    for (std::size_t other = 0; other < offers.size(); ++other) {
      if (offers[other].host != offers[rank_].host) continue;
      void* place = memory;
      if (other != rank_ && found[0] == '\0') {
        const cudaError_t status =
            cudaIpcOpenMemHandle(&place, offers[other].handle, cudaIpcMemLazyEnablePeerAccess);
        if (status != cudaSuccess) {
          cudaGetLastError();
          put(found, message("rank ", rank_, " cannot reach the GPU of rank ", other, ": ",
                             cudaGetErrorString(status)));
          continue;
        }
      }
      run.of_ranks[other] = static_cast<std::byte*>(place);
    }
    if (agree_on_obstacle(found)) {
      close(run);
      std::ranges::fill(run.of_ranks, nullptr);
    }
    runs_.push_back(std::move(run));
  }

  /// Lets go of what `add` opened, so that the memory may be freed. No rank has an operation on it
  /// any more.
  /// @param together  all ranks do; else this one gives up
  void remove(const std::byte* memory, bool together) {
    const auto found = std::ranges::find(runs_, memory, &Run::own);
    if (found == runs_.end()) return;
    close(*found);
    runs_.erase(found);
    if (!together) return;
    std::vector<std::byte> all(static_cast<std::size_t>(ranks_));
    const std::byte done{1};
    gather_({&done, 1}, all, "end of shared memory");
  }

  /// A rank's place of what lies at `own` here; null: this rank does not reach it.
  [[nodiscard]] std::byte* of_rank(int rank, const std::byte* own, std::size_t bytes) const {
    for (const Run& run : runs_) {
      if (own < run.own || own + bytes > run.own + run.bytes) continue;
      std::byte* base = run.of_ranks[static_cast<std::size_t>(rank)];
      return base == nullptr ? nullptr : base + (own - run.own);
    }
    return nullptr;
  }

  /// Bytes between `own` and the begin of its run, which are the same on all ranks.
  [[nodiscard]] std::size_t place_of(const std::byte* own) const {
    for (const Run& run : runs_) {
      if (run.own <= own && own < run.own + run.bytes) {
        return static_cast<std::size_t>(own - run.own);
      }
    }
    return 0;
  }

  /// Why memory of another rank of a host cannot be reached, the same on all ranks; empty: it can.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }

 private:
  using Host = std::array<char, 40>;
  using Text = std::array<char, 200>;
  struct Offer {
    cudaIpcMemHandle_t handle;
    std::size_t bytes;
    Host host;
  };
  struct Run {
    std::byte* own;
    std::size_t bytes;
    std::vector<std::byte*> of_ranks;
  };

  /// What processes of one host have in common: the number of its boot.
  static Host host() {
    Host result{};
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string line;
    std::getline(file, line);
    put(result, line);
    return result;
  }
  template <std::size_t Size>
  static void put(std::array<char, Size>& target, const std::string& text) {
    std::memcpy(target.data(), text.data(), std::min(text.size(), Size - 1));
  }

  std::vector<Offer> exchange_offers(std::byte* memory, std::size_t bytes) {
    Offer own{};
    own.bytes = bytes;
    own.host = host();
    check(cudaIpcGetMemHandle(&own.handle, memory), "cudaIpcGetMemHandle", " for ", bytes,
          " bytes");
    std::vector<Offer> offers(static_cast<std::size_t>(ranks_));
    gather_(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(offers)),
            "begin of shared memory");
    for (std::size_t other = 0; other < offers.size(); ++other) {
      require<CommError>(offers[other].bytes == offers[0].bytes, "rank 0 has ", offers[0].bytes,
                         " bytes of memory and rank ", other, " has ", offers[other].bytes,
                         "; give all ranks the same options");
    }
    return offers;
  }

  /// @param own  what stopped this rank
  bool agree_on_obstacle(const Text& own) {
    std::vector<Text> all(static_cast<std::size_t>(ranks_));
    gather_(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)),
            "ways to shared memory");
    for (const Text& text : all) {
      if (obstacle_.empty()) obstacle_ = text.data();
    }
    return !obstacle_.empty();
  }

  void close(const Run& run) const {
    for (std::size_t other = 0; other < run.of_ranks.size(); ++other) {
      if (other == rank_ || run.of_ranks[other] == nullptr) continue;
      cudaIpcCloseMemHandle(run.of_ranks[other]);
    }
  }

  std::size_t rank_;
  int ranks_;
  Gather gather_;
  std::vector<Run> runs_;
  std::string obstacle_;
};

}  // namespace octavo
