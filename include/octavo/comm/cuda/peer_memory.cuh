/// @file
/// Memory of the GPUs of one host that several processes can access.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/error.hpp>
#include <octavo/memory/cuda/buffer.cuh>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// Allocations of equal size on every rank, through which each rank reaches the memory of all ranks
/// on its host, by CUDA's interprocess handles and over NVLink if it connects the GPUs. All ranks
/// make the same calls in the same order.
class PeerMemory {
 public:
  /// Gathers the parts of all ranks, in rank order; see Communicator::all_gather_host_sync.
  using Gather = std::function<void(std::span<const std::byte> part, std::span<std::byte> whole,
                                    const char* what)>;

  /// Minimum size of an allocation in bytes: smaller ones share a handle with others.
  static constexpr std::size_t min_bytes = std::size_t{2} << 20;

  PeerMemory(int rank, int ranks, Gather gather)
      : rank_(static_cast<std::size_t>(rank)), ranks_(ranks), gather_(std::move(gather)) {}
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() {
    for (const Run& run : runs_) close(run);
  }

  /// Allocates memory for `add`, on all ranks or on none.
  /// @param bytes  at least `min_bytes`
  /// @throws MemoryError  naming the first rank that has too little free memory
  [[nodiscard]] OwnedBytes allocate(std::size_t bytes, const Context<Cuda>& context) {
    OwnedBytes memory;
    std::exception_ptr own_fault;
    try {
      memory = octavo::allocate(bytes, context);
    } catch (const MemoryError&) {
      own_fault = std::current_exception();
    }
    std::vector<std::byte> have(static_cast<std::size_t>(ranks_));
    const auto has = static_cast<std::byte>(memory != nullptr);
    gather_({&has, 1}, have, "memory of ranks");
    if (own_fault != nullptr) std::rethrow_exception(own_fault);
    const auto lacking = std::ranges::find(have, std::byte{0});
    require<MemoryError>(lacking == have.end(), "rank ", lacking - have.begin(),
                         " does not have the ", bytes, " bytes of GPU memory that each rank needs");
    return memory;
  }

  /// Opens the other ranks' memory on this rank. If this fails on one rank, no rank opens it: see
  /// `obstacle`.
  /// @param memory  from cudaMalloc, at least `min_bytes` bytes
  /// @throws CommError  if ranks have different numbers of bytes
  void add(std::byte* memory, std::size_t bytes, const Context<Cuda>& context) {
    gpu_ = context.gpu();
    context.make_current();
    Run run{memory, bytes, std::vector<std::byte*>(static_cast<std::size_t>(ranks_), nullptr)};
    try {
      Text found{};
      open(run, exchange_offers(run, found), found);
      if (agree_on_obstacle(found)) {
        close(run);
        std::ranges::fill(run.addresses, nullptr);
      }
    } catch (...) {
      close(run);
      throw;
    }
    runs_.push_back(std::move(run));
  }

  /// Closes the other ranks' memory that `add` opened. No operation of this rank may still use it.
  /// @param together  whether all ranks close it now, so that the memory may be freed afterwards.
  /// Otherwise only this rank gives up: others may still write to its memory, which must not be
  /// freed before the process ends
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

  /// Returns the address on a rank that corresponds to `own` on this rank; null if this rank does
  /// not reach it.
  [[nodiscard]] std::byte* address_on_rank(int rank, const std::byte* own,
                                           std::size_t bytes) const {
    for (const Run& run : runs_) {
      if (own < run.own || own + bytes > run.own + run.bytes) continue;
      std::byte* base = run.addresses[static_cast<std::size_t>(rank)];
      return base == nullptr ? nullptr : base + (own - run.own);
    }
    return nullptr;
  }

  /// The position of memory in an allocation, which is the same on all ranks.
  struct Place {
    std::size_t run = 0;
    std::size_t offset = 0;
  };
  [[nodiscard]] Place place_of(const std::byte* own) const {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const Run& run = runs_[i];
      if (run.own <= own && own < run.own + run.bytes) {
        return {i, static_cast<std::size_t>(own - run.own)};
      }
    }
    return {};
  }

  /// Returns why the memory of another rank on the host cannot be accessed; empty if it can. The
  /// same on all ranks.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }

 private:
  using Host = std::array<char, 120>;
  using Text = std::array<char, 200>;
  struct Offer {
    cudaIpcMemHandle_t handle;
    std::size_t bytes;
    Host host;
    bool has_handle;
  };
  struct Run {
    std::byte* own;
    std::size_t bytes;
    std::vector<std::byte*> addresses;
  };

  /// Returns an identifier of the host that its processes share: the host name and the boot ID. A
  /// rank that cannot read the boot ID counts as a separate host.
  [[nodiscard]] Host host() const {
    Host result{};
    std::array<char, 64> name{};
    ::gethostname(name.data(), name.size() - 1);
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string boot;
    if (!std::getline(file, boot)) boot = message("rank ", rank_);
    put(result, message(boot, ' ', name.data()));
    return result;
  }
  template <std::size_t Size>
  static void put(std::array<char, Size>& target, const std::string& text) {
    std::memcpy(target.data(), text.data(), std::min(text.size(), Size - 1));
  }

  /// @param found  receives the obstacle of this rank
  std::vector<Offer> exchange_offers(const Run& run, Text& found) {
    Offer own{};
    own.bytes = run.bytes;
    own.host = host();
    const cudaError_t status = cudaIpcGetMemHandle(&own.handle, run.own);
    own.has_handle = status == cudaSuccess;
    if (!own.has_handle) {
      cudaGetLastError();
      put(found,
          message("rank ", rank_, " cannot share its GPU's memory: ", cudaGetErrorString(status)));
    }
    std::vector<Offer> offers(static_cast<std::size_t>(ranks_));
    gather_(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(offers)),
            "begin of shared memory");
    for (std::size_t other = 0; other < offers.size(); ++other) {
      require<CommError>(offers[other].bytes == offers[0].bytes, "rank 0 has ", offers[0].bytes,
                         " bytes of memory and rank ", other, " has ", offers[other].bytes,
                         "; start all ranks with the same options");
    }
    return offers;
  }

  void open(Run& run, const std::vector<Offer>& offers, Text& found) const {
    for (std::size_t other = 0; other < offers.size(); ++other) {
      if (offers[other].host != offers[rank_].host) continue;
      void* place = run.own;
      if (other != rank_) {
        if (found[0] != '\0' || !offers[other].has_handle) continue;
        const cudaError_t status =
            cudaIpcOpenMemHandle(&place, offers[other].handle, cudaIpcMemLazyEnablePeerAccess);
        if (status != cudaSuccess) {
          cudaGetLastError();
          put(found, message("rank ", rank_, " cannot reach the GPU of rank ", other, ": ",
                             cudaGetErrorString(status)));
          continue;
        }
      }
      run.addresses[other] = static_cast<std::byte*>(place);
    }
  }

  /// @param own  the obstacle of this rank
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
    cudaSetDevice(gpu_);
    for (std::size_t other = 0; other < run.addresses.size(); ++other) {
      if (other == rank_ || run.addresses[other] == nullptr) continue;
      cudaIpcCloseMemHandle(run.addresses[other]);
    }
    cudaGetLastError();  // the next launch must not report this error
  }

  std::size_t rank_;
  int ranks_;
  int gpu_ = 0;
  Gather gather_;
  std::vector<Run> runs_;
  std::string obstacle_;
};

}  // namespace octavo
