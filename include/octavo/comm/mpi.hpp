/// @file
/// Initialisation and finalisation of MPI.
#pragma once

#include <octavo/comm/launch.hpp>
#include <octavo/comm/mpi_exchange.hpp>
#include <octavo/comm/wait_note.hpp>
#include <octavo/core/error.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string_view>

#include <signal.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Ends the process with a message if this object exists for longer than a time-out. Used for MPI
/// calls that wait for other ranks without a deadline.
class MpiAlarm {
 public:
  MpiAlarm(std::chrono::milliseconds time, const char* message) {
    text = message;
    struct sigaction action{};
    action.sa_handler = end;
    ::sigaction(SIGALRM, &action, &previous_);
    ::alarm(static_cast<unsigned>(std::chrono::ceil<std::chrono::seconds>(time).count()));
  }
  ~MpiAlarm() {
    ::alarm(0);
    ::sigaction(SIGALRM, &previous_, nullptr);
  }
  MpiAlarm(const MpiAlarm&) = delete;
  MpiAlarm& operator=(const MpiAlarm&) = delete;

 private:
  static void end(int) {
    const char* message = text;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message, std::strlen(message));
    std::_Exit(EXIT_FAILURE);
  }

  inline static std::atomic<const char*> text{nullptr};
  struct sigaction previous_{};
};

}  // namespace detail

/// Owns MPI from initialisation to finalisation. A program creates one, in the thread of `main`; it
/// must outlive all communicators that use it. If a rank fails, it must end all ranks, because the
/// others would wait for it:
///
///     Mpi mpi(read_launch(), 600s);
///     try {
///       MpiComm communicator(mpi);
///       ...
///     } catch (const std::exception& error) {
///       mpi.abort(error.what());
///     }
///
/// If an exception leaves the block of the `Mpi`, its destructor calls `abort`, without the
/// exception's text. If a program ends in another way, such as by std::exit, mpirun detects it
/// immediately, and the other ranks after the time-out.
class Mpi {
 public:
  /// @param launch    from read_launch(); must agree with MPI
  /// @param timeout  how long ranks wait for each other, at the start, at the end and in each
  ///                  operation
  /// @throws UsageError   if MPI was initialised before
  /// @throws ConfigError  if MPI reports another rank or size
  /// @throws CommError    if MPI cannot be initialised
  Mpi(const Launch& launch, std::chrono::milliseconds timeout) {
    require<ConfigError>(timeout.count() > 0,
                         "the time-out between ranks must be positive, but is ", timeout.count(),
                         " ms");
    world_.timeout = timeout;
    int was_begun = 0;
    detail::check_mpi(MPI_Initialized(&was_begun), "MPI_Initialized");
    require<UsageError>(was_begun == 0,
                        "MPI is already initialised; let octavo::Mpi initialise it");
    begin();
    require_agrees(launch);
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;
  /// Waits for the other ranks, so that no rank ends while another needs it.
  ~Mpi() {
    if (std::uncaught_exceptions() != 0 || has_failed_)
      abort("the program leaves MPI after an error; all ranks are ended");
    try {
      detail::MpiExchange end(world_, "barrier", "end of the run", 0);
      meet(end);
    } catch (const Error& error) {
      abort(error.what());
    }
    WaitNote::clear();
    finalize();
  }

  [[nodiscard]] int rank() const { return world_.rank; }
  [[nodiscard]] int size() const { return world_.size; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return world_.timeout; }

  /// Writes "rank 2: " and the reason to standard error and ends the program on all ranks, with
  /// exit code 1.
  [[noreturn]] void abort(std::string_view reason) const {
    WaitNote::clear();
    std::cerr << message("rank ", world_.rank, ": ", reason, "\n") << std::flush;
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    std::_Exit(EXIT_FAILURE);
  }

 private:
  friend class MpiComm;

  void begin() {
    const detail::MpiAlarm alarm(
        world_.timeout, "MPI_Init_thread has not returned in time: have all ranks started?\n");
    int level = 0;
    detail::check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level),
                      "MPI_Init_thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    world_.communicator = MPI_COMM_WORLD;
    detail::check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_.rank), "MPI_Comm_rank");
    detail::check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world_.size), "MPI_Comm_size");
  }

  void finalize() const {
    const detail::MpiAlarm alarm(world_.timeout, "MPI_Finalize has not returned in time\n");
    MPI_Finalize();
  }

  void require_agrees(const Launch& launch) const {
    if (launch.rank == world_.rank && launch.size == world_.size) return;
    finalize();
    throw ConfigError(message(
        "MPI reports rank ", world_.rank, " of ", world_.size, ", but ", name_of(launch.launcher),
        " reports rank ", launch.rank, " of ", launch.size,
        launch.launcher == Launcher::torchrun
            ? "; torchrun cannot start MPI ranks, which the Cpu device needs: start with mpirun, "
              "or use the Cuda device"
            : "; start with mpirun, or with srun --mpi=pmix if Slurm and MPI both support PMIx"));
  }

  /// Waits until all ranks have arrived.
  void meet(detail::MpiExchange& exchange) const {
    for (int peer = 0; peer < world_.size; ++peer) {
      if (peer != world_.rank) exchange.receive(peer, nullptr, 0);
    }
    for (int peer = 0; peer < world_.size; ++peer) {
      if (peer != world_.rank) exchange.send(peer, nullptr, 0);
    }
    exchange.wait();
  }

  NoteOnTermination note_on_termination_;
  detail::MpiRoute world_;
  bool has_failed_ = false;  ///< an operation failed: messages are still in flight
};

}  // namespace octavo
