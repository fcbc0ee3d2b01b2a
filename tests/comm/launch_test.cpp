// Which rank a process is, of flags and of an environment that is a table.
#include <octavo/comm/launch.hpp>

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace launch_test {

using octavo::ConfigError;
using octavo::Launch;
using octavo::Launcher;
using octavo::LaunchFlags;
using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

using Environment = std::map<std::string, std::string>;

Launch launch_in(const Environment& environment, const LaunchFlags& flags = {}) {
  return octavo::read_launch(flags, [&](const char* variable) {
    const auto found = environment.find(variable);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

/// The message of the ConfigError; empty: there is none.
std::string refusal(const Environment& environment, const LaunchFlags& flags = {}) {
  try {
    launch_in(environment, flags);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Whether a message has each of the texts.
AssertionResult says(const std::string& message, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (message.find(text) == std::string::npos)
      return AssertionFailure() << "no '" << text << "' in '" << message << "'";
  }
  return AssertionSuccess();
}

/// Rank 5 of 8, the second on the last of three hosts.
const Environment torchrun{{"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "gpu07"},
                           {"MASTER_PORT", "29500"},
                           {"TORCHELASTIC_RUN_ID", "none"}};
const Environment open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "6"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
const Environment slurm{{"SLURM_PROCID", "3"},
                        {"SLURM_STEP_NUM_TASKS", "4"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NODELIST", "gpu[07-09,12],cpu1"}};
/// What the script of an sbatch without --ntasks is given, as is a program that it starts.
const Environment slurm_batch{{"SLURM_JOB_ID", "1234"},
                              {"SLURM_JOB_NUM_NODES", "2"},
                              {"SLURM_JOB_NODELIST", "n[1-2]"},
                              {"SLURM_TASKS_PER_NODE", "4(x2)"},
                              {"SLURM_PROCID", "0"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODEID", "0"},
                              {"SLURM_GTIDS", "0"}};
const Environment pmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};

Environment both(Environment one, const Environment& other) {
  one.insert(other.begin(), other.end());
  return one;
}
Environment with(Environment environment, const std::string& variable, const std::string& value) {
  environment[variable] = value;
  return environment;
}
Environment without(Environment environment, const std::string& variable) {
  environment.erase(variable);
  return environment;
}

void expect(const Launch& launch, Launcher launcher, int rank, int size,
            std::optional<int> local_rank, std::optional<int> local_size) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.size, size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_size, local_size);
}

TEST(Launch, HasOneRankWithoutLauncher) {
  const Launch launch = launch_in({});
  expect(launch, Launcher::none, 0, 1, 0, 1);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
}

TEST(Launch, ReadsVariablesOfEachLauncher) {
  expect(launch_in(torchrun), Launcher::torchrun, 5, 8, 1, 4);
  expect(launch_in(open_mpi), Launcher::open_mpi, 2, 6, 0, 3);
  expect(launch_in(slurm), Launcher::slurm, 3, 4, 1, std::nullopt);
  expect(launch_in(pmi), Launcher::pmi, 1, 2, std::nullopt, std::nullopt);
  const Environment alone{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
  expect(launch_in(alone), Launcher::pmi, 0, 1, 0, 1);
}

TEST(Launch, FlagsOverrideEnvironment) {
  const LaunchFlags flags{.rank = 1, .world_size = 3};
  const Environment every = both(torchrun, both(open_mpi, slurm));
  expect(launch_in(every, flags), Launcher::flags, 1, 3, std::nullopt, std::nullopt);
  const LaunchFlags local{.rank = 2, .world_size = 3, .local_rank = 1, .local_world_size = 2};
  expect(launch_in({}, local), Launcher::flags, 2, 3, 1, 2);
}

TEST(Launch, UsesInnermostOfNestedLaunchers) {
  EXPECT_EQ(launch_in(both(torchrun, slurm)).launcher, Launcher::torchrun);
  EXPECT_EQ(launch_in(both(torchrun, open_mpi)).launcher, Launcher::torchrun);
  EXPECT_EQ(launch_in(both(open_mpi, slurm)).launcher, Launcher::open_mpi);
  EXPECT_EQ(launch_in(both(open_mpi, pmi)).launcher, Launcher::open_mpi);
}

TEST(Launch, RejectsContradictingLaunchers) {
  // A shell in which one process was tried with torchrun's variables, and then mpirun.
  Environment left_over = both(without(torchrun, "TORCHELASTIC_RUN_ID"), open_mpi);
  EXPECT_TRUE(says(refusal(left_over), {"two launchers contradict each other: RANK=5, WORLD_SIZE=8",
                                        "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=6"}));
  // The same set by hand from what mpirun says, in a job of Slurm's whose variables are of others.
  left_over["RANK"] = "2";
  left_over["WORLD_SIZE"] = "6";
  expect(launch_in(both(left_over, slurm)), Launcher::torchrun, 2, 6, 1, 4);
  left_over["WORLD_SIZE"] = "7";
  EXPECT_TRUE(says(refusal(left_over), {"WORLD_SIZE=7"}));
  EXPECT_TRUE(says(refusal(both(slurm, pmi)), {"SLURM_PROCID=3", "PMI_RANK=1"}));
}

TEST(Launch, BatchScriptIsNotSlurmTask) {
  expect(launch_in({{"SLURM_NTASKS", "4"}}), Launcher::none, 0, 1, 0, 1);  // of salloc
  expect(launch_in(slurm_batch), Launcher::none, 0, 1, 0, 1);
  expect(launch_in(with(slurm_batch, "SLURM_NTASKS", "8")), Launcher::none, 0, 1, 0, 1);
  expect(launch_in(both(slurm_batch, open_mpi)), Launcher::open_mpi, 2, 6, 0, 3);
  expect(launch_in(both(with(slurm_batch, "SLURM_NTASKS", "8"), pmi)), Launcher::pmi, 1, 2,
         std::nullopt, std::nullopt);
}

TEST(Launch, PrefersTaskCountOfSlurmStep) {
  // srun --preserve-env leaves SLURM_NTASKS as the job has it; so does the shell of an salloc.
  expect(launch_in(both(slurm, with(slurm_batch, "SLURM_NTASKS", "8"))), Launcher::slurm, 3, 4, 1,
         std::nullopt);
}

TEST(Launch, RejectsIncompleteVariables) {
  for (const Environment& set : {torchrun, open_mpi, slurm, pmi}) {
    for (const auto& [variable, value] : set) {
      const bool is_of_the_rank = variable.find("MASTER") == std::string::npos &&
                                  variable.find("_ID") == std::string::npos &&
                                  variable.find("NODELIST") == std::string::npos;
      if (!is_of_the_rank) continue;
      const std::string message = refusal(without(set, variable));
      EXPECT_TRUE(says(message, {"are incomplete", variable + " is not set"})) << variable;
    }
  }
  EXPECT_TRUE(says(refusal({{"RANK", "0"}}), {"RANK=0, WORLD_SIZE is not set"}));
  EXPECT_TRUE(says(refusal({}, {.rank = 1}), {"--rank 1, no --world-size"}));
  EXPECT_TRUE(says(refusal({}, {.local_rank = 1}), {"no --rank"}));
}

TEST(Launch, RejectsContradictingVariables) {
  EXPECT_TRUE(says(refusal(with(torchrun, "RANK", "8")), {"RANK=8, WORLD_SIZE=8"}));
  EXPECT_TRUE(says(refusal(with(torchrun, "LOCAL_RANK", "4")), {"LOCAL_RANK=4"}));
  EXPECT_TRUE(says(refusal(with(torchrun, "LOCAL_WORLD_SIZE", "9")), {"LOCAL_WORLD_SIZE=9"}));
  EXPECT_TRUE(says(refusal(with(with(torchrun, "RANK", "0"), "LOCAL_RANK", "1")),
                   {"RANK=0, WORLD_SIZE=8, LOCAL_RANK=1"}));
  EXPECT_TRUE(says(refusal(with(slurm, "SLURM_PROCID", "4")), {"SLURM_PROCID=4"}));
  EXPECT_TRUE(says(refusal({}, {.rank = 2, .world_size = 2}), {"--rank 2, --world-size 2"}));
  EXPECT_TRUE(says(refusal({}, {.rank = -1, .world_size = 2}), {"--rank -1"}));
  for (const LaunchFlags& flags : std::vector<LaunchFlags>{
           {.rank = 3, .world_size = 4, .local_rank = 2, .local_world_size = 2},
           {.rank = 1, .world_size = 4, .local_rank = 2, .local_world_size = 3},
           {.rank = 1, .world_size = 2, .local_rank = -1},
           {.rank = 1, .world_size = 2, .local_world_size = 3}}) {
    EXPECT_TRUE(says(refusal({}, flags), {"the flags contradict each other"}));
  }
}

TEST(Launch, RejectsInvalidNumbers) {
  for (const char* value : {"", " 1", "1 ", "one", "-1", "1.0", "0x1", "99999999999"}) {
    EXPECT_TRUE(
        says(refusal(with(torchrun, "RANK", value)), {"RANK is '" + std::string(value) + "'"}));
  }
  EXPECT_TRUE(says(refusal(with(torchrun, "WORLD_SIZE", "0")), {"WORLD_SIZE is '0'"}));
  EXPECT_TRUE(says(refusal(with(torchrun, "MASTER_PORT", "70000")),
                   {"MASTER_PORT must be at most", "but is 70000"}));
  EXPECT_TRUE(says(refusal({}, {.port = 0}), {"--port must be from 1 to 65535, but is 0"}));
}

TEST(Launch, PortDiffersFromMasterPort) {
  EXPECT_EQ(launch_in({}).port, 30500);
  EXPECT_EQ(launch_in(torchrun).port, 30500);
  EXPECT_EQ(launch_in(with(torchrun, "MASTER_PORT", "41000")).port, 42000);
  EXPECT_EQ(launch_in(with(torchrun, "MASTER_PORT", "64535")).port, 65535);
  EXPECT_EQ(launch_in(with(torchrun, "MASTER_PORT", "64536")).port, 63536);
  EXPECT_EQ(launch_in(torchrun, {.port = 29500}).port, 29500);
}

TEST(Launch, FindsMasterAddress) {
  EXPECT_EQ(launch_in(torchrun).master_address, "gpu07");
  EXPECT_EQ(launch_in(torchrun, {.master_address = "10.0.0.1"}).master_address, "10.0.0.1");
  EXPECT_EQ(launch_in(with(open_mpi, "MASTER_ADDR", "gpu01")).master_address, "gpu01");
  EXPECT_EQ(launch_in(open_mpi).master_address, "");
  const Environment one_host = with(open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "6");
  EXPECT_EQ(launch_in(one_host).master_address, "127.0.0.1");
  EXPECT_EQ(launch_in(slurm).master_address, "gpu07");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "a-1,b2")).master_address, "a-1");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "n[3,5]")).master_address, "n3");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "alone")).master_address, "alone");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "gpu[1-2]-ib,b")).master_address,
            "gpu1-ib");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "rack[1-2]node[01-04],c")).master_address,
            "rack1node01");
  EXPECT_TRUE(says(refusal(with(torchrun, "MASTER_ADDR", "")), {"MASTER_ADDR is empty"}));
}

TEST(Launch, FindsSecret) {
  EXPECT_EQ(launch_in({}).secret, "");
  EXPECT_EQ(launch_in(slurm).secret, "");
  const Environment of_torchrun = with(torchrun, "TORCHELASTIC_RUN_ID", "9f");
  const Environment of_mpi = with(open_mpi, "OMPI_MCA_orte_precondition_transports", "a-b");
  EXPECT_EQ(launch_in(of_torchrun).secret, "9f");
  EXPECT_EQ(launch_in(of_mpi).secret, "a-b");
  EXPECT_EQ(launch_in(with(of_mpi, "OCTAVO_RENDEZVOUS_SECRET", "own")).secret, "own");
  EXPECT_EQ(launch_in(with(slurm, "OCTAVO_RENDEZVOUS_SECRET", "own")).secret, "own");
  EXPECT_TRUE(says(refusal(with(slurm, "OCTAVO_RENDEZVOUS_SECRET", "")),
                   {"OCTAVO_RENDEZVOUS_SECRET must not be empty"}));
  const std::string long_text(257, 'x');
  EXPECT_TRUE(says(refusal(with(slurm, "OCTAVO_RENDEZVOUS_SECRET", long_text)),
                   {"OCTAVO_RENDEZVOUS_SECRET must have at most 256 bytes, but has 257"}));
}

TEST(Launch, SelectsGpuByLocalRank) {
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(octavo::gpu_of_local_rank(rank, 4), rank);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(octavo::gpu_of_local_rank(rank, 1), 0);
  try {
    (void)octavo::gpu_of_local_rank(2, 2);
    ADD_FAILURE();
  } catch (const octavo::ConfigError& error) {
    EXPECT_TRUE(says(error.what(), {"rank 2 of its host", "only 2 GPUs are visible"}));
  }
}

}  // namespace launch_test
