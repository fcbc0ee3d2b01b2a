// The ranks of a run: this process alone, or those that a launcher such as mpirun started.
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

/// What of the environment slows ranks on GPUs down; empty: nothing.
inline std::string slowing_environment(const octavo::EnvironmentLookup& lookup) {
  const char* connections = lookup("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections == nullptr || std::string_view(connections) != "1") return {};
  return "CUDA_DEVICE_MAX_CONNECTIONS is 1: one queue of the GPU serves all streams, and what "
         "ranks send each other may wait for kernels that it could travel beside; unset it";
}

/// What this process knows of the others. Where there are some, a rank that gives up ends all.
class Ranks {
 public:
  /// @param program  for messages
  /// @throws ConfigError  if what the launcher says contradicts itself, or the program was built
  ///                      without what its device needs for several ranks
  /// @throws CommError    if the others cannot be reached
  Ranks(const ModelChoice& options, std::string program)
      : program_(std::move(program)), launch_(octavo::read_launch()) {
    if (launch_.size == 1) return;
    [[maybe_unused]] const auto time_out = std::chrono::seconds(options.comm_timeout);
    const bool on_gpus = options.device == octavo::Cuda::name;
    [[maybe_unused]] const auto throw_without = [&](const char* library, const char* option) {
      // One message is enough: a launcher ends the other ranks when the first one exits.
      if (!is_first()) std::this_thread::sleep_for(std::chrono::seconds(1));
      throw octavo::ConfigError(octavo::message(
          octavo::name_of(launch_.launcher), " started ", launch_.size, " ranks, but ", program_,
          " was built without ", library, ", through which those of --device ", options.device,
          " exchange; run scripts/install-dependencies ranks, and build again with -D", option,
          "=ON"));
    };
    if (on_gpus) {
#if defined(OCTAVO_PROGRAM_HAS_NCCL)
      rendezvous_.emplace(launch_, time_out);
      const std::string slow =
          slowing_environment([](const char* name) { return std::getenv(name); });
      if (!slow.empty()) programs::tell("{}warning: {}\n", name(), slow);
#else
      throw_without("NCCL", "OCTAVO_NCCL");
#endif
    } else {
#if defined(OCTAVO_PROGRAM_HAS_MPI)
      mpi_.emplace(launch_, time_out);
      communicator_ = std::make_unique<octavo::MpiComm>(*mpi_);
#else
      throw_without("MPI", "OCTAVO_MPI");
#endif
    }
  }

  [[nodiscard]] int rank() const { return launch_.rank; }
  [[nodiscard]] int size() const { return launch_.size; }
  /// Whether this is the rank that prints and writes files.
  [[nodiscard]] bool is_first() const { return launch_.rank == 0; }
  /// Of ranks on the `Cpu` device; else null.
  [[nodiscard]] octavo::Communicator<octavo::Cpu>* communicator() { return communicator_.get(); }
  /// Of ranks on the `Cuda` device; else null.
  [[nodiscard]] octavo::Rendezvous* rendezvous() {
    return rendezvous_.has_value() ? &*rendezvous_ : nullptr;
  }
  /// Gives each rank the parts of all.
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

  /// Threads of this rank where --threads says nothing: what OMP_NUM_THREADS says, else the
  /// processors that the launcher has bound it to, else its share of the host's. 0: all.
  [[nodiscard]] int threads() const {
    if (size() == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
    const auto all = static_cast<int>(std::thread::hardware_concurrency());
    cpu_set_t bound{};
    const bool is_known = ::sched_getaffinity(0, sizeof(bound), &bound) == 0;
    if (is_known && CPU_COUNT(&bound) < all) return CPU_COUNT(&bound);
    return std::max(1, all / launch_.local_size.value_or(size()));
  }

  /// Whether all ranks got so far without an error. They meet here.
  [[nodiscard]] bool all_are_well(bool this_is_well) {
    const auto own = static_cast<std::byte>(this_is_well);
    std::vector<std::byte> all(static_cast<std::size_t>(size()));
    all_gather_host_sync({&own, 1}, all, "set-up of the run");
    return std::ranges::find(all, std::byte{0}) == all.end();
  }

  /// The program's name and ": ", with the rank where there are several.
  [[nodiscard]] std::string name() const {
    return size() == 1 ? program_ + ": " : fmt::format("{}: rank {}: ", program_, rank());
  }

  /// Groups of ranks that share each layer.
  /// @throws ConfigError  if ranks do not divide into such
  [[nodiscard]] int groups(int tensor_parallel) const {
    octavo::require<octavo::ConfigError>(
        size() % tensor_parallel == 0, "--tensor-parallel ", tensor_parallel,
        ": so many ranks share each layer, but there are ", size(),
        "; start a multiple, such as with mpirun -n ", tensor_parallel);
    return size() / tensor_parallel;
  }

  /// Has a session be one of these ranks.
  /// @param gpu_is_chosen  by --gpu
  /// @throws ConfigError  if the launcher does not say which rank of its host this is, and GPUs are
  ///                      to be had
  void join(SessionRequest& request, bool gpu_is_chosen) {
    if (request.threads == 0) request.threads = threads();
    if (!gpu_is_chosen && rendezvous_.has_value()) {
      octavo::require<octavo::ConfigError>(
          launch_.local_rank.has_value(),
          "the launcher does not say which of its host's ranks this is; give each rank its --gpu");
      request.local_rank = launch_.local_rank;
    }
    request.ranks = communicator();
    request.rendezvous = rendezvous();
  }

  /// Ends the others with an error, and this rank too where MPI started it.
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
