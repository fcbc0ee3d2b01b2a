/// @file
/// Ranks meet at rank 0, and learn when another one fails.
#pragma once

#include <octavo/comm/launch.hpp>
#include <octavo/comm/no_answer.hpp>
#include <octavo/comm/rendezvous_server.hpp>
#include <octavo/comm/socket.hpp>
#include <octavo/comm/wait_note.hpp>
#include <octavo/core/error.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// Connects each rank with rank 0, for small exchanges and to detect lost ranks. Rank 0 listens at
/// `Launch::port`. A separate thread of each rank sends heartbeats with the rank's last operation,
/// ten times per time-out, or once per second if that is more often. A rank is lost if its
/// connection closes or if it is silent for a time-out, like a stopped process. All others are
/// notified, and all their later calls throw.
///
/// A rank sends the run's secret (`Launch::secret`) to rank 0, which rejects it otherwise. The
/// secret is sent unencrypted: it keeps out processes that can reach the port, but not those that
/// can read the network traffic. Without a secret, any process that can reach the port can take a
/// rank's place.
class Rendezvous {
 public:
  /// Waits until all ranks are connected.
  /// @param timeout  for connecting, for each operation, and for the silence of a rank
  /// @throws ConfigError  if the launch does not name the host of rank 0
  /// @throws CommError    naming the missing ranks; also if rank 0 does not respond, or another
  ///                      process has this rank
  Rendezvous(const Launch& launch, std::chrono::milliseconds timeout)
      : launch_(launch), timeout_(timeout) {
    require<ConfigError>(timeout.count() > 0,
                         "the time-out between ranks must be positive, but is ", timeout.count(),
                         " ms");
    require<ConfigError>(!launch.master_address.empty(), name_of(launch.launcher),
                         " does not set the host of rank 0; set MASTER_ADDR for all ranks, for "
                         "example with mpirun -x MASTER_ADDR=HOST");
    if (launch.rank == 0) server_.emplace(launch, timeout);
    connect();
    thread_ = detail::start_thread_without_signals([this] { watch(); });
    try {
      const std::unique_lock<std::mutex> lock =
          wait_until([this] { return is_connected_; }, "start");
    } catch (...) {
      leave("it could not start");
      throw;
    }
  }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  /// Notifies the others that this rank ends or, during an exception, that it gives up. Rank 0
  /// waits until all others end, at most a time-out. If a `User` still exists, it would wait for
  /// ranks that can no longer be monitored, so the process aborts with a message.
  ~Rendezvous() {
    if (users_ != 0) leave("its rendezvous ended before a communicator that uses it");
    leave(std::uncaught_exceptions() == 0 ? "" : "an exception ends the program");
    WaitNote::clear();
    if (users_ == 0) return;
    std::cerr << "octavo: a Rendezvous ended before a communicator that uses it, such as that of a "
                 "session; declare it before them\n"
              << std::flush;
    std::abort();
  }

  /// A member of objects that need a rendezvous during their lifetime, such as communicators.
  class User {
   public:
    explicit User(Rendezvous& rendezvous) : rendezvous_(rendezvous) { ++rendezvous_.users_; }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    ~User() { --rendezvous_.users_; }

   private:
    Rendezvous& rendezvous_;
  };

  [[nodiscard]] int rank() const { return launch_.rank; }
  [[nodiscard]] int size() const { return launch_.size; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  /// Sets the operation that the other ranks see if this one is lost.
  /// @param kind  such as "all-gather"
  /// @param what  such as "weights of blocks.3"
  void set_operation(const char* kind, const char* what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    operation_ = detail::operation_text(kind, what);
  }

  /// Asks rank 0 which ranks are silent or not in this rank's operation, according to their
  /// heartbeats: such as "rank 2 has not reached it, and was last in the all-gather 'weights'".
  /// Useful after waiting for longer than a heartbeat. If there are none, asks again for the
  /// duration of three heartbeats, after which a rank that was stopped before the call counts as
  /// silent. A `fault` ends the call.
  /// @return  the last answer; empty if all ranks are in the operation and not silent; none if rank
  ///          0 does not respond
  [[nodiscard]] std::optional<std::string> absent_sync() {
    const Clock::duration interval = detail::heartbeat_interval(timeout_);
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_over = [this] { return !absent_.value_or("").empty() || !fault_.empty(); };
    absent_.reset();
    for (int asked = 0; asked == 0 || (asked < 3 && !is_over()); ++asked) {
      stream_.put(detail::FrameKind::question, operation_);
      wake();
      changed_.wait_for(lock, interval, is_over);
    }
    return absent_;
  }

  /// Gathers the parts of all ranks, in rank order. Parts should be small, because they go through
  /// rank 0. Waits for the other ranks.
  /// @throws ShapeError  if `whole` is not size() times as long as `part`, or one is too long
  /// @throws CommError   naming ranks and operation
  void all_gather_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                       const char* what) {
    require<ShapeError>(whole.size() == part.size() * static_cast<std::size_t>(size()),
                        "all-gather '", what, "': ", size(), " parts of ", part.size(),
                        " bytes do not add up to ", whole.size());
    constexpr std::size_t max_part = detail::max_part_bytes / 2;  // the operation comes with it
    require<ShapeError>(part.size() <= max_part && whole.size() <= detail::max_whole_bytes,
                        "all-gather '", what, "': ", size(), " parts of ", part.size(),
                        " bytes, but a part must have at most ", max_part, ", and all parts ",
                        detail::max_whole_bytes, "; use a communicator");
    require_all();
    set_operation("all-gather", what);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::string content;
      detail::append_text(content, operation_);
      content.append(reinterpret_cast<const char*>(part.data()), part.size());
      stream_.put(detail::FrameKind::gather, content);
      gathered_.reset();
    }
    wake();
    const std::unique_lock<std::mutex> lock =
        wait_until([this] { return gathered_.has_value(); }, what);
    require<CommError>(gathered_->size() == whole.size(), "rank 0 sent ", gathered_->size(),
                       " bytes in ", operation_, ", not ", whole.size());
    if (!whole.empty()) std::memcpy(whole.data(), gathered_->data(), whole.size());
  }

  /// Returns why the run cannot continue, such as "rank 2 has been silent for 30 s, …"; empty if it
  /// can.
  [[nodiscard]] std::string fault() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return fault_;
  }

  /// @throws CommError  if a rank is lost, naming it and its last operation
  void require_all() const {
    const std::string fault_found = fault();
    require<CommError>(fault_found.empty(), fault_found);
  }

  /// Notifies the others that this rank gives up, with the reason. Their calls, and later ones of
  /// this rank, throw with that reason.
  void give_up(std::string_view reason) noexcept { leave(reason.empty() ? "no reason" : reason); }

 private:
  using Clock = detail::RankClock;

  void connect() {
    const Clock::time_point deadline = Clock::now() + timeout_;
    const detail::Addresses addresses = detail::addresses_of(launch_.master_address, launch_.port);
    for (;;) {
      detail::Descriptor socket = detail::connect_to(addresses.get());
      if (socket.get() >= 0) {
        stream_ = detail::FrameStream(std::move(socket));
        break;
      }
      require<CommError>(Clock::now() < deadline, "rank 0 does not respond at ",
                         launch_.master_address, ":", launch_.port, " for ",
                         detail::seconds_text(timeout_), " (", std::strerror(errno),
                         "); check that it was started, and MASTER_ADDR");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const detail::Hello hello{launch_.rank, launch_.size};
    std::string content(reinterpret_cast<const char*>(&hello), sizeof hello);
    stream_.put(detail::FrameKind::hello, content.append(launch_.secret));
    last_received_ = Clock::now();
  }

  /// The thread: sends and receives until this rank leaves.
  void watch() {
    Clock::time_point next_heartbeat = Clock::now();
    short events = POLLIN;
    for (bool is_open = true;;) {
      std::array<pollfd, 2> watched{{{wake_.get(), POLLIN, 0}, {stream_.descriptor(), events, 0}}};
      ::poll(watched.data(), is_open ? 2 : 1, 10);
      const std::lock_guard<std::mutex> lock(mutex_);
      std::uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t count = ::read(wake_.get(), &wakes, sizeof wakes);
      const Clock::time_point now = Clock::now();
      if (now >= next_heartbeat) {
        stream_.put(detail::FrameKind::heartbeat, operation_);
        next_heartbeat = now + detail::heartbeat_interval(timeout_);
      }
      if (is_open && !exchange(now)) is_open = false;
      events = stream_.has_output() ? POLLIN | POLLOUT : POLLIN;
      changed_.notify_all();
      if (has_left_ && (!is_open || !stream_.has_output() || now > leave_time_ + timeout_)) return;
    }
  }

  /// @return whether the connection is open
  bool exchange(Clock::time_point now) {
    try {
      const bool can_send = stream_.flush();
      constexpr std::size_t most = detail::max_whole_bytes;
      const bool can_receive = stream_.fill(most);
      while (const std::optional<detail::Frame> frame = stream_.take(most)) handle_frame(*frame);
      if (!can_send || !can_receive)
        fail("rank 0 has closed its connection; its process has probably ended");
      if (now - last_received_ > timeout_)
        fail(message("rank 0 has been silent for ", detail::seconds_text(timeout_),
                     ", like a stopped process"));
      return can_send && can_receive;
    } catch (const CommError&) {
      fail(message("the process at ", launch_.master_address, ":", launch_.port,
                   " is not rank 0; set another MASTER_PORT for all ranks"));
      return false;
    }
  }

  void handle_frame(const detail::Frame& frame) {
    last_received_ = Clock::now();
    switch (frame.kind) {
      case detail::FrameKind::welcome:
        is_connected_ = true;
        break;
      case detail::FrameKind::gather:
        gathered_ = frame.content;
        break;
      case detail::FrameKind::question:
        absent_ = frame.content;
        break;
      case detail::FrameKind::refusal:
      case detail::FrameKind::fault:
        fail(frame.content);
        break;
      default:
        break;
    }
  }

  /// Keeps the first reason; later ones are its consequences.
  void fail(const std::string& reason) {
    if (fault_.empty()) fault_ = reason;
  }

  /// Waits until the thread fulfils a condition. After a time-out rank 0 reports which rank is
  /// late.
  /// @return the lock under which the condition holds
  template <class Condition>
  std::unique_lock<std::mutex> wait_until(const Condition& condition, const char* what) {
    const Clock::time_point deadline = Clock::now() + timeout_ + timeout_ / 2;
    std::unique_lock<std::mutex> lock(mutex_);
    WaitNote::set(message("rank ", rank(), " waits for all ranks in '", what, "'"));
    while (!condition() && fault_.empty()) {
      require<CommError>(changed_.wait_until(lock, deadline) == std::cv_status::no_timeout,
                         "rank 0 has not answered for ", detail::seconds_text(timeout_), " in '",
                         what, "'");
    }
    if (!condition())
      throw CommError(message(fault_, "; rank ", rank(), " waited in '", what, "'"));
    WaitNote::set(message("rank ", rank(), " is past '", what, "'"));
    return lock;
  }

  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t count = ::write(wake_.get(), &one, sizeof one);
  }

  void leave(std::string_view reason) noexcept {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (has_left_) return;
      has_left_ = true;
      leave_time_ = Clock::now();
      stream_.put(detail::FrameKind::farewell, reason);
      if (!reason.empty()) fail(message("rank ", rank(), " gave up: ", reason));
    }
    wake();
    thread_.join();
    stream_ = {};
    server_.reset();
  }

  Launch launch_;
  std::chrono::milliseconds timeout_;
  std::atomic<int> users_ = 0;
  std::optional<detail::RendezvousServer> server_;
  detail::Descriptor wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  mutable std::mutex mutex_;  // guards all members that follow, except the thread
  std::condition_variable changed_;
  detail::FrameStream stream_;
  std::string operation_{"nothing yet"};
  std::string fault_;
  std::optional<std::string> gathered_;
  std::optional<std::string> absent_;  ///< rank 0's answer
  bool is_connected_ = false;
  bool has_left_ = false;
  Clock::time_point leave_time_;
  Clock::time_point last_received_;
  std::thread thread_;
};

}  // namespace octavo
