// The ranks of a run: a single process, or those started by a launcher such as mpirun.
#pragma once

#include <octavo/comm/rendezvous.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/model_choice.hpp>
#if defined(OCTAVO_PROGRAM_HAS_MPI)
#include <octavo/comm/mpi_comm.hpp>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

namespace trainer {

/// Returns a warning about environment variables that slow down ranks on GPUs, or "".
inline std::string slowing_environment(const octavo::EnvironmentLookup& lookup) {
  const char* connections = lookup("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections == nullptr || std::string_view(connections) != "1") return {};
  return "CUDA_DEVICE_MAX_CONNECTIONS is 1: all streams share one hardware queue, so communication "
         "may wait for kernels instead of overlapping with them; unset it";
}

/// Connects this process to the other ranks. If a rank gives up, all ranks end.
class Ranks {
 public:
  /// @param program  name for messages
  /// @throws ConfigError  if the launcher's environment contradicts itself, or the program was
  ///                      built without the library that its device needs for several ranks
  /// @throws CommError    if the other ranks cannot be reached
  Ranks(const ModelChoice& options, std::string program)
      : program_(std::move(program)), launch_(octavo::read_launch()) {
    if (launch_.size == 1) return;
    [[maybe_unused]] const auto timeout = std::chrono::seconds(options.comm_timeout);
    const bool on_gpus = options.device == octavo::Cuda::name;
    [[maybe_unused]] const auto throw_without = [&](const char* library, const char* option) {
      // One message is enough: a launcher ends the other ranks when the first one exits.
      if (!is_first()) std::this_thread::sleep_for(std::chrono::seconds(1));
      throw octavo::ConfigError(octavo::message(
          octavo::name_of(launch_.launcher), " started ", launch_.size, " ranks, but ", program_,
          " was built without ", library, ", which ranks with --device ", options.device,
          " need; run scripts/install-dependencies ranks, and build again with -D", option, "=ON"));
    };
    if (on_gpus) {
#if defined(OCTAVO_PROGRAM_HAS_NCCL)
      rendezvous_.emplace(launch_, timeout);
      const std::string slow =
          slowing_environment([](const char* name) { return std::getenv(name); });
      if (!slow.empty()) programs::print_stderr("{}warning: {}\n", name(), slow);
#else
      throw_without("NCCL", "OCTAVO_NCCL");
#endif
    } else {
#if defined(OCTAVO_PROGRAM_HAS_MPI)
      mpi_.emplace(launch_, timeout);
      communicator_ = std::make_unique<octavo::MpiComm>(*mpi_);
#else
      throw_without("MPI", "OCTAVO_MPI");
#endif
    }
  }

  /// Connects ranks through a rendezvous only.
  Ranks(octavo::Launch launch, std::chrono::seconds timeout, std::string program)
      : program_(std::move(program)), launch_(std::move(launch)) {
    rendezvous_.emplace(launch_, timeout);
  }

  [[nodiscard]] int rank() const { return launch_.rank; }
  [[nodiscard]] int size() const { return launch_.size; }
  /// Whether this is the rank that prints and writes files.
  [[nodiscard]] bool is_first() const { return launch_.rank == 0; }
  /// Communicator of ranks on the `Cpu` device, otherwise null.
  [[nodiscard]] octavo::Communicator<octavo::Cpu>* communicator() { return communicator_.get(); }
  /// Rendezvous of ranks on the `Cuda` device, otherwise null.
  [[nodiscard]] octavo::Rendezvous* rendezvous() {
    return rendezvous_.has_value() ? &*rendezvous_ : nullptr;
  }
  /// Gathers the parts of all ranks on each rank.
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) {
    if (rendezvous_.has_value()) {
      rendezvous_->all_gather_sync(part, whole, what);
    } else if (communicator_ != nullptr) {
      communicator_->all_gather_host_sync(part, whole, what);
    } else {
      std::ranges::copy(part, whole.begin());
    }
  }

  /// Returns the default number of threads of this rank: OMP_NUM_THREADS, or the number of
  /// processors to which the launcher bound it, or its share of the host's processors. 0 means all.
  [[nodiscard]] int threads() const {
    if (size() == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
    const auto all = static_cast<int>(std::thread::hardware_concurrency());
    cpu_set_t bound{};
    const bool is_known = ::sched_getaffinity(0, sizeof(bound), &bound) == 0;
    if (is_known && CPU_COUNT(&bound) < all) return CPU_COUNT(&bound);
    return std::max(1, all / launch_.local_size.value_or(size()));
  }

  /// Whether all ranks finished a part of the set-up without an error.
  /// @param wrong      error of this rank, or ""
  /// @param exchanges  whether ranks exchange in the part, where others may wait for this one: with
  ///                   a rendezvous, a rank with an error then gives up
  /// @throws CommError  on ranks without an error, with that of the rank that gave up
  [[nodiscard]] bool all_succeeded(const std::string& wrong, bool exchanges) {
    if (exchanges && !wrong.empty() && rendezvous_.has_value()) {
      rendezvous_->give_up(wrong);
      return false;
    }
    const auto own = static_cast<std::byte>(wrong.empty());
    std::vector<std::byte> all(static_cast<std::size_t>(size()));
    all_gather_host_sync({&own, 1}, all, "set-up of the run");
    return std::ranges::find(all, std::byte{0}) == all.end();
  }

  /// Returns the program's name and ": ", with the rank if there are several.
  [[nodiscard]] std::string name() const {
    return size() == 1 ? program_ + ": " : fmt::format("{}: rank {}: ", program_, rank());
  }

  /// Returns the number of tensor-parallel groups.
  /// @throws ConfigError  if the number of ranks is not a multiple of `tensor_parallel`
  [[nodiscard]] int groups(int tensor_parallel) const {
    octavo::require<octavo::ConfigError>(
        size() % tensor_parallel == 0,
        "the number of ranks must be a multiple of --tensor-parallel ", tensor_parallel,
        ", but is ", size(), "; start them with mpirun -n ", tensor_parallel, ", for example");
    return size() / tensor_parallel;
  }

  /// Makes a session one of these ranks.
  /// @param gpu_is_chosen  whether --gpu was set
  /// @throws ConfigError  if ranks use GPUs and the launcher does not set the rank's index on its
  ///                      host
  void join(SessionRequest& request, bool gpu_is_chosen) {
    if (request.threads == 0) request.threads = threads();
    if (!gpu_is_chosen && rendezvous_.has_value()) {
      octavo::require<octavo::ConfigError>(
          launch_.local_rank.has_value(),
          "the launcher does not set the rank's index on its host; pass --gpu to each rank");
      request.local_rank = launch_.local_rank;
    }
    request.ranks = communicator();
    request.rendezvous = rendezvous();
  }

  /// Ends the other ranks with an error, and this rank if MPI started it.
  void abort(const std::string& reason) {
#if defined(OCTAVO_PROGRAM_HAS_MPI)
    if (mpi_.has_value()) mpi_->abort(reason);
#endif
    if (rendezvous_.has_value()) rendezvous_->give_up(reason);
  }

 private:
  std::string program_;
  octavo::Launch launch_;
#if defined(OCTAVO_PROGRAM_HAS_MPI)
  std::optional<octavo::Mpi> mpi_;
#endif
  std::unique_ptr<octavo::Communicator<octavo::Cpu>> communicator_;
  std::optional<octavo::Rendezvous> rendezvous_;
};

}  // namespace trainer
