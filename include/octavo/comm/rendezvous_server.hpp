/// @file
/// The server of a rendezvous, at which ranks meet and which detects lost ranks.
#pragma once

#include <octavo/comm/launch.hpp>
#include <octavo/comm/no_answer.hpp>
#include <octavo/comm/packed_text.hpp>
#include <octavo/comm/socket.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/start_thread.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

namespace octavo OCTAVO_ABI::detail {

using RankClock = std::chrono::steady_clock;

/// Returns the interval between heartbeats.
[[nodiscard]] inline std::chrono::milliseconds heartbeat_interval(
    std::chrono::milliseconds timeout) {
  return std::clamp(timeout / 10, std::chrono::milliseconds(10), std::chrono::milliseconds(1000));
}

/// Starts a thread that blocks all signals, so that the program's own threads receive them.
template <class Body>
std::thread start_thread_without_signals(Body body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread = start_thread("the connections between ranks", std::move(body));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

/// The first message of a rank, followed by the run's secret.
struct Hello {
  std::int32_t rank;
  std::int32_t size;
};

/// Compares two secrets in a time that does not depend on the position of the first difference.
inline bool is_same_secret(std::string_view given, std::string_view own) {
  unsigned difference = given.size() == own.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size() && !own.empty(); ++i) {
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(own[i % own.size()]);
  }
  return difference == 0;
}

/// Accepts and monitors all ranks, including rank 0, in a separate thread of rank 0's process.
class RendezvousServer {
 public:
  /// @param launch  of rank 0
  /// @throws CommError  if the port is in use
  RendezvousServer(const Launch& launch, std::chrono::milliseconds timeout)
      : listener_(listen_at(launch.master_address, launch.port, launch.local_size == launch.size)),
        port_(launch.port),
        secret_(launch.secret),
        timeout_(timeout),
        peers_(static_cast<std::size_t>(launch.size)),
        thread_(start_thread_without_signals([this] { serve(); })) {}
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;
  /// Waits until all ranks have ended, at most a time-out.
  ~RendezvousServer() {
    is_ending_ = true;
    thread_.join();
  }

 private:
  /// A rank's connection.
  struct Peer {
    enum class State { empty, connected, disconnected };
    State state = State::empty;
    FrameStream stream{};
    RankClock::time_point last_received{};
    std::string operation{"nothing yet"};
    bool has_question = false;  ///< who is absent
  };
  /// A connection that has not sent its rank yet.
  struct PendingConnection {
    FrameStream stream;
    RankClock::time_point since;
    bool has_input = false;
  };
  /// The all-gather in progress.
  struct Gathering {
    std::string operation{};
    std::vector<std::optional<std::string>> parts{};
    std::size_t arrived = 0;
    RankClock::time_point since{};
  };

  void serve() {
    const RankClock::time_point start = RankClock::now();
    std::optional<RankClock::time_point> end;
    RankClock::time_point next_heartbeat = start;
    for (;;) {
      wait_for_input();
      accept_connections();
      for (std::size_t rank = 0; rank < peers_.size(); ++rank) receive_from(static_cast<int>(rank));
      answer();
      const RankClock::time_point now = RankClock::now();
      check_timeouts(now, start);
      if (now >= next_heartbeat) {
        broadcast(FrameKind::heartbeat, "");
        next_heartbeat = now + heartbeat_interval(timeout_);
      }
      for (Peer& peer : peers_) {
        if (peer.state == Peer::State::connected)
          (void)peer.stream.flush();  // `receive_from` sees the end
      }
      if (is_ending_ && !end) end = now + timeout_;
      if (end && (now >= *end || all_disconnected())) return;
    }
  }

  void wait_for_input() {
    // Otherwise pending connections that cannot be accepted yet would end each wait immediately.
    const short arrivals = pending_.size() < max_pending ? POLLIN : 0;
    std::vector<pollfd> watched{{listener_.get(), arrivals, 0}};
    const auto watch = [&](const FrameStream& stream) {
      const int events = POLLIN | (stream.has_output() ? POLLOUT : 0);
      watched.push_back({stream.descriptor(), static_cast<short>(events), 0});
    };
    for (const Peer& peer : peers_) {
      if (peer.state == Peer::State::connected) watch(peer.stream);
    }
    for (const PendingConnection& connection : pending_) watch(connection.stream);
    ::poll(watched.data(), watched.size(), 10);
    const std::size_t first = watched.size() - pending_.size();
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      pending_[i].has_input = watched[first + i].revents != 0;
    }
  }

  /// Accepts connections while there are fewer than `max_pending`.
  void accept_connections() {
    std::erase_if(pending_,
                  [this](PendingConnection& connection) { return handle_pending(connection); });
    while (pending_.size() < max_pending) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) break;
      set_tcp_no_delay(socket.get());
      pending_.push_back({FrameStream(std::move(socket)), RankClock::now()});
    }
  }

  /// Returns whether a connection can be dropped: it has become a rank, or cannot be one. An
  /// unknown process may send anything or nothing; it gets no response and does not delay ranks.
  bool handle_pending(PendingConnection& connection) {
    // A rank sends its hello immediately, so if there are too many pending connections, silent ones
    // are dropped soon.
    const std::chrono::milliseconds hello_timeout(pending_.size() < max_pending ? 5000 : 200);
    constexpr std::size_t most = sizeof(Hello) + max_secret_bytes;
    const bool is_late = RankClock::now() - connection.since > hello_timeout;
    if (!std::exchange(connection.has_input, false)) return is_late;
    try {
      const bool is_open = connection.stream.fill(most);
      const std::optional<Frame> frame = connection.stream.take(most);
      if (!frame) return !is_open || is_late;
      if (frame->kind != FrameKind::hello || frame->content.size() < sizeof(Hello)) return true;
      Hello hello{};
      std::memcpy(&hello, frame->content.data(), sizeof hello);
      const std::string refusal =
          rejection_reason(hello, std::string_view(frame->content).substr(sizeof hello));
      if (refusal.empty()) {
        accept_peer(hello.rank, std::move(connection.stream));
      } else {
        connection.stream.put(FrameKind::refusal, refusal);
        (void)connection.stream.flush();
      }
    } catch (const CommError&) {
    }
    return true;
  }

  [[nodiscard]] std::string rejection_reason(const Hello& hello, std::string_view secret) const {
    if (!is_same_secret(secret, secret_)) {
      return message("rank ", hello.rank, " connects to port ", port_,
                     " with a secret that differs from rank 0's, or one of the two has none; set ",
                     secret_variable, " to the same value for all ranks, and MASTER_PORT to a ",
                     "different port for each run");
    }
    const int ranks = static_cast<int>(peers_.size());
    if (hello.size != ranks || hello.rank < 0 || hello.rank >= ranks)
      return message("rank ", hello.rank, " of ", hello.size, " connects to port ", port_,
                     " of a run of ", ranks, " ranks; use a different MASTER_PORT for each run");
    const Peer& peer = peers_[static_cast<std::size_t>(hello.rank)];
    if (peer.state != Peer::State::empty)
      return message(
          "another process is already rank ", hello.rank, " of ", ranks, " at port ", port_,
          "; use a different rank for each process, and a different MASTER_PORT for each run");
    return "";
  }

  void accept_peer(int rank, FrameStream stream) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.stream = std::move(stream);
    peer.last_received = RankClock::now();
    peer.state = Peer::State::connected;
    if (!fault_.empty()) peer.stream.put(FrameKind::fault, fault_);
    if (missing().empty() && fault_.empty()) {
      has_begun_ = true;
      broadcast(FrameKind::welcome, "");
    }
  }

  void receive_from(int rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.state != Peer::State::connected) return;
    try {
      const bool is_open = peer.stream.fill(max_part_bytes);
      while (std::optional<Frame> frame = peer.stream.take(max_part_bytes)) {
        peer.last_received = RankClock::now();
        handle_frame(rank, peer, *frame);
      }
      if (!is_open && peer.state == Peer::State::connected)
        declare_lost(rank, "has closed its connection; its process has probably ended");
    } catch (const CommError& error) {
      declare_lost(rank, message("sent invalid data: ", error.what()));
    }
  }

  void handle_frame(int rank, Peer& peer, const Frame& frame) {
    std::string_view content = frame.content;
    if (frame.kind == FrameKind::heartbeat) {
      peer.operation = frame.content;
    } else if (frame.kind == FrameKind::question) {
      peer.operation = frame.content;
      peer.has_question = true;
    } else if (frame.kind == FrameKind::gather) {
      const std::string_view operation = take_text(content);
      peer.operation = operation;
      gather(rank, operation, content);
    } else if (frame.kind == FrameKind::farewell) {
      if (frame.content.empty()) {
        peer.state = Peer::State::disconnected;
      } else {
        declare_lost(rank, message("gave up: ", frame.content));
      }
    }
  }

  /// Answers questions, after everything that has arrived was read.
  void answer() {
    for (Peer& peer : peers_) {
      if (!std::exchange(peer.has_question, false) || peer.state != Peer::State::connected)
        continue;
      peer.stream.put(FrameKind::question, absent_from(peer.operation));
    }
  }

  /// Names the ranks that are silent, those that have ended, and those whose last operation is
  /// another one, with its name.
  [[nodiscard]] std::string absent_from(const std::string& operation) const {
    std::string text;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      const Peer& peer = peers_[rank];
      const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(
          RankClock::now() - peer.last_received);
      const bool is_silent = silence > 2 * heartbeat_interval(timeout_);
      const bool has_ended = peer.state == Peer::State::disconnected;
      if (!has_ended && !is_silent && peer.operation == operation) continue;
      std::string how = "not reached it";
      if (is_silent) how = message("been silent for ", seconds_text(silence), silent_as);
      if (has_ended) how = "ended";
      text += message(text.empty() ? "" : "; ", "rank ", rank, " has ", how, ", and was last in ",
                      peer.operation);
    }
    return text;
  }

  void gather(int rank, std::string_view operation, std::string_view part) {
    if (gathering_.arrived == 0) {
      gathering_ = {std::string(operation), {}, 0, RankClock::now()};
      gathering_.parts.resize(peers_.size());
    }
    if (gathering_.operation != operation) {
      report_fault(message("rank ", rank, " is in ", operation, " while others are in ",
                           gathering_.operation,
                           "; all ranks must make the same calls in the same order"));
      return;
    }
    std::optional<std::string>& own = gathering_.parts[static_cast<std::size_t>(rank)];
    if (own.has_value()) {
      report_fault(message("rank ", rank, " passes two parts to ", operation,
                           "; only one thread of a rank may call it"));
      return;
    }
    own = part;
    if (++gathering_.arrived < peers_.size()) return;
    std::string whole;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (gathering_.parts[i]->size() != part.size()) {
        report_fault(message("rank ", i, " passes ", gathering_.parts[i]->size(), " bytes to ",
                             operation, ", but rank ", rank, " passes ", part.size(),
                             "; all must pass the same number"));
        return;
      }
      whole += *gathering_.parts[i];
    }
    gathering_ = {};
    broadcast(FrameKind::gather, whole);
  }

  void check_timeouts(RankClock::time_point now, RankClock::time_point start) {
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      const Peer& peer = peers_[rank];
      if (peer.state == Peer::State::connected && now - peer.last_received > timeout_)
        declare_lost(static_cast<int>(rank),
                     message("has been silent for ", seconds_text(timeout_), silent_as));
    }
    if (!has_begun_ && now - start > timeout_) {
      const std::vector<int> absent = missing();
      report_fault(message(rank_names(absent), " ", has_or_have(absent), " not connected to port ",
                           port_, " of rank 0's host within ", seconds_text(timeout_),
                           "; check that all were started and can reach that host"));
    }
    for (std::size_t rank = 0; rank < gathering_.parts.size(); ++rank) {
      if (gathering_.parts[rank] || peers_[rank].state != Peer::State::disconnected) continue;
      report_fault(message("rank ", rank, " has ended while others are in ", gathering_.operation));
      return;
    }
    if (gathering_.arrived != 0 && now - gathering_.since > timeout_) {
      std::vector<int> silent;
      for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
        if (!gathering_.parts[rank]) silent.push_back(static_cast<int>(rank));
      }
      report_fault(timeout_message(silent, timeout_, gathering_.operation));
    }
  }

  /// Records that a rank is lost.
  void declare_lost(int rank, const std::string& how) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.state = Peer::State::disconnected;
    peer.stream = {};
    report_fault(message("rank ", rank, " ", how, "; its last operation was ", peer.operation));
  }

  /// Reports the first fault to all ranks; later ones are its consequences.
  void report_fault(const std::string& fault) {
    if (!fault_.empty()) return;
    fault_ = fault;
    gathering_ = {};
    has_begun_ = true;
    broadcast(FrameKind::fault, fault);
  }

  void broadcast(FrameKind kind, const std::string& content) {
    for (Peer& peer : peers_) {
      if (peer.state == Peer::State::connected) peer.stream.put(kind, content);
    }
  }

  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (peers_[rank].state == Peer::State::empty) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  [[nodiscard]] bool all_disconnected() const {
    return std::none_of(peers_.begin(), peers_.end(),
                        [](const Peer& peer) { return peer.state == Peer::State::connected; });
  }

  static constexpr std::size_t max_pending = 256;
  static constexpr const char* silent_as = ", like a stopped process";

  Descriptor listener_;
  int port_;
  std::string secret_;
  std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  std::vector<PendingConnection> pending_;
  Gathering gathering_;
  std::string fault_;
  bool has_begun_ = false;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;  // declared last: it uses all other members
};

}  // namespace octavo OCTAVO_ABI::detail
