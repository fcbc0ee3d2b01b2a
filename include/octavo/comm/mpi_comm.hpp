/// @file
/// Communicator of ranks on the `Cpu` device, through MPI. Not part of octavo.hpp: a program that
/// includes this needs MPI's headers and library.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/comm/mpi.hpp>
#include <octavo/comm/mpi_exchange.hpp>
#include <octavo/comm/no_answer.hpp>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// All ranks of an MPI program. Each operation sends messages between every pair of ranks, so that
/// errors can name a rank that does not respond; MPI's collectives cannot report which rank is
/// missing. Use it only from the thread that created the `Mpi`.
/// @throws CommError  from every operation, naming it and the ranks that did not take part within
///                    the time-out of the `Mpi`, or with another number of bytes. The program must
///                    then end; it is sufficient to leave the block of the `Mpi`
class MpiComm final : public Communicator<Cpu> {
 public:
  /// Called by all ranks together. A program may have several communicators.
  /// @param mpi              must outlive this object
  /// @param largest_message  bytes; longer parts are sent in pieces
  explicit MpiComm(Mpi& mpi, std::size_t largest_message = std::size_t{1} << 30)
      : mpi_(mpi), route_(mpi.world_) {
    require<ConfigError>(0 < largest_message && largest_message <= std::size_t{1} << 30,
                         "the largest message must have 1 to ", std::size_t{1} << 30,
                         " bytes, but has ", largest_message);
    route_.largest_message = largest_message;
    for (int member = 0; member < route_.size; ++member) members_.push_back(member);
    rank_ = route_.rank;
    guarded([&] {
      detail::MpiExchange start(mpi_.world_, "barrier", "start of a communicator", 0);
      mpi_.meet(start);
      duplicate();
    });
  }
  ~MpiComm() override {
    if (!mpi_.has_failed_) MPI_Comm_free(&route_.communicator);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }

  void all_gather(TensorView<const std::byte, 1, Cpu> part, TensorView<std::byte, 1, Cpu> whole,
                  const char* what, const Context<Cpu>&) override {
    gather("all-gather", what, part.data(), part.bytes(), whole.data(), whole.bytes());
  }

  void all_to_all(TensorView<const std::byte, 1, Cpu> parts, TensorView<std::byte, 1, Cpu> received,
                  const char* what, const Context<Cpu>&) override {
    const std::size_t bytes = parts.bytes() / static_cast<std::size_t>(size());
    require<ShapeError>(bytes * static_cast<std::size_t>(size()) == parts.bytes() &&
                            received.bytes() == parts.bytes(),
                        "all_to_all '", what, "': ", parts.bytes(), " bytes to send and ",
                        received.bytes(), " to receive; both must be ", size(),
                        " parts of one size");
    exchange(
        "all-to-all", what, bytes, [&](int peer) { return at(parts.data(), peer, bytes); },
        [&](int peer) { return at(received.data(), peer, bytes); });
  }

  void all_reduce_max(TensorView<std::uint32_t, 1, Cpu> values, const char* what,
                      const Context<Cpu>&) override {
    const auto* own = reinterpret_cast<const std::byte*>(values.data());
    const auto count = static_cast<std::size_t>(values.size());
    all_values_.resize(count * static_cast<std::size_t>(size()));
    gather("maximum", what, own, values.bytes(), reinterpret_cast<std::byte*>(all_values_.data()),
           all_values_.size() * sizeof(std::uint32_t));
    for (std::size_t i = 0; i < all_values_.size(); ++i) {
      std::uint32_t& value = values.data()[i % count];
      value = std::max(value, all_values_[i]);
    }
  }

  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    gather("all-gather", what, part.data(), part.size(), whole.data(), whole.size());
  }

  [[nodiscard]] std::unique_ptr<Communicator<Cpu>> split(int group) override {
    std::vector<int> members = ranks_of_group(group);
    const auto own = std::find(members.begin(), members.end(), rank());
    const auto place = static_cast<int>(own - members.begin());
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    return std::unique_ptr<Communicator<Cpu>>(new MpiComm(*this, std::move(members), place));
  }

 private:
  /// Creates a communicator of some ranks of another one. All of its ranks call it together.
  MpiComm(const MpiComm& whole, std::vector<int> members, int rank)
      : mpi_(whole.mpi_), route_(whole.route_), members_(std::move(members)), rank_(rank) {
    guarded([&] { duplicate(); });
  }

  template <class Byte>
  static Byte* at(Byte* data, int rank, std::size_t bytes) {
    return data + static_cast<std::size_t>(rank) * bytes;
  }

  void gather(const char* kind, const char* what, const std::byte* part, std::size_t bytes,
              std::byte* whole, std::size_t whole_bytes) {
    require<ShapeError>(whole_bytes == bytes * static_cast<std::size_t>(size()), kind, " '", what,
                        "': ", size(), " parts of ", bytes, " bytes do not add up to ",
                        whole_bytes);
    std::byte* own = at(whole, rank(), bytes);
    if (bytes != 0 && own != part) std::memcpy(own, part, bytes);
    exchange(
        kind, what, bytes, [&](int) { return part; },
        [&](int peer) { return at(whole, peer, bytes); });
  }

  /// Sends `bytes` from `source(rank)` to each other rank, and receives as many from it to
  /// `target(rank)`.
  template <class Source, class Target>
  void exchange(const char* kind, const char* what, std::size_t bytes, const Source& source,
                const Target& target) {
    guarded([&] {
      detail::MpiExchange exchange(route_, kind, what, ++operations_);
      const auto rank_of = [&](int peer) { return members_[static_cast<std::size_t>(peer)]; };
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank()) exchange.receive(rank_of(peer), target(peer), bytes);
      }
      // Each rank starts with its neighbour, so that not all send to rank 0 first.
      for (int i = 1; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        exchange.send(rank_of(peer), source(peer), bytes);
      }
      exchange.wait();
    });
  }

  template <class Operation>
  void guarded(const Operation& operation) {
    require<CommError>(!mpi_.has_failed_,
                       "an operation between the ranks failed before; end the program");
    try {
      operation();
    } catch (...) {
      mpi_.has_failed_ = true;
      throw;
    }
  }

  /// Duplicates MPI's communicator, so that messages of other communicators are not received here.
  void duplicate() {
    using Clock = std::chrono::steady_clock;
    MPI_Request request = MPI_REQUEST_NULL;
    detail::check_mpi(MPI_Comm_idup(mpi_.world_.communicator, &route_.communicator, &request),
                      "MPI_Comm_idup");
    const Clock::time_point deadline = Clock::now() + route_.timeout;
    for (int is_done = 0; is_done == 0;) {
      detail::check_mpi(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      require<CommError>(is_done != 0 || Clock::now() < deadline,
                         "MPI_Comm_idup has not returned in ", detail::seconds_text(route_.timeout),
                         "; a rank does not respond");
      std::this_thread::yield();
    }
  }

  Mpi& mpi_;
  detail::MpiRoute route_;  ///< of all ranks of the program
  std::vector<int>
      members_;   ///< numbers of this communicator's ranks among all ranks of the program
  int rank_ = 0;  ///< index of this process in `members_`
  std::uint64_t operations_ = 0;
  std::vector<std::uint32_t> all_values_;
};

}  // namespace octavo
