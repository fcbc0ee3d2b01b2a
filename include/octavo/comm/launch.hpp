/// @file
/// How a program was launched: the rank of this process and the number of ranks.
#pragma once

#include <octavo/core/error.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI {

/// The source of a process's rank.
enum class Launcher { none, flags, torchrun, open_mpi, slurm, pmi };

[[nodiscard]] constexpr const char* name_of(Launcher launcher) {
  constexpr std::array names{"no launcher", "flags", "torchrun", "Open MPI", "Slurm", "PMI"};
  return names[static_cast<std::size_t>(launcher)];
}

/// A program's own flags, such as `--rank`. Each takes precedence over the environment. The rank
/// needs the world size, and vice versa.
struct LaunchFlags {
  std::optional<int> rank{};                    ///< `--rank`
  std::optional<int> world_size{};              ///< `--world-size`
  std::optional<int> local_rank{};              ///< `--local-rank`
  std::optional<int> local_world_size{};        ///< `--local-world-size`
  std::optional<std::string> master_address{};  ///< `--master-address`
  std::optional<int> port{};                    ///< `--port`, of the rendezvous
};

/// The rank of a process, and the addresses for connecting to the others.
struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank{};  ///< among the ranks of its host; none: unknown
  std::optional<int> local_size{};  ///< ranks of its host; none: unknown
  std::string master_address{};     ///< host of rank 0; empty: unknown
  /// Port on which rank 0 waits for the others (`Rendezvous`): `--port`, else MASTER_PORT + 1000,
  /// because torchrun's agent may listen on MASTER_PORT itself (MASTER_PORT - 1000 if that exceeds
  /// the largest port), else 30500.
  int port = 30500;
  /// The secret that the ranks of a run share: OCTAVO_RENDEZVOUS_SECRET, else Open MPI's key of the
  /// job, else torchrun's run id (`--rdzv-id`); empty if none is set.
  std::string secret{};
};

/// The variable that sets the secret of a run's ranks, and its maximum length in bytes.
inline constexpr const char* secret_variable = "OCTAVO_RENDEZVOUS_SECRET";
inline constexpr std::size_t max_secret_bytes = 256;

/// Returns the default GPU of a rank: the GPU whose index is its local rank, or the only visible
/// GPU, as when a launcher makes one GPU visible to each rank.
/// @param local_rank  among the ranks of its host
/// @param visible     GPUs that this process sees
/// @throws ConfigError  if it sees too few
[[nodiscard]] inline int gpu_of_local_rank(int local_rank, int visible) {
  if (visible == 1) return 0;
  require<ConfigError>(local_rank < visible, "this is rank ", local_rank,
                       " of its host, counted from 0, but only ", visible,
                       " GPUs are visible; start at most ", visible,
                       " ranks per host, or set CUDA_VISIBLE_DEVICES for each rank");
  return local_rank;
}

/// Returns the value of an environment variable, or null if it is not set.
using EnvironmentLookup = std::function<const char*(const char*)>;

namespace detail {

/// The variables of one launcher; null if it has no such variable.
struct LaunchVariables {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

inline constexpr std::array<LaunchVariables, 4> launch_variables{{
    {Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {Launcher::pmi, "PMI_RANK", "PMI_SIZE", nullptr, nullptr},
}};

/// Reads the variables of launchers.
class LaunchReader {
 public:
  explicit LaunchReader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  [[nodiscard]] Launch read(const LaunchFlags& flags) const {
    Launch launch = from_flags(flags);
    if (launch.launcher == Launcher::none) launch = from_environment();
    if (launch.size == 1) launch.local_rank = 0, launch.local_size = 1;
    set_rendezvous_address(flags, launch);
    launch.secret = secret_of(launch.launcher);
    return launch;
  }

 private:
  [[nodiscard]] std::optional<std::string> text(const char* variable) const {
    const char* value = variable == nullptr ? nullptr : lookup_(variable);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  /// Returns an integer of at least `least`; none if the variable is not set.
  [[nodiscard]] std::optional<int> number(const char* variable, int least) const {
    const std::optional<std::string> value = text(variable);
    if (!value) return std::nullopt;
    int result = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, result);
    require<ConfigError>(error == std::errc() && stop == end && result >= least, variable, " is '",
                         *value, "'; it must be a whole number of at least ", least,
                         ": start with a launcher that sets it, or unset it");
    return result;
  }

  /// "RANK=3", or "RANK is not set".
  [[nodiscard]] std::string setting_text(const char* variable) const {
    const std::optional<std::string> value = text(variable);
    return value ? message(variable, "=", *value) : message(variable, " is not set");
  }
  [[nodiscard]] std::string setting_text(const LaunchVariables& variables) const {
    std::string all;
    for (const char* variable :
         {variables.rank, variables.size, variables.local_rank, variables.local_size}) {
      if (variable != nullptr) all += (all.empty() ? "" : ", ") + setting_text(variable);
    }
    return all;
  }

  /// Reads the variables of one launcher, which must be set completely or not at all.
  [[nodiscard]] std::optional<Launch> from_launcher(const LaunchVariables& variables) const {
    // SLURM_PROCID=0 and SLURM_LOCALID=0 are also set in an sbatch script itself; only steps have
    // tasks.
    if (variables.launcher == Launcher::slurm && !text("SLURM_STEP_ID")) return std::nullopt;
    const std::optional<int> rank = number(variables.rank, 0);
    const std::optional<int> size = number(variables.size, 1);
    const std::optional<int> local_rank = number(variables.local_rank, 0);
    const std::optional<int> local_size = number(variables.local_size, 1);
    if (!rank && !size && !local_rank && !local_size) return std::nullopt;
    require<ConfigError>(rank && size && (local_rank || variables.local_rank == nullptr) &&
                             (local_size || variables.local_size == nullptr),
                         "the variables of ", name_of(variables.launcher),
                         " are incomplete: ", setting_text(variables),
                         "; start with a launcher that sets all of them, or unset them");
    require<ConfigError>(
        *rank < *size && local_rank.value_or(0) <= *rank && local_size.value_or(1) <= *size &&
            local_rank.value_or(0) < local_size.value_or(*size),
        "the variables of ", name_of(variables.launcher),
        " contradict each other: ", setting_text(variables),
        "; a rank must be below the size, and a host cannot have more ranks than the world");
    return Launch{.launcher = variables.launcher,
                  .rank = *rank,
                  .size = *size,
                  .local_rank = local_rank,
                  .local_size = local_size};
  }

  /// Reads the variables of the innermost launcher. If two launchers contradict each other, and
  /// neither is known to run inside the other, the variables of one are not read.
  [[nodiscard]] Launch from_environment() const {
    std::optional<Launch> first;
    const LaunchVariables* from = nullptr;
    for (const LaunchVariables& variables : launch_variables) {
      const std::optional<Launch> next = from_launcher(variables);
      if (!next) continue;
      require<ConfigError>(
          !first || (next->rank == first->rank && next->size == first->size),
          "two launchers contradict each other: ", from == nullptr ? "" : setting_text(*from),
          " and ", setting_text(variables),
          "; unset the variables of the one that did not start this program");
      if (!first) {
        first = next;
        from = &variables;
      }
      if (runs_inside_others(next->launcher)) break;
    }
    return first.value_or(Launch{});
  }

  /// Whether a launcher may run inside those that follow in the table: torchrun if its own
  /// variables are set, and mpirun in a Slurm job.
  [[nodiscard]] bool runs_inside_others(Launcher launcher) const {
    return launcher == Launcher::open_mpi ||
           (launcher == Launcher::torchrun && text("TORCHELASTIC_RUN_ID").has_value());
  }

  [[nodiscard]] static Launch from_flags(const LaunchFlags& flags) {
    const auto setting_text = [](const char* flag, const std::optional<int>& value) {
      return value ? message(flag, " ", *value) : message("no ", flag);
    };
    const std::string all = message(setting_text("--rank", flags.rank), ", ",
                                    setting_text("--world-size", flags.world_size), ", ",
                                    setting_text("--local-rank", flags.local_rank), ", ",
                                    setting_text("--local-world-size", flags.local_world_size));
    if (!flags.rank && !flags.world_size && !flags.local_rank && !flags.local_world_size) return {};
    require<ConfigError>(flags.rank && flags.world_size, "the rank flags are incomplete: ", all,
                         "; pass both --rank and --world-size, or use a launcher");
    const int rank = *flags.rank;
    const int size = *flags.world_size;
    const int local_rank = flags.local_rank.value_or(0);
    const int local_size = flags.local_world_size.value_or(size);
    require<ConfigError>(0 <= rank && rank < size && 0 <= local_rank && local_rank <= rank &&
                             local_rank < local_size && local_size <= size,
                         "the flags contradict each other: ", all,
                         "; a rank must be at least 0 and below the size, and a host cannot have "
                         "more ranks than the world");
    return {.launcher = Launcher::flags,
            .rank = rank,
            .size = size,
            .local_rank = flags.local_rank,
            .local_size = flags.local_world_size};
  }

  [[nodiscard]] std::string secret_of(Launcher launcher) const {
    const char* launcher_variable = launcher == Launcher::open_mpi
                                        ? "OMPI_MCA_orte_precondition_transports"
                                    : launcher == Launcher::torchrun ? "TORCHELASTIC_RUN_ID"
                                                                     : nullptr;
    const std::optional<std::string> set = text(secret_variable);
    std::string secret = set ? *set : text(launcher_variable).value_or("");
    require<ConfigError>(secret.size() <= max_secret_bytes, secret_variable, " must have at most ",
                         max_secret_bytes, " bytes, but has ", secret.size(),
                         "; set a shorter one");
    require<ConfigError>(!set || !secret.empty(), secret_variable,
                         " must not be empty; set a random text, or unset it");
    return secret;
  }

  void set_rendezvous_address(const LaunchFlags& flags, Launch& launch) const {
    constexpr int most = 65535;
    const std::optional<int> master_port = number("MASTER_PORT", 1);
    require<ConfigError>(master_port.value_or(1) <= most, "MASTER_PORT must be at most ", most,
                         ", but is ", master_port.value_or(1));
    require<ConfigError>(!flags.port || (0 < *flags.port && *flags.port <= most),
                         "--port must be from 1 to ", most, ", but is ", flags.port.value_or(0));
    if (flags.port) {
      launch.port = *flags.port;
    } else if (master_port) {
      launch.port = *master_port + (*master_port + 1000 <= most ? 1000 : -1000);
    }
    if (flags.master_address) {
      launch.master_address = *flags.master_address;
    } else if (const std::optional<std::string> address = text("MASTER_ADDR")) {
      require<ConfigError>(!address->empty(), "MASTER_ADDR is empty; name the host of rank 0");
      launch.master_address = *address;
    } else if (launch.local_size == launch.size) {
      launch.master_address = "127.0.0.1";
    } else if (launch.launcher == Launcher::slurm) {
      launch.master_address = first_host(text("SLURM_STEP_NODELIST").value_or(""));
    }
  }

  /// Returns the first host of a Slurm node list, which has rank 0 by default: "gpu07-ib" for
  /// "gpu[07-09,12]-ib,cpu1".
  [[nodiscard]] static std::string first_host(std::string_view nodes) {
    std::string host;
    while (!nodes.empty() && nodes.front() != ',') {
      if (nodes.front() == '[') {
        nodes.remove_prefix(1);
        host += nodes.substr(0, nodes.find_first_of("-,]"));
        nodes.remove_prefix(std::min(nodes.find(']'), nodes.size() - 1) + 1);
      } else {
        host += nodes.front();
        nodes.remove_prefix(1);
      }
    }
    return host;
  }

  const EnvironmentLookup& lookup_;
};

}  // namespace detail

/// Determines the rank of this process from flags, else from torchrun's variables (RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), else Open MPI's (OMPI_COMM_WORLD_…), else those of a
/// task of Slurm's srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, if SLURM_STEP_ID is
/// set), else PMI's (PMI_RANK, PMI_SIZE). If none is set, it is the only rank. MASTER_ADDR,
/// MASTER_PORT and OCTAVO_RENDEZVOUS_SECRET apply to all of them.
/// @param lookup  returns the value of a variable or null, such as `std::getenv`
/// @throws ConfigError  naming variables and values: if a set is incomplete or inconsistent, or if
///                      two sets contradict each other and neither launcher runs inside the other
[[nodiscard]] inline Launch read_launch(const LaunchFlags& flags, const EnvironmentLookup& lookup) {
  return detail::LaunchReader(lookup).read(flags);
}

/// Same, with the environment of this process.
[[nodiscard]] inline Launch read_launch(const LaunchFlags& flags = {}) {
  return read_launch(flags, [](const char* variable) { return std::getenv(variable); });
}

}  // namespace octavo
