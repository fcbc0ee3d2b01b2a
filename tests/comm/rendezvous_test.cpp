// Ranks that meet through rank 0: what they give each other, and what they hear of each other's
// ends. Each is a process.
#include "../support/rank_processes.hpp"

#include <octavo/comm/rendezvous.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rendezvous_test {

/// What the system's next call of `listen` fails with; 0: it does not.
int listen_error = 0;

}  // namespace rendezvous_test

// Calls of this program go here, in place of the C library's: the name is the linker's.
extern "C" {
int faulty_listen(int socket, int waiting) __asm__("listen");
int faulty_listen(int socket, int waiting) {
  if (rendezvous_test::listen_error == 0) {
    return static_cast<int>(::syscall(SYS_listen, socket, waiting));
  }
  errno = std::exchange(rendezvous_test::listen_error, 0);
  return -1;
}
}

namespace rendezvous_test {

using octavo::message;
using octavo::Rendezvous;
using std::chrono::milliseconds;

constexpr int ranks = 3;
/// Processes may have to wait long for a processor.
constexpr milliseconds timeout(2000);
constexpr int limit = 60;
constexpr milliseconds never(50'000);

/// Gathers and compares, in parts of this many bytes.
void gather(Rendezvous& rendezvous, std::size_t bytes, int number, const char* what) {
  const auto size = static_cast<std::size_t>(rendezvous.size());
  const auto value = [&](std::size_t rank, std::size_t i) {
    return static_cast<std::byte>(rank * 131 + i * 7 + static_cast<std::size_t>(number) * 13);
  };
  std::vector<std::byte> part(bytes);
  std::vector<std::byte> whole(bytes * size);
  for (std::size_t i = 0; i < bytes; ++i) {
    part[i] = value(static_cast<std::size_t>(rendezvous.rank()), i);
  }
  rendezvous.all_gather_sync(part, whole, what);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] != value(i / bytes, i % bytes))
      throw std::runtime_error(message(what, " ", number, ": byte ", i, " of ", whole.size()));
  }
}

void gather_on(Rendezvous& rendezvous) {
  for (int i = 0;; ++i) gather(rendezvous, 16, i, "targets of a step");
}

void expect_said(const RankResult& end, const std::string& text) {
  EXPECT_EQ(end.exit_code, 3) << end.error_output;
  EXPECT_NE(end.error_output.find(text), std::string::npos)
      << "'" << end.error_output << "' lacks '" << text << "'";
}

/// The address at which a socket listens.
sockaddr_storage address_of(const octavo::detail::Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return address;
}

TEST(Rendezvous, ListensOnLoopbackForLoopbackAddress) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "127.1", "localhost"}) {
    const sockaddr_storage at = address_of(octavo::detail::listen_at(host, free_port()));
    ASSERT_EQ(at.ss_family, AF_INET) << host;
    const auto& four = reinterpret_cast<const sockaddr_in&>(at);
    EXPECT_EQ(ntohl(four.sin_addr.s_addr) >> 24, 127u) << host;
  }
  try {
    const sockaddr_storage at = address_of(octavo::detail::listen_at("::1", free_port()));
    ASSERT_EQ(at.ss_family, AF_INET6);
    EXPECT_TRUE(IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(at).sin6_addr));
  } catch (const octavo::CommError& error) {  // a kernel without IPv6
    EXPECT_NE(std::string(error.what()).find("ddress"), std::string::npos) << error.what();
  }
}

// Debian gives a host's own name the address 127.0.1.1, at which other hosts do not reach it.
TEST(Rendezvous, ResolvesOwnHostNameToLoopbackIfAllRanksAreLocal) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(0x7f000101);
  addrinfo address{};
  address.ai_family = AF_INET;
  address.ai_addr = reinterpret_cast<sockaddr*>(&four);
  address.ai_addrlen = sizeof four;
  using octavo::detail::loopback_of;
  EXPECT_EQ(loopback_of("gpu07", &address, true), &address);
  EXPECT_EQ(loopback_of("gpu07", &address, false), nullptr);
  EXPECT_EQ(loopback_of("127.0.1.1", &address, false), &address);
  four.sin_addr.s_addr = htonl(0x0a000001);
  EXPECT_EQ(loopback_of("gpu07", &address, true), nullptr);
}

// Whatever a stranger sends, no more than a frame is stored.
TEST(FrameStream, StoresNoMoreThanAFrame) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  const int size = 1 << 20;
  ::setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  octavo::detail::FrameStream stream{octavo::detail::Descriptor(sockets[1])};
  const std::string flood(300'000, 'x');
  const ssize_t sent = ::send(sockets[0], flood.data(), flood.size(), MSG_DONTWAIT);
  ASSERT_GT(sent, 100'000);
  EXPECT_TRUE(stream.fill(100));
  int waiting = 0;
  ASSERT_EQ(::ioctl(sockets[1], FIONREAD, &waiting), 0);
  EXPECT_EQ(sent - waiting, 116) << "a header of 16 bytes and a content of 100";
  EXPECT_THROW((void)stream.take(100), octavo::CommError);
  ::close(sockets[0]);
}

TEST(Rendezvous, ReportsListenError) {
  listen_error = EACCES;
  try {
    (void)octavo::detail::listen_at("localhost", free_port());
    FAIL() << "it listens";
  } catch (const octavo::CommError& error) {
    EXPECT_NE(std::string(error.what()).find(": Permission denied; "), std::string::npos)
        << error.what();
  }
}

TEST(Rendezvous, GathersPartsInRankOrder) {
  for (const int size : {1, 2, 4}) {
    const int port = free_port();
    RankProcesses processes;
    for (int rank = 0; rank < size; ++rank) {
      processes.start([=] {
        Rendezvous rendezvous(launch_of(rank, size, port), never);
        for (const std::size_t bytes :
             std::initializer_list<std::size_t>{0, 1, 3, 128, 65'536, 3'000'001}) {
          gather(rendezvous, bytes, 0, "parts");
        }
        for (int i = 0; i < 1000; ++i)
          gather(rendezvous, static_cast<std::size_t>(i % 4), i, "many");
      });
    }
    for (const RankResult& end : processes.wait(limit))
      EXPECT_EQ(end.exit_code, 0) << end.error_output;
  }
}

/// Runs all ranks; rank 1 does what is given in place of gathering for ever.
std::vector<RankResult> with_rank_1(const std::function<void(Rendezvous&)>& body,
                                    milliseconds patience = timeout, int faulty = 1) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.start([&, rank] {
      Rendezvous rendezvous(launch_of(rank, ranks, port), patience);
      gather(rendezvous, 16, 0, "first");
      if (rank == faulty) {
        body(rendezvous);
      } else {
        gather_on(rendezvous);
      }
    });
  }
  const auto faulty_rank = static_cast<std::size_t>(faulty);
  std::vector<RankResult> ends = processes.wait(limit, faulty);
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (rank == faulty_rank) continue;
    EXPECT_LT(ends[rank].seconds, limit) << "rank " << rank;
  }
  return ends;
}

TEST(Rendezvous, ReportsKilledRankAtOnce) {
  for (const int faulty : {0, 1, 2}) {
    const std::vector<RankResult> ends = with_rank_1(
        [](Rendezvous& rendezvous) {
          rendezvous.set_operation("all-to-all", "gradients of run 4");
          std::this_thread::sleep_for(milliseconds(3000));  // a heartbeat has told it
          ::raise(SIGKILL);
        },
        never, faulty);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == faulty) continue;
      const RankResult& end = ends[static_cast<std::size_t>(rank)];
      expect_said(end, message("rank ", faulty, " has closed its connection"));
      expect_said(end, "waited in 'targets of a step'");
      if (faulty != 0) expect_said(end, "last operation was the all-to-all 'gradients of run 4'");
      EXPECT_LT(end.seconds, 40);
    }
  }
}

TEST(Rendezvous, ReportsStoppedRankAfterTimeout) {
  for (const int faulty : {0, 1}) {
    const std::vector<RankResult> ends = with_rank_1(
        [](Rendezvous& rendezvous) {
          gather(rendezvous, 16, 0, "targets of a step");
          ::raise(SIGSTOP);
        },
        timeout, faulty);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == faulty) continue;
      const RankResult& end = ends[static_cast<std::size_t>(rank)];
      // Silence and a part that does not come are noticed at nearly the same time.
      const bool is_silence = end.error_output.find("has been silent") != std::string::npos;
      expect_said(end,
                  message("rank ", faulty,
                          is_silence ? " has been silent for 2 s" : " has not answered for 2 s"));
      expect_said(end, "'targets of a step'");
    }
  }
}

// Ranks that gather nothing, because they wait for their GPUs, only look whether all are there.
TEST(Rendezvous, RequireAllDetectsSilentRankZero) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.start([=] {
      Rendezvous rendezvous(launch_of(rank, ranks, port), timeout);
      gather(rendezvous, 16, 0, "first");
      if (rank == 0) ::raise(SIGSTOP);
      for (;;) {
        rendezvous.require_all();
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
  }
  const std::vector<RankResult> ends = processes.wait(15, 0);
  for (const std::size_t rank : std::initializer_list<std::size_t>{1, 2}) {
    expect_said(ends[rank], "rank 0 has been silent for 2 s, like a stopped process");
  }
}

TEST(Rendezvous, ReportsLiveRankThatDoesNotParticipate) {
  const std::vector<RankResult> ends =
      with_rank_1([](Rendezvous&) { std::this_thread::sleep_for(std::chrono::hours(1)); });
  for (const std::size_t rank : std::initializer_list<std::size_t>{0, 2}) {
    expect_said(ends[rank],
                "rank 1 has not answered for 2 s in the all-gather 'targets of a step'");
  }
}

TEST(Rendezvous, ReportsRankThatThrowsOrGivesUpAtOnce) {
  const std::vector<RankResult> thrown =
      with_rank_1([](Rendezvous&) { throw std::runtime_error("the data ended"); }, never);
  const std::vector<RankResult> given_up = with_rank_1(
      [](Rendezvous& rendezvous) {
        rendezvous.give_up("the data ended");
        gather_on(rendezvous);
      },
      never);
  for (const std::size_t rank : std::initializer_list<std::size_t>{0, 2}) {
    expect_said(thrown[rank], "rank 1 gave up: an exception ends the program");
    expect_said(given_up[rank],
                "rank 1 gave up: the data ended; its last operation was the "
                "all-gather 'first'");
  }
  expect_said(thrown[1], "the data ended");
  expect_said(given_up[1], "rank 1 gave up: the data ended");
}

TEST(Rendezvous, ReportsRankThatEndsEarlyAtOnce) {
  const std::vector<RankResult> ends = with_rank_1([](Rendezvous&) {}, never);
  for (const std::size_t rank : std::initializer_list<std::size_t>{0, 2}) {
    expect_said(ends[rank],
                "rank 1 has ended while others are in the all-gather 'targets of a step'");
  }
}

TEST(Rendezvous, ReportsRanksInDifferentOperations) {
  const std::vector<RankResult> ends = with_rank_1(
      [](Rendezvous& rendezvous) { gather(rendezvous, 16, 0, "something else"); }, never);
  for (const RankResult& end : ends) {
    EXPECT_EQ(end.exit_code, 3);
    EXPECT_NE(end.error_output.find("while others are in the all-gather"), std::string::npos)
        << end.error_output;
  }
  const std::vector<RankResult> sizes = with_rank_1(
      [](Rendezvous& rendezvous) { gather(rendezvous, 17, 0, "targets of a step"); }, never);
  for (const RankResult& end : sizes) {
    EXPECT_NE(end.error_output.find("all must pass the same number"), std::string::npos)
        << end.error_output;
  }
}

// One that waits on its GPU for ranks that live asks who they are.
TEST(Rendezvous, AbsentNamesRanksInAnotherOperation) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.start([=] {
      Rendezvous rendezvous(launch_of(rank, ranks, port), timeout);
      if (rank != 0) {
        rendezvous.set_operation("wait for", rank == 1 ? "step 6" : "step 7");
        std::this_thread::sleep_for(2 * timeout);  // heartbeats tell of it
        return;
      }
      for (const int other : {1, 2}) {
        rendezvous.set_operation("wait for", other == 1 ? "step 7" : "step 6");
        const std::string expected =
            message("rank ", other, " has not reached it, and was last in the wait for '",
                    other == 1 ? "step 6'" : "step 7'");
        std::string told;
        for (int i = 0; told != expected && i < 20; ++i) {
          std::this_thread::sleep_for(milliseconds(50));
          told = rendezvous.absent_sync().value_or("no answer");
        }
        octavo::require<octavo::CommError>(told == expected, "told: '", told, "'");
      }
    });
  }
  for (const RankResult& end : processes.wait(limit))
    EXPECT_EQ(end.exit_code, 0) << end.error_output;
}

TEST(Rendezvous, AbsentReportsFullParticipationOrEndedRank) {
  for (const bool one_ends : {false, true}) {
    const int port = free_port();
    RankProcesses processes;
    for (int rank = 0; rank < ranks; ++rank) {
      processes.start([=] {
        Rendezvous rendezvous(launch_of(rank, ranks, port), timeout);
        rendezvous.set_operation("wait for", "step 7");
        if (rank != 0) {
          if (rank != 1 || !one_ends) std::this_thread::sleep_for(2 * timeout);
          return;
        }
        std::string told = "nothing";
        const std::string expected = one_ends ? "rank 1 has ended, and was last in " : "";
        const auto is_told = [&] { return one_ends ? told.starts_with(expected) : told.empty(); };
        for (int i = 0; !is_told() && i < 20; ++i) {
          std::this_thread::sleep_for(milliseconds(50));  // heartbeats tell of the operation
          told = rendezvous.absent_sync().value_or("no answer");
        }
        octavo::require<octavo::CommError>(is_told(), "told: '", told, "'");
      });
    }
    for (const RankResult& end : processes.wait(limit))
      EXPECT_EQ(end.exit_code, 0) << end.error_output;
  }
}

/// All ranks wait for their GPUs, and one is stopped: what the others are told that ask so much
/// later, and long before its silence becomes a fault.
void start_to_ask(RankProcesses& processes, int stopped, milliseconds later) {
  const int port = free_port();
  for (int rank = 0; rank < ranks; ++rank) {
    processes.start([=] {
      Rendezvous rendezvous(launch_of(rank, ranks, port), milliseconds(4000));
      gather(rendezvous, 16, 0, "first");
      rendezvous.set_operation("wait for", "step 7");
      std::this_thread::sleep_for(milliseconds(1000));  // two heartbeats tell of it
      if (rank == stopped) ::raise(SIGSTOP);
      std::this_thread::sleep_for(later);
      const std::string told = octavo::detail::absent_text(rendezvous.absent_sync());
      // Who ends sooner is a fault to the others.
      while (rendezvous.fault().empty()) std::this_thread::sleep_for(milliseconds(5));
      throw octavo::CommError(told);
    });
  }
}

// A stopped rank may have told before that it is in the operation.
TEST(Rendezvous, AbsentNamesRankStoppedInOperation) {
  struct Case {
    int stopped;
    milliseconds later;  ///< 100: the last heartbeat has just come
    RankProcesses processes{};
  };
  std::array<Case, 4> cases{{{0, milliseconds(100)},
                             {0, milliseconds(1600)},
                             {1, milliseconds(100)},
                             {1, milliseconds(1600)}}};
  for (Case& each : cases) start_to_ask(each.processes, each.stopped, each.later);
  for (Case& each : cases) {
    const std::vector<RankResult> ends = each.processes.wait(limit, each.stopped);
    for (int rank = 0; rank < ranks; ++rank) {
      const RankResult& end = ends[static_cast<std::size_t>(rank)];
      if (rank == each.stopped) continue;
      if (each.stopped == 0) {
        expect_said(end, "rank 0, which monitors all ranks, does not respond");
      } else {
        EXPECT_TRUE(end.error_output.starts_with("rank 1 has been silent for "))
            << end.error_output;
        expect_said(end, " s, like a stopped process, and was last in the wait for 'step 7'");
      }
    }
  }
}

// Whose next answer is later than a heartbeat.
TEST(Rendezvous, AbsentDoesNotReportRankZeroBetweenHeartbeats) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {0, 1}) {
    processes.start([=] {
      Rendezvous rendezvous(launch_of(rank, 2, port), milliseconds(6000));
      gather(rendezvous, 16, 0, "targets of a step");
      if (rank == 0) {
        std::this_thread::sleep_for(milliseconds(300));  // of a heartbeat of 600
        ::raise(SIGSTOP);
      }
      throw octavo::CommError(octavo::detail::absent_text(rendezvous.absent_sync()));
    });
  }
  EXPECT_EQ(processes.wait(limit, 0)[1].error_output, octavo::detail::absent_text(""));
}

TEST(Rendezvous, ReportsRanksThatNeverConnect) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {0, 2}) {
    processes.start([=] { Rendezvous rendezvous(launch_of(rank, 4, port), timeout); });
  }
  for (const RankResult& end : processes.wait(limit)) {
    expect_said(end, message("ranks 1 and 3 have not connected to port ", port,
                             " of rank 0's host within 2 s"));
  }
}

TEST(Rendezvous, ReportsUnreachableRankZero) {
  const int port = free_port();
  RankProcesses processes;
  processes.start([=] { Rendezvous rendezvous(launch_of(1, 2, port), timeout); });
  expect_said(processes.wait(limit)[0],
              message("rank 0 does not respond at 127.0.0.1:", port, " for 2 s"));
}

TEST(Rendezvous, WaitsForLateRank) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {2, 0, 1}) {
    processes.start([=] {
      std::this_thread::sleep_for(milliseconds(700 * rank));
      Rendezvous rendezvous(launch_of(rank, ranks, port), never);
      gather(rendezvous, 4, 0, "parts");
    });
  }
  for (const RankResult& end : processes.wait(limit))
    EXPECT_EQ(end.exit_code, 0) << end.error_output;
}

TEST(Rendezvous, RejectsDuplicateRankWithoutHarm) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {0, 1, 1}) {
    processes.start([=] {
      Rendezvous rendezvous(launch_of(rank, 2, port), never);
      for (int i = 0; i < 100; ++i) gather(rendezvous, 4, i, "parts");
      std::this_thread::sleep_for(milliseconds(3000));  // while the other comes
    });
  }
  const std::vector<RankResult> ends = processes.wait(limit);
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].error_output;
  const bool is_the_second = ends[1].exit_code == 0;
  EXPECT_EQ(ends[is_the_second ? 1 : 2].exit_code, 0);
  expect_said(ends[is_the_second ? 2 : 1],
              message("another process is already rank 1 of 2 at port ", port));
}

TEST(Rendezvous, RejectsRankOfAnotherRun) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {0, 1}) {
    processes.start([=] {
      std::this_thread::sleep_for(milliseconds(rank * 1500));
      Rendezvous rendezvous(launch_of(rank, 2, port), never);
      gather(rendezvous, 4, 0, "parts");
    });
  }
  processes.start([=] { Rendezvous rendezvous(launch_of(1, 4, port), never); });
  const std::vector<RankResult> ends = processes.wait(limit);
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].error_output;
  EXPECT_EQ(ends[1].exit_code, 0) << ends[1].error_output;
  expect_said(ends[2], message("rank 1 of 4 connects to port ", port, " of a run of 2 ranks"));
}

octavo::Launch with_secret(octavo::Launch launch, const std::string& secret) {
  launch.secret = secret;
  return launch;
}

// A stranger that takes the place of a rank before it comes.
TEST(Rendezvous, RejectsWrongSecret) {
  for (const std::string own : {"", "secret"}) {
    const int port = free_port();
    RankProcesses processes;
    for (const int rank : {0, 1}) {
      processes.start([=] {
        std::this_thread::sleep_for(milliseconds(rank * 1500));
        Rendezvous rendezvous(with_secret(launch_of(rank, 2, port), own), never);
        gather(rendezvous, 4, 0, "parts");
      });
    }
    for (const std::string other : {"", "Secret", "secrets", "secre"}) {
      if (other == own) continue;
      processes.start(
          [=] { Rendezvous rendezvous(with_secret(launch_of(1, 2, port), other), never); });
    }
    const std::vector<RankResult> ends = processes.wait(limit);
    EXPECT_EQ(ends[0].exit_code, 0) << ends[0].error_output;
    EXPECT_EQ(ends[1].exit_code, 0) << ends[1].error_output;
    for (std::size_t i = 2; i < ends.size(); ++i) {
      expect_said(ends[i], message("rank 1 connects to port ", port,
                                   " with a secret that differs from rank 0's"));
      expect_said(ends[i], "set OCTAVO_RENDEZVOUS_SECRET to the same value for all ranks");
    }
  }
}

TEST(Rendezvous, ReportsTakenPort) {
  const int port = free_port();
  const octavo::detail::Descriptor taken = octavo::detail::listen_at("127.0.0.1", port);
  try {
    const Rendezvous rendezvous(launch_of(0, 2, port), timeout);
    FAIL() << "took the port of another";
  } catch (const octavo::CommError& error) {
    EXPECT_NE(std::string(error.what()).find(message("rank 0 cannot listen at port ", port)),
              std::string::npos)
        << error.what();
  }
}

/// Connects, sends, and leaves the connection open.
int visit(int port, const std::string& garbage) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 2000; ++i) {
    if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) break;
    std::this_thread::sleep_for(milliseconds(5));
  }
  (void)::send(socket, garbage.data(), garbage.size(), MSG_NOSIGNAL);
  return socket;
}

TEST(Rendezvous, IgnoresForeignConnections) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.start([=] {
      if (rank == 1) std::this_thread::sleep_for(milliseconds(1000));
      Rendezvous rendezvous(launch_of(rank, ranks, port), never);
      for (int i = 0; i < 200; ++i) gather(rendezvous, 16, i, "parts");
      std::this_thread::sleep_for(milliseconds(500));
      gather(rendezvous, 16, 0, "parts");
    });
  }
  std::vector<int> sockets;
  const auto frame = [](std::uint32_t kind, std::uint64_t length, const std::string& content) {
    const std::uint32_t magic = 0x3176634f;
    std::string text(reinterpret_cast<const char*>(&magic), sizeof magic);
    text.append(reinterpret_cast<const char*>(&kind), sizeof kind);
    return text.append(reinterpret_cast<const char*>(&length), sizeof length).append(content);
  };
  // As a hello, and not as a heartbeat, this would be rank 1.
  const std::string rank_1_of_3("\1\0\0\0\3\0\0\0", 8);
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(), std::string(1 << 20, 'x'),
        std::string("O"), frame(0, ~std::uint64_t{0}, "x"), frame(0, 8, std::string(8, '\xff')),
        frame(4, 8, std::string(8, '\0')), frame(3, 8, rank_1_of_3), frame(99, 0, ""),
        frame(0, 7, "1234567")}) {
    sockets.push_back(visit(port, garbage));
  }
  ::close(visit(port, "gone at once"));
  for (const RankResult& end : processes.wait(limit))
    EXPECT_EQ(end.exit_code, 0) << end.error_output;
  for (const int socket : sockets) ::close(socket);
}

// Two parts of rank 1 must not count as the parts of both ranks.
TEST(Rendezvous, ReportsRankThatPassesTwoParts) {
  using octavo::detail::FrameKind;
  const int port = free_port();
  RankProcesses processes;
  processes.start([=] {
    Rendezvous rendezvous(launch_of(0, 2, port), timeout);
    std::this_thread::sleep_for(milliseconds(500));
    gather(rendezvous, 1, 0, "parts");
  });
  octavo::detail::FrameStream stream{octavo::detail::Descriptor(visit(port, ""))};
  stream.put(FrameKind::hello, std::string("\1\0\0\0\2\0\0\0", 8) + launch_of(1, 2, port).secret);
  std::string part;
  octavo::detail::append_text(part, "the all-gather 'parts'");
  for (int i = 0; i < 2; ++i) stream.put(FrameKind::gather, part + 'x');
  while (stream.has_output()) (void)stream.flush();
  expect_said(processes.wait(limit)[0], "rank 1 passes two parts to the all-gather 'parts'");
}

/// Seconds of a processor that a process has used.
double processor_seconds(pid_t process) {
  clockid_t clock{};
  timespec time{};
  EXPECT_EQ(::clock_getcpuclockid(process, &clock), 0);
  EXPECT_EQ(::clock_gettime(clock, &time), 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// More connections than are kept, all of which say nothing.
TEST(Rendezvous, SilentConnectionsNeitherBurnCpuNorBlockRanks) {
  const int port = free_port();
  RankProcesses processes;
  for (const int rank : {0, 1}) {
    processes.start([=] {
      if (rank == 1) std::this_thread::sleep_for(milliseconds(3000));
      Rendezvous rendezvous(launch_of(rank, 2, port), never);
      gather(rendezvous, 16, 0, "parts");
    });
  }
  std::vector<int> sockets(400);
  for (int& socket : sockets) socket = visit(port, "");
  std::this_thread::sleep_for(milliseconds(300));
  const double before = processor_seconds(processes.pid(0));
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_LT(processor_seconds(processes.pid(0)) - before, 0.3);
  for (const RankResult& end : processes.wait(limit))
    EXPECT_EQ(end.exit_code, 0) << end.error_output;
  for (const int socket : sockets) ::close(socket);
}

TEST(Rendezvous, RejectsOversizedPart) {
  Rendezvous rendezvous(launch_of(0, 1, free_port()), timeout);
  std::vector<std::byte> part((std::size_t{1} << 23) + 1);
  std::vector<std::byte> whole(part.size());
  EXPECT_THROW(rendezvous.all_gather_sync(part, whole, "parts"), octavo::ShapeError);
}

TEST(Rendezvous, ReportsForeignProcessAtAddressOfRankZero) {
  const int port = free_port();
  const octavo::detail::Descriptor listener = octavo::detail::listen_at("127.0.0.1", port);
  RankProcesses processes;
  processes.start([=] { Rendezvous rendezvous(launch_of(1, 2, port), never); });
  int stranger = -1;
  while ((stranger = ::accept(listener.get(), nullptr, nullptr)) < 0) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  (void)::send(stranger, "SSH-2.0-OpenSSH\r\n", 17, MSG_NOSIGNAL);
  expect_said(processes.wait(limit)[0],
              message("the process at 127.0.0.1:", port, " is not rank 0"));
  ::close(stranger);
}

TEST(Rendezvous, RejectsLaunchWithoutAddress) {
  octavo::Launch launch = launch_of(1, 2, 30500);
  launch.master_address = "";
  EXPECT_THROW(Rendezvous(launch, timeout), octavo::ConfigError);
}

// Late ranks are not to take the end of rank 0 for that of the run.
TEST(Rendezvous, FinishedRankZeroWaitsForOthers) {
  const int port = free_port();
  RankProcesses processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.start([=] {
      Rendezvous rendezvous(launch_of(rank, ranks, port), never);
      gather(rendezvous, 16, 0, "last");
      for (int i = 0; i < 100 * rank; ++i) {
        rendezvous.require_all();
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
  }
  const std::vector<RankResult> ends = processes.wait(limit);
  for (const RankResult& end : ends) EXPECT_EQ(end.exit_code, 0) << end.error_output;
  EXPECT_GE(ends[0].seconds, 1) << "rank 2 is there for so long";
}

// Else it would wait, as for a session that is destroyed after its ranks, for what nobody brings.
TEST(Rendezvous, AbortsIfCommunicatorOutlivesIt) {
  EXPECT_EXIT(
      {
        std::optional<Rendezvous> rendezvous(std::in_place, launch_of(0, 1, free_port()), timeout);
        const Rendezvous::User user(*rendezvous);
        rendezvous.reset();
      },
      testing::KilledBySignal(SIGABRT), "ended before a communicator that uses it");
  Rendezvous rendezvous(launch_of(0, 1, free_port()), timeout);
  const Rendezvous::User user(rendezvous);
}

TEST(Rendezvous, ReportsRankWhoseCommunicatorOutlivesRendezvous) {
  const int port = free_port();
  RankProcesses processes;
  processes.start([=] {
    Rendezvous rendezvous(launch_of(0, 2, port), never);
    gather_on(rendezvous);
  });
  processes.start([=] {
    std::optional<Rendezvous> rendezvous(std::in_place, launch_of(1, 2, port), never);
    const Rendezvous::User user(*rendezvous);
    gather(*rendezvous, 16, 0, "targets of a step");
    rendezvous.reset();
  });
  const std::vector<RankResult> ends = processes.wait(limit);
  expect_said(ends[0], "rank 1 gave up: its rendezvous ended before a communicator that uses it");
  EXPECT_EQ(ends[1].exit_code, -SIGABRT);
}

}  // namespace rendezvous_test
