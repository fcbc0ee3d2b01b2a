/// @file
/// One exchange of messages between ranks through MPI, with a deadline.
#pragma once

#include <octavo/comm/no_answer.hpp>
#include <octavo/comm/wait_note.hpp>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// MPI's C++ bindings were removed from the standard.
#if !defined(OMPI_SKIP_MPICXX)
#define OMPI_SKIP_MPICXX 1
#endif
#if !defined(MPICH_SKIP_MPICXX)
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

namespace octavo OCTAVO_ABI::detail {

/// Throws CommError unless a call of MPI succeeded.
inline void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw CommError(message(call, " failed: ", text.data()));
}

/// The ranks that exchange messages, and the limits of the exchange.
struct MpiRoute {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  std::size_t largest_message = std::size_t{1} << 30;  ///< bytes; MPI counts in int
};

/// The messages of one operation. The buffers must stay valid until `wait` returns, or until the
/// program ends if `wait` throws.
class MpiExchange {
 public:
  /// @param number  of the operation, the same on all ranks
  MpiExchange(const MpiRoute& route, const char* kind, const char* what, std::uint64_t number)
      : route_(route), operation_(operation_text(kind, what)), tag_(tag_of(operation_, number)) {}

  /// Called once for each peer. Checks the size of a message before receiving it: between processes
  /// of one host, Open MPI 4.1 writes beyond the buffer if a message is larger.
  void receive(int peer, std::byte* data, std::size_t bytes) {
    messages_.push_back({.peer = peer, .place = data, .left = bytes, .is_receive = true});
  }
  void send(int peer, const std::byte* data, std::size_t bytes) {
    std::size_t begin = 0;
    do {  // an empty part is also a message
      const std::size_t count = piece(bytes - begin);
      Message& message = messages_.emplace_back(Message{.peer = peer});
      check_mpi(MPI_Isend(data + begin, static_cast<int>(count), MPI_BYTE, peer, tag_,
                          route_.communicator, &message.request),
                "MPI_Isend");
      begin += count;
    } while (begin < bytes);
  }

  /// Waits until all is sent and received.
  /// @throws CommError  naming the ranks that did not take part in time, or took part differently
  void wait() {
    using Clock = std::chrono::steady_clock;
    using namespace std::chrono_literals;
    const Clock::time_point start = Clock::now();
    std::size_t noted = 0;
    for (;;) {
      test_all();
      if (messages_.empty()) break;
      const Clock::time_point now = Clock::now();
      if (now - start >= route_.timeout) give_up();
      if (messages_.size() != noted) write_note();
      noted = messages_.size();
      // Ranks that wait for long yield: there may be fewer processors than ranks.
      if (now - start < 200us) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(50us);
      }
    }
    WaitNote::set(message("rank ", route_.rank, " is past ", operation_));
  }

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;  ///< of a piece in flight
    int peer = 0;
    std::byte* place = nullptr;  ///< of the next piece to receive
    std::size_t left = 0;        ///< bytes to receive, including those in flight
    bool is_receive = false;
  };

  /// Returns the tag of an operation, so that messages of different operations are not confused.
  /// 32767 is the largest tag that every MPI supports.
  static int tag_of(std::string_view operation, std::uint64_t number) {
    std::uint64_t hash = 14695981039346656037u ^ number;  // FNV-1a
    for (const char letter : operation) {
      hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
    }
    return static_cast<int>((hash ^ hash >> 32) & 0x7fff);
  }

  /// Returns the bytes of the next piece.
  [[nodiscard]] std::size_t piece(std::size_t left) const {
    return std::min(left, route_.largest_message);
  }

  void test_all() {
    std::erase_if(messages_, [&](Message& message) {
      if (message.is_receive && message.request == MPI_REQUEST_NULL && !try_receive(message)) {
        return false;
      }
      int is_done = 0;
      const int error = MPI_Test(&message.request, &is_done, MPI_STATUS_IGNORE);
      if (error != MPI_SUCCESS) fail(message, error);
      if (is_done == 0 || !message.is_receive) return is_done != 0;
      const std::size_t received = piece(message.left);
      message.place += received;
      message.left -= received;
      return message.left == 0;
    });
  }

  /// Starts to receive the next piece, if it has arrived.
  bool try_receive(Message& receive) const {
    int has_arrived = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status status{};
    const int error =
        MPI_Improbe(receive.peer, tag_, route_.communicator, &has_arrived, &matched, &status);
    if (error != MPI_SUCCESS) fail(receive, error);
    if (has_arrived == 0) return false;
    const auto wanted = static_cast<int>(piece(receive.left));
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    require<CommError>(bytes == wanted, "rank ", receive.peer, " sent ", bytes, " bytes in ",
                       operation_, ", but rank ", route_.rank, " waits for ", wanted,
                       "; all ranks must make the same calls");
    check_mpi(MPI_Imrecv(receive.place, wanted, MPI_BYTE, &matched, &receive.request),
              "MPI_Imrecv");
    return true;
  }

  [[noreturn]] void fail(const Message& failed, int error) const {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(error, text.data(), &length);
    throw CommError(message("MPI failed between rank ", route_.rank, " and rank ", failed.peer,
                            " in ", operation_, ": ", text.data(), "; rank ", failed.peer,
                            " may have ended: see its messages"));
  }

  [[nodiscard]] std::vector<int> silent_ranks() const {
    std::vector<int> ranks;
    ranks.reserve(messages_.size());
    for (const Message& message : messages_) ranks.push_back(message.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  void write_note() const {
    WaitNote::set(message("rank ", route_.rank, " waits for ", rank_names(silent_ranks()), " in ",
                          operation_));
  }

  /// Checks for unexpected messages; only a rank that makes different calls sends them.
  [[noreturn]] void give_up() const {
    const std::vector<int> silent = silent_ranks();
    std::vector<int> elsewhere;
    for (const int peer : silent) {
      int is_there = 0;
      MPI_Status status{};
      MPI_Iprobe(peer, MPI_ANY_TAG, route_.communicator, &is_there, &status);
      if (is_there != 0 && status.MPI_TAG != tag_) elsewhere.push_back(peer);
    }
    const std::string advice =
        elsewhere.empty()
            ? std::string("; see whether that process still runs, and the messages of its host")
            : message("; ", rank_names(elsewhere), " ", has_or_have(elsewhere),
                      " sent messages of another operation: all ranks must make the same calls in "
                      "the same order");
    throw CommError(timeout_message(silent, route_.timeout, operation_) + advice);
  }

  const MpiRoute& route_;
  std::string operation_;
  int tag_;
  std::vector<Message> messages_;
};

}  // namespace octavo OCTAVO_ABI::detail
