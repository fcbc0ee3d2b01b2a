/// @file
/// TCP connections between ranks, and frames on them.
#pragma once

#include <octavo/core/error.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI::detail {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_ = -1;
};

/// Resolves a host. @throws CommError  if it has no address
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
inline Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  require<CommError>(error == 0, "the host of rank 0, '", host,
                     "', has no address: ", ::gai_strerror(error), "; see MASTER_ADDR");
  return {found, &::freeaddrinfo};
}

/// Disables Nagle's algorithm, so that frames are sent immediately.
inline void set_tcp_no_delay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Connects to one of the host's addresses. On failure, errno has the reason.
inline Descriptor connect_to(const addrinfo* addresses) {
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    Descriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) continue;
    const timeval send_timeout{.tv_sec = 2, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof send_timeout);
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0) continue;
    set_tcp_no_delay(socket.get());
    ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
    return socket;
  }
  return {};
}

/// Whether an address is a loopback address: 127.0.0.0/8, ::1, or the former mapped to IPv6.
inline bool is_loopback(const addrinfo& address) {
  constexpr std::uint32_t loopback_net = 127;
  if (address.ai_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address.ai_addr);
    return ntohl(four->sin_addr.s_addr) >> 24 == loopback_net;
  }
  if (address.ai_family != AF_INET6) return false;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) ||
         (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == loopback_net);
}

/// Returns the loopback address at which rank 0 listens, preferably an IPv4 one; null if it must
/// listen at all interfaces. A host may resolve its own name to 127.0.1.1 although other hosts
/// resolve it to another address: such a name counts as loopback only if all ranks are on this
/// host.
inline const addrinfo* loopback_of(const std::string& host, const addrinfo* addresses,
                                   bool all_ranks_are_here) {
  const addrinfo* found = nullptr;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    if (!is_loopback(*address)) return nullptr;
    const bool is_better =
        found == nullptr || (found->ai_family != AF_INET && address->ai_family == AF_INET);
    if (is_better) found = address;
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* number = nullptr;
  const bool is_number = ::getaddrinfo(host.c_str(), nullptr, &hints, &number) == 0;
  if (is_number) ::freeaddrinfo(number);
  return is_number || host == "localhost" || all_ranks_are_here ? found : nullptr;
}

/// Listens on a port: only on a loopback address if ranks connect to one, otherwise on all
/// interfaces.
/// @throws CommError  if it cannot, or the host has no address
inline Descriptor listen_at(const std::string& host, int port, bool all_ranks_are_here = false) {
  const Addresses addresses = addresses_of(host, port);
  const addrinfo* loopback = loopback_of(host, addresses.get(), all_ranks_are_here);
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int on = 1;
  const int off = 0;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(static_cast<std::uint16_t>(port));
  four.sin_addr.s_addr = htonl(INADDR_ANY);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = four.sin_port;
  Descriptor socket(::socket(loopback == nullptr ? AF_INET6 : loopback->ai_family, type, 0));
  const sockaddr* address = loopback == nullptr ? nullptr : loopback->ai_addr;
  socklen_t length = loopback == nullptr ? 0 : loopback->ai_addrlen;
  if (loopback == nullptr && socket.get() >= 0) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    address = reinterpret_cast<sockaddr*>(&six);
    length = sizeof six;
  } else if (loopback == nullptr) {  // the kernel has no IPv6
    socket = Descriptor(::socket(AF_INET, type, 0));
    address = reinterpret_cast<sockaddr*>(&four);
    length = sizeof four;
  }
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Called before the message is built, because the arguments of a call are evaluated in any order.
  const bool listens =
      ::bind(socket.get(), address, length) == 0 && ::listen(socket.get(), SOMAXCONN) == 0;
  require<CommError>(listens,
                     "rank 0 cannot listen at "
                     "port ",
                     port, ": ", std::strerror(errno),
                     "; another run may be using it: set another MASTER_PORT for all ranks");
  return socket;
}

/// Kinds of frames.
enum class FrameKind : std::uint32_t {
  hello,      ///< first frame of a rank: Hello and secret
  refusal,    ///< response if the rank is rejected: a text
  welcome,    ///< response once all ranks are connected
  heartbeat,  ///< of a rank: its operation
  question,   ///< from a rank: its operation; from rank 0: a text about the others
  gather,     ///< of a rank: a part; of rank 0: the whole
  fault,      ///< a rank is lost: a text
  farewell,   ///< a rank ends, or gives up: a text
};

/// Maximum content of a frame from a rank, and from rank 0, in bytes.
inline constexpr std::size_t max_part_bytes = std::size_t{1} << 24;
inline constexpr std::size_t max_whole_bytes = std::size_t{1} << 30;

struct Frame {
  FrameKind kind = FrameKind::heartbeat;
  std::string content;
};

/// Sends and receives frames over a connection, without blocking.
class FrameStream {
 public:
  FrameStream() = default;
  explicit FrameStream(Descriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] bool has_output() const { return !output_.empty(); }

  void put(FrameKind kind, std::string_view content) {
    const Header header{magic, static_cast<std::uint32_t>(kind), content.size()};
    output_.append(reinterpret_cast<const char*>(&header), sizeof header).append(content);
  }

  /// Sends as much as the connection accepts. @return whether the connection is open
  [[nodiscard]] bool flush() {
    std::size_t sent = 0;
    bool is_open = true;
    while (sent < output_.size()) {
      const ssize_t count = ::send(socket_.get(), output_.data() + sent, output_.size() - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        is_open = errno == EAGAIN || errno == EWOULDBLOCK;
        break;
      }
      sent += static_cast<std::size_t>(count);
    }
    output_.erase(0, sent);
    return is_open;
  }

  /// Receives the data that has arrived, and stores at most a frame of `most` bytes, even if an
  /// unknown process sends more. @return whether the connection is open
  [[nodiscard]] bool fill(std::size_t most) {
    std::array<char, 1 << 16> arrived;
    while (input_.size() < sizeof(Header) + most) {
      const std::size_t room = std::min(arrived.size(), sizeof(Header) + most - input_.size());
      const ssize_t count = ::recv(socket_.get(), arrived.data(), room, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (count == 0) return false;
      input_.append(arrived.data(), static_cast<std::size_t>(count));
      if (static_cast<std::size_t>(count) < room) return true;
    }
    return true;
  }

  /// Returns the next complete frame.
  /// @param most  maximum bytes of its content
  /// @throws CommError  if the received data is not a frame, or is longer
  [[nodiscard]] std::optional<Frame> take(std::size_t most) {
    Header header{};
    if (!input_.empty()) {
      const std::size_t known = std::min(input_.size(), sizeof magic);
      require<CommError>(std::memcmp(input_.data(), &magic, known) == 0,
                         "this is not a frame from a rank");
    }
    if (input_.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, input_.data(), sizeof header);
    require<CommError>(
        header.length <= most && header.kind <= static_cast<std::uint32_t>(FrameKind::farewell),
        "this is not a frame from a rank");
    if (input_.size() - sizeof header < header.length) return std::nullopt;
    Frame frame{static_cast<FrameKind>(header.kind), input_.substr(sizeof header, header.length)};
    input_.erase(0, sizeof header + header.length);
    return frame;
  }

 private:
  static constexpr std::uint32_t magic = 0x3176634f;  // "Ocv1"
  struct Header {
    std::uint32_t magic;
    std::uint32_t kind;
    std::uint64_t length;
  };

  Descriptor socket_;
  std::string input_;
  std::string output_;
};

}  // namespace octavo OCTAVO_ABI::detail
