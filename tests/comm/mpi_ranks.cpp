// A rank of mpi_comm_test: mpi_ranks TIME_OUT_MS MODE [NUMBER]. Ends with 0 if all is as it must
// be.
#include <octavo/comm/mpi_comm.hpp>
#include <octavo/run/interrupt.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace {

using octavo::Cpu;
using octavo::Index;
using octavo::message;
using octavo::Mpi;
using octavo::MpiComm;
using octavo::TensorView;

template <class... Parts>
void expect(bool holds, const Parts&... what) {
  if (!holds) throw std::runtime_error(message(what...));
}

/// The byte at `i` of what `from` sends to `to` in the operation of this number.
std::byte byte_of(int from, int to, std::size_t i, int number) {
  const std::size_t mix = i * 7 + (i >> 8) * 11 + static_cast<std::size_t>(from) * 131 +
                          static_cast<std::size_t>(to) * 37 + static_cast<std::size_t>(number) * 13;
  return static_cast<std::byte>(mix & 0xff);
}

/// The value at `i` of a rank; of all bits, and the largest is another rank's at each place.
std::uint32_t value_of(int rank, std::size_t i, int number) {
  if (i == 0) return rank == number % 2 ? std::numeric_limits<std::uint32_t>::max() : 0;
  return static_cast<std::uint32_t>((i + static_cast<std::size_t>(rank) * 977) * 2654435761u +
                                    static_cast<std::size_t>(number));
}

/// Bytes with some on either side that must stay.
class Guarded {
 public:
  explicit Guarded(std::size_t size) : bytes_(size + 2 * margin, std::byte{0xa5}) {}
  [[nodiscard]] std::byte* data() { return bytes_.data() + margin; }
  [[nodiscard]] std::size_t size() const { return bytes_.size() - 2 * margin; }
  [[nodiscard]] TensorView<std::byte, 1, Cpu> view() {
    return {data(), {static_cast<Index>(size())}};
  }
  [[nodiscard]] std::span<std::byte> span() { return {data(), size()}; }
  [[nodiscard]] bool is_whole() const {
    const auto is_guard = [](std::byte byte) { return byte == std::byte{0xa5}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + margin, is_guard) &&
           std::all_of(bytes_.end() - margin, bytes_.end(), is_guard);
  }

 private:
  static constexpr std::ptrdiff_t margin = 64;
  std::vector<std::byte> bytes_;
};

constexpr std::byte untouched{0x5a};

/// Every operation with parts of so many bytes, against the formulas.
class Operations {
 public:
  /// @param number  of the operation before the first: it changes what is sent
  Operations(octavo::Communicator<Cpu>& communicator, const octavo::Context<Cpu>& context,
             int number = 0)
      : communicator_(communicator), context_(context), number_(number) {}

  void check(std::size_t bytes) {
    gathers(bytes, false);
    gathers(bytes, true);
    gathers_on_host(bytes);
    all_to_all(bytes);
    maximum(bytes);
  }

 private:
  [[nodiscard]] std::size_t times_ranks(std::size_t bytes) const {
    return bytes * static_cast<std::size_t>(communicator_.size());
  }

  void fill(std::byte* data, std::size_t bytes, int from, int to) const {
    for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_of(from, to, i, number_);
  }

  /// @param own_stays  this rank's place was not to be written to
  void expect_parts(Guarded& whole, std::size_t bytes, const std::string& operation, int to,
                    bool own_stays = false) const {
    for (int from = 0; from < communicator_.size(); ++from) {
      const std::byte* part = whole.data() + static_cast<std::size_t>(from) * bytes;
      if (own_stays && from == communicator_.rank()) {
        expect(std::all_of(part, part + bytes, [](std::byte each) { return each == untouched; }),
               operation, " wrote over this rank's own part");
        continue;
      }
      for (std::size_t i = 0; i < bytes; ++i) {
        expect(part[i] == byte_of(from, to, i, number_), operation, " ", number_, ": byte ", i,
               " of ", bytes, " from rank ", from);
      }
    }
    expect(whole.is_whole(), operation, " wrote beside its memory");
  }

  void gathers(std::size_t bytes, bool is_in_place) {
    ++number_;
    const int rank = communicator_.rank();
    Guarded whole(times_ranks(bytes));
    Guarded elsewhere(bytes);
    std::byte* part =
        is_in_place ? whole.data() + static_cast<std::size_t>(rank) * bytes : elsewhere.data();
    fill(part, bytes, rank, 0);
    communicator_.all_gather(TensorView<std::byte, 1, Cpu>{part, {static_cast<Index>(bytes)}},
                             whole.view(), "parts", context_);
    expect_parts(whole, bytes, "all-gather", 0);
  }

  void gathers_on_host(std::size_t bytes) {
    ++number_;
    Guarded whole(times_ranks(bytes));
    Guarded part(bytes);
    fill(part.data(), bytes, communicator_.rank(), 0);
    communicator_.all_gather_host_sync(part.span(), whole.span(), "parts");
    expect_parts(whole, bytes, "all-gather of the host", 0);
  }

  void all_to_all(std::size_t bytes) {
    ++number_;
    Guarded parts(times_ranks(bytes));
    Guarded received(times_ranks(bytes));
    for (int to = 0; to < communicator_.size(); ++to) {
      fill(parts.data() + static_cast<std::size_t>(to) * bytes, bytes, communicator_.rank(), to);
    }
    std::fill_n(received.data(), times_ranks(bytes), untouched);
    communicator_.all_to_all(parts.view(), received.view(), "parts", context_);
    expect_parts(received, bytes, "all-to-all", communicator_.rank(), true);
  }

  void maximum(std::size_t count) {
    ++number_;
    std::vector<std::uint32_t> values(count + 1, 77);  // the last is no part of it
    for (std::size_t i = 0; i < count; ++i) values[i] = value_of(communicator_.rank(), i, number_);
    communicator_.all_reduce_max({values.data(), {static_cast<Index>(count)}}, "amaxes", context_);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t largest = 0;
      for (int rank = 0; rank < communicator_.size(); ++rank) {
        largest = std::max(largest, value_of(rank, i, number_));
      }
      expect(values[i] == largest, "maximum ", number_, " of ", count, " at ", i);
    }
    expect(values[count] == 77, "maximum wrote beside its memory");
  }

  octavo::Communicator<Cpu>& communicator_;
  const octavo::Context<Cpu>& context_;
  int number_;
};

/// Groups of neighbours, and of every second rank; each group sends something of its own.
void groups(MpiComm& communicator, const octavo::Context<Cpu>& context) {
  for (const bool are_neighbours : {true, false}) {
    const int rank = communicator.rank();
    const int size = communicator.size();
    const int number = are_neighbours ? rank / 2 : rank % 2;
    const auto group = communicator.split(number);
    expect(group->size() == (are_neighbours ? 2 : size / 2), "a group of ", group->size());
    expect(group->rank() == (are_neighbours ? rank % 2 : rank / 2), "rank ", group->rank());
    Operations each(*group, context, 1000 * number);
    for (int i = 0; i < 100; ++i) each.check(static_cast<std::size_t>(i % 7 * 300));
  }
}

void operations(Mpi& mpi, const octavo::Context<Cpu>& context, int repeats) {
  MpiComm whole_messages(mpi);
  MpiComm pieces(mpi, 1000);
  for (MpiComm* communicator : {&whole_messages, &pieces}) {
    Operations each(*communicator, context);
    for (const std::size_t bytes :
         std::initializer_list<std::size_t>{0, 1, 3, 999, 1000, 1001, 4096, 65537, 300001}) {
      each.check(bytes);
    }
  }
  Operations large(whole_messages, context);
  large.check(3'000'001);
  Operations repeated(whole_messages, context);
  for (int i = 0; i < repeats; ++i) repeated.check(static_cast<std::size_t>(i % 5));
  if (mpi.size() % 2 == 0) groups(whole_messages, context);
  // A mistake of the program is told on every rank, and harms nothing.
  std::vector<std::byte> bytes(7);
  const TensorView<std::byte, 1, Cpu> part{bytes.data(), {3}};
  const TensorView<std::byte, 1, Cpu> whole{bytes.data(), {7}};
  for (const bool is_gather : {true, false}) {
    try {
      if (is_gather) {
        whole_messages.all_gather(part, whole, "parts", context);
      } else {
        whole_messages.all_to_all(part, whole, "parts", context);
      }
      throw std::runtime_error("sizes that do not fit were taken");
    } catch (const octavo::ShapeError&) {
    }
  }
  repeated.check(5);
}

/// Parts that no int counts. Takes 9 GB and a minute, so it is run by hand:
/// mpirun -n 2 build/tests/bin/mpi_ranks 300000 huge
void huge(Mpi& mpi, const octavo::Context<Cpu>& context) {
  MpiComm communicator(mpi);
  const std::size_t bytes = (std::size_t{1} << 31) + 12345;
  std::vector<std::byte> whole(bytes * static_cast<std::size_t>(mpi.size()));
  const auto part_of = [&](int rank) {
    return whole.data() + static_cast<std::size_t>(rank) * bytes;
  };
  const auto value = [](int rank, std::size_t i) {
    return static_cast<std::byte>(i % 251 + static_cast<std::size_t>(rank));
  };
  for (std::size_t i = 0; i < bytes; ++i) part_of(mpi.rank())[i] = value(mpi.rank(), i);
  const TensorView<std::byte, 1, Cpu> part{part_of(mpi.rank()), {static_cast<Index>(bytes)}};
  communicator.all_gather(part, {whole.data(), {static_cast<Index>(whole.size())}}, "huge",
                          context);
  for (int rank = 0; rank < mpi.size(); ++rank) {
    for (std::size_t i = 0; i < bytes; ++i) {
      expect(part_of(rank)[i] == value(rank, i), "huge: rank ", rank, " at ", i);
    }
  }
}

/// Gathers without an end, large and small, until something happens.
void gather_on(MpiComm& communicator, const octavo::Context<Cpu>& context) {
  std::vector<std::byte> whole(300'000 * static_cast<std::size_t>(communicator.size()));
  std::vector<std::byte> part(300'000);
  for (int i = 0;; ++i) {
    const Index bytes = i % 2 == 0 ? 300'000 : 5;
    communicator.all_gather(TensorView<std::byte, 1, Cpu>{part.data(), {bytes}},
                            {whole.data(), {bytes * communicator.size()}}, "weights of run 3",
                            context);
  }
}

/// What happens to rank 1, of whom the others must not wait for ever.
void fault(Mpi& mpi, const octavo::Context<Cpu>& context, const std::string& mode) {
  const bool is_faulty = mpi.rank() == 1;
  std::optional<octavo::InterruptGuard> guard;
  if (mode == "killed-with-guard") guard.emplace();
  if (is_faulty && mode == "absent") std::this_thread::sleep_for(std::chrono::hours(1));
  MpiComm communicator(mpi);
  if (mode == "stopped-at-end") {
    if (is_faulty) ::raise(SIGSTOP);
    return;
  }
  if (is_faulty && mode == "exits") std::exit(0);
  if (is_faulty && mode == "throws") throw std::runtime_error("the data ended");
  if (is_faulty && mode == "calls-another") {
    octavo::Context<Cpu> own(1);
    std::vector<std::uint32_t> values(8);
    communicator.all_reduce_max({values.data(), {8}}, "amaxes", own);
  }
  if (is_faulty && mode == "sends-less") {
    std::vector<std::byte> bytes(100'000 * static_cast<std::size_t>(mpi.size()));
    communicator.all_gather_host_sync({bytes.data(), 100'000}, bytes, "weights of run 3");
  }
  std::thread other;  // sends the signal somewhere in a gather
  if (is_faulty && (mode.rfind("killed", 0) == 0 || mode == "stopped")) {
    other = std::thread([&mode] {
      std::this_thread::sleep_for(std::chrono::microseconds(20'000 + ::getpid() % 977 * 20));
      ::kill(::getpid(), mode == "stopped" ? SIGSTOP : SIGKILL);
    });
  }
  gather_on(communicator, context);
}

void run(Mpi& mpi, const std::string& mode, int number) {
  const octavo::Context<Cpu> context(1);
  if (mode == "operations") {
    operations(mpi, context, number);
  } else if (mode == "huge") {
    huge(mpi, context);
  } else {
    fault(mpi, context, mode);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::chrono::milliseconds timeout(std::atoi(arguments[1]));
  const std::string mode = arguments[2];
  const int number = count > 3 ? std::atoi(arguments[3]) : 0;
  std::cout << message("pid ", ::getpid(), "\n") << std::flush;
  try {
    Mpi mpi(mode == "alone" ? octavo::Launch{} : octavo::read_launch(), timeout);
    if (mode == "throws-past-mpi") {
      if (mpi.rank() == 1) throw std::runtime_error("the data ended");
      run(mpi, "throws-past-mpi-not-here", number);
    }
    try {
      run(mpi, mode, number);
    } catch (const std::exception& error) {
      mpi.abort(error.what());
    }
    std::cout << message("rank ", mpi.rank(), " is done\n") << std::flush;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
