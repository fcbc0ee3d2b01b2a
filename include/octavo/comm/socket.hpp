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

/// A file descriptor that closes itself.
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

/// The addresses of a host. @throws CommError  if it has none
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

/// A frame goes out as soon as it can, and does not wait for others.
inline void set_prompt(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Connects to one of the host's addresses; errno says why none answers.
inline Descriptor connect_to(const addrinfo* addresses) {
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    Descriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) continue;
    const timeval patience{.tv_sec = 2, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0) continue;
    set_prompt(socket.get());
    ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
    return socket;
  }
  return {};
}

/// Listens at a port: of this host alone, where that is what others are told to connect to.
/// @throws CommError  if it cannot
inline Descriptor listen_at(const std::string& host, int port) {
  const bool is_local = host == "127.0.0.1" || host == "localhost";
  const int family = is_local ? AF_INET : AF_INET6;
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int on = 1;
  const int off = 0;
  Descriptor socket(::socket(family, type, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(is_local ? INADDR_LOOPBACK : INADDR_ANY);
  sockaddr_in6 every{};
  every.sin6_family = AF_INET6;
  every.sin6_port = address.sin_port;
  const bool has_six = family == AF_INET6 && socket.get() >= 0;
  if (has_six) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  } else if (family == AF_INET6) {  // the kernel knows version 4 alone
    socket = Descriptor(::socket(AF_INET, type, 0));
  }
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int bound =
      has_six ? ::bind(socket.get(), reinterpret_cast<sockaddr*>(&every), sizeof every)
              : ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  // Before the message: arguments of a call are evaluated in any order.
  const bool listens = bound == 0 && ::listen(socket.get(), SOMAXCONN) == 0;
  require<CommError>(listens,
                     "rank 0 cannot listen at "
                     "port ",
                     port, ": ", std::strerror(errno),
                     "; another run may be using it: "
                     "give all ranks another MASTER_PORT");
  return socket;
}

/// What a frame is.
enum class FrameKind : std::uint32_t {
  hello,      ///< a rank's first: Hello
  refusal,    ///< the answer where it cannot be one: a text
  welcome,    ///< the answer once all ranks are there
  heartbeat,  ///< of a rank: its operation
  question,   ///< of a rank: its operation; of rank 0: who is silent or in another, a text
  gather,     ///< of a rank: a part; of rank 0: the whole
  fault,      ///< a rank is lost: a text
  farewell,   ///< a rank has come to its end, or gives up: a text
};

struct Frame {
  FrameKind kind = FrameKind::heartbeat;
  std::string content;
};

/// Frames over a connection, neither side of which waits.
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

  /// Sends what the other side takes. @return whether the connection stands
  [[nodiscard]] bool flush() {
    std::size_t sent = 0;
    bool stands = true;
    while (sent < output_.size()) {
      const ssize_t count = ::send(socket_.get(), output_.data() + sent, output_.size() - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        stands = errno == EAGAIN || errno == EWOULDBLOCK;
        break;
      }
      sent += static_cast<std::size_t>(count);
    }
    output_.erase(0, sent);
    return stands;
  }

  /// Takes in what has arrived. @return whether the connection stands
  [[nodiscard]] bool fill() {
    std::array<char, 1 << 16> arrived;
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), arrived.data(), arrived.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (count == 0) return false;
      input_.append(arrived.data(), static_cast<std::size_t>(count));
      // A stranger's flood is looked at before more of it is taken.
      if (static_cast<std::size_t>(count) < arrived.size()) return true;
    }
  }

  /// The next frame that is whole.
  /// @param most  bytes that its content may have
  /// @throws CommError  if what arrived is none
  [[nodiscard]] std::optional<Frame> take(std::size_t most = std::size_t{1} << 32) {
    Header header{};
    if (!input_.empty()) {
      const std::size_t known = std::min(input_.size(), sizeof magic);
      require<CommError>(std::memcmp(input_.data(), &magic, known) == 0, "this is no rank's frame");
    }
    if (input_.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, input_.data(), sizeof header);
    require<CommError>(
        header.length <= most && header.kind <= static_cast<std::uint32_t>(FrameKind::farewell),
        "this is no rank's frame");
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
