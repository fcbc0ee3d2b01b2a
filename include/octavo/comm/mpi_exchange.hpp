/// @file
/// One exchange of messages between ranks through MPI, waited for until a deadline.
#pragma once

#include <octavo/comm/rank_names.hpp>
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

// MPI's C++ bindings left its standard long ago.
#if !defined(OMPI_SKIP_MPICXX)
#define OMPI_SKIP_MPICXX 1
#endif
#if !defined(MPICH_SKIP_MPICXX)
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

namespace octavo::inline OCTAVO_ABI::detail {

/// Throws CommError unless a call of MPI succeeded.
inline void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw CommError(message(call, " failed: ", text.data()));
}

/// Between whom messages go, and how.
struct MpiRoute {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds time_out{};
  std::size_t largest_message = std::size_t{1} << 30;  ///< bytes; MPI counts in int
};

/// The messages of one operation. What is sent and received has to live until `wait` returns; where
/// that throws, until the program ends.
class MpiExchange {
 public:
  /// @param number  of the operation, counted alike by all ranks
  MpiExchange(const MpiRoute& route, const char* kind, const char* what, std::uint64_t number)
      : route_(route), operation_(operation_text(kind, what)), tag_(tag_of(operation_, number)) {}

  /// To be called before `send`, so that what arrives has a place.
  void receive(int peer, std::byte* data, std::size_t bytes) {
    in_pieces(bytes, [&](std::size_t begin, int count) {
      Message& message = add(peer, count, true);
      check_mpi(MPI_Irecv(data + begin, count, MPI_BYTE, peer, tag_, route_.communicator,
                          &message.request),
                "MPI_Irecv");
    });
  }
  void send(int peer, const std::byte* data, std::size_t bytes) {
    in_pieces(bytes, [&](std::size_t begin, int count) {
      Message& message = add(peer, count, false);
      check_mpi(MPI_Isend(data + begin, count, MPI_BYTE, peer, tag_, route_.communicator,
                          &message.request),
                "MPI_Isend");
    });
  }

  /// Waits until all is sent and received.
  /// @throws CommError  naming the ranks that did not take part in time, or took part otherwise
  void wait() {
    using Clock = std::chrono::steady_clock;
    using namespace std::chrono_literals;
    const Clock::time_point start = Clock::now();
    std::size_t noted = 0;
    for (;;) {
      test_all();
      if (messages_.empty()) break;
      const Clock::time_point now = Clock::now();
      if (now - start >= route_.time_out) give_up();
      if (messages_.size() != noted) write_note();
      noted = messages_.size();
      // Ranks that wait for long let others have the processor, of which there may be too few.
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
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
    int bytes = 0;
    bool is_receive = false;
  };

  /// An operation's own, so that ranks which make other calls do not take each other's messages
  /// for what they wait for. 32767 is the largest that every MPI has.
  static int tag_of(std::string_view operation, std::uint64_t number) {
    std::uint64_t hash = 14695981039346656037u ^ number;  // FNV-1a
    for (const char letter : operation) {
      hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
    }
    return static_cast<int>((hash ^ hash >> 32) & 0x7fff);
  }

  /// No bytes are a message, too.
  template <class Post>
  void in_pieces(std::size_t bytes, const Post& post) const {
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(bytes - begin, route_.largest_message);
      post(begin, static_cast<int>(count));
      begin += count;
    } while (begin < bytes);
  }

  Message& add(int peer, int bytes, bool is_receive) {
    return messages_.emplace_back(Message{.peer = peer, .bytes = bytes, .is_receive = is_receive});
  }

  void test_all() {
    std::erase_if(messages_, [&](Message& message) {
      MPI_Status status{};
      int is_done = 0;
      const int error = MPI_Test(&message.request, &is_done, &status);
      if (error != MPI_SUCCESS) fail(message, error);
      if (is_done != 0 && message.is_receive) check_count(message, status);
      return is_done != 0;
    });
  }

  void check_count(const Message& received, const MPI_Status& status) const {
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    require<CommError>(bytes == received.bytes, "rank ", received.peer, " sent ", bytes,
                       " bytes in ", operation_, ", and rank ", route_.rank, " waits for ",
                       received.bytes, "; all ranks must make the same calls");
  }

  [[noreturn]] void fail(const Message& failed, int error) const {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(error, text.data(), &length);
    throw CommError(message("MPI failed between rank ", route_.rank, " and rank ", failed.peer,
                            " in ", operation_, ": ", text.data(), "; rank ", failed.peer,
                            " may have ended, or sent more than is "
                            "waited for: see its messages"));
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

  /// What this rank does not wait for can be there only from a rank that makes other calls.
  [[noreturn]] void give_up() const {
    const std::vector<int> silent = silent_ranks();
    std::vector<int> elsewhere;
    for (const int peer : silent) {
      int is_there = 0;
      MPI_Iprobe(peer, MPI_ANY_TAG, route_.communicator, &is_there, MPI_STATUS_IGNORE);
      if (is_there != 0) elsewhere.push_back(peer);
    }
    const std::string advice =
        elsewhere.empty()
            ? std::string("; see whether that process still runs, and the messages of its host")
            : message("; ", rank_names(elsewhere), " ", has_or_have(elsewhere),
                      " sent messages of another operation: all ranks must make the same calls in "
                      "the same order");
    throw CommError(no_answer_text(silent, route_.time_out, operation_) + advice);
  }

  const MpiRoute& route_;
  std::string operation_;
  int tag_;
  std::vector<Message> messages_;
};

}  // namespace octavo::inline OCTAVO_ABI::detail
