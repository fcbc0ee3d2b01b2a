#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/comm/cuda/copy_exchange.cuh>
#include <octavo/comm/rendezvous.hpp>
#include <octavo/core/cuda/context.cuh>
#include <octavo/memory/cuda/buffer.cuh>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "take_larger.cuh"

/// Ranks that exchange as those of a run between GPUs do, and may share one.
namespace octavo::support {

/// A rank that is a process. All goes by copies between meetings, as what is large does in
/// NcclComm, so steps can be recorded. What is exchanged lies in memory of `allocate`.
class CopyRank final : public Communicator<Cuda> {
 public:
  using Bytes = TensorView<std::byte, 1, Cuda>;
  using ConstBytes = TensorView<const std::byte, 1, Cuda>;

  /// @param rendezvous  outlives this
  CopyRank(Rendezvous& rendezvous, const Context<Cuda>& context)
      : CopyRank(rendezvous, context, nullptr, all_of(rendezvous), rendezvous.rank()) {}
  ~CopyRank() override {
    cudaDeviceSynchronize();
    exchange_->close(true);
    memory().remove(largest_.data(), true);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }

  [[nodiscard]] Buffer<Cuda> allocate(std::size_t bytes, const Context<Cuda>& context) override {
    const std::size_t taken = std::max(bytes, PeerMemory::min_bytes);
    OwnedBytes owned = memory().allocate(taken, context);
    std::byte* given = owned.get();
    memory().add(given, taken, context);
    whole().shared_.push_back(std::move(owned));
    const auto release = [](std::byte* freed, void* owner) {
      static_cast<CopyRank*>(owner)->deallocate(freed);
    };
    return {OwnedBytes(given, OwnedBytesRelease{release, &whole()}), bytes};
  }

  void all_gather(ConstBytes part, Bytes whole, const char* what,
                  const Context<Cuda>& context) override {
    if (part.bytes() == 0) return;
    require_reached(whole, what);
    exchange_->all_gather(part.data(), whole.data(), part.bytes(), what, context);
  }
  void all_to_all(ConstBytes parts, Bytes received, const char* what,
                  const Context<Cuda>& context) override {
    if (parts.bytes() == 0) return;
    require_reached(received, what);
    exchange_->all_to_all(parts.data(), received.data(), parts.bytes() / members_.size(), what,
                          context);
  }
  /// On one of the contexts only: the memory that it goes through is one.
  void all_reduce_max(TensorView<std::uint32_t, 1, Cuda> values, const char* what,
                      const Context<Cuda>& context) override {
    const std::size_t bytes = values.bytes() * members_.size();
    require<UsageError>(bytes <= largest_.size(), what, ": ", bytes, " bytes are more than the ",
                        largest_.size(), " that there are for it");
    all_gather(
        {reinterpret_cast<const std::byte*>(values.data()), {static_cast<Index>(values.bytes())}},
        {largest_.data(), {static_cast<Index>(bytes)}}, what, context);
    take_larger(values, reinterpret_cast<const std::uint32_t*>(largest_.data()), size(), context);
  }

  /// Of a group's, too: all groups gather at once.
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    std::vector<std::byte> all(part.size() * static_cast<std::size_t>(rendezvous_.size()));
    rendezvous_.all_gather_sync(part, all, what);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto of_member =
          std::span(all).subspan(static_cast<std::size_t>(members_[i]) * part.size(), part.size());
      std::ranges::copy(of_member, whole.subspan(i * part.size()).begin());
    }
  }

  [[nodiscard]] std::unique_ptr<Communicator<Cuda>> split(int group) override {
    std::vector<int> members = ranks_of_group(group);
    const auto place = std::ranges::find(members, rank()) - members.begin();
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    return std::unique_ptr<CopyRank>(
        new CopyRank(rendezvous_, context_, &whole(), std::move(members), static_cast<int>(place)));
  }

 private:
  CopyRank(Rendezvous& rendezvous, const Context<Cuda>& context, CopyRank* whole,
           std::vector<int> members, int rank)
      : rendezvous_(rendezvous),
        context_(context),
        whole_(whole),
        members_(std::move(members)),
        rank_(rank) {
    if (whole == nullptr) {
      memory_.emplace(rank, size(), [&rendezvous](auto part, auto all, const char* what) {
        rendezvous.all_gather_sync(part, all, what);
      });
    }
    exchange_.emplace(memory(), members_, rank_, std::chrono::seconds(60), context);
    require<CommError>(exchange_->obstacle().empty(), exchange_->obstacle());
    largest_ =
        Buffer<Cuda>(memory().allocate(PeerMemory::min_bytes, context), PeerMemory::min_bytes);
    memory().add(largest_.data(), largest_.size(), context);
  }

  static std::vector<int> all_of(const Rendezvous& rendezvous) {
    std::vector<int> members;
    for (int rank = 0; rank < rendezvous.size(); ++rank) members.push_back(rank);
    return members;
  }
  [[nodiscard]] CopyRank& whole() { return whole_ == nullptr ? *this : *whole_; }
  [[nodiscard]] PeerMemory& memory() { return *whole().memory_; }

  void deallocate(std::byte* freed) {
    cudaDeviceSynchronize();
    memory().remove(freed, true);
    std::erase_if(shared_, [&](const OwnedBytes& owned) { return owned.get() == freed; });
  }
  void require_reached(Bytes target, const char* what) const {
    require<UsageError>(exchange_->reaches(target.data(), target.bytes()), what,
                        " is to lie in memory of `allocate`");
  }

  Rendezvous& rendezvous_;
  const Context<Cuda>& context_;
  CopyRank* whole_;  ///< of all ranks; null: this one
  std::vector<int> members_;
  int rank_;
  std::optional<PeerMemory> memory_;  ///< of `whole()`
  std::vector<OwnedBytes> shared_;    ///< of `whole()`: what `allocate` gave
  std::optional<CopyExchange> exchange_;
  Buffer<Cuda> largest_;  ///< [ranks, values], of which the largest are taken
};

}  // namespace octavo::support
