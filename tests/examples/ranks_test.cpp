// What the trainer says of the environment of its ranks.
#include <train_llama/ranks.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace ranks_test {

std::string said_of(const char* connections) {
  return trainer::slowing_environment([&](const char* variable) -> const char* {
    return std::string_view(variable) == "CUDA_DEVICE_MAX_CONNECTIONS" ? connections : nullptr;
  });
}

TEST(EnvironmentOfRanks, OneQueueForAllStreamsIsSlow) {
  EXPECT_EQ(said_of(nullptr), "");
  EXPECT_EQ(said_of("8"), "");
  EXPECT_EQ(said_of("16"), "");
  EXPECT_EQ(said_of("1").find("CUDA_DEVICE_MAX_CONNECTIONS is 1: "), 0u);
  EXPECT_NE(said_of("1").find("; unset it"), std::string::npos);
}

TEST(EnvironmentOfRanks, NeedsALibraryThatTheProgramWasBuiltWith) {
#if defined(OCTAVO_PROGRAM_HAS_MPI)
  GTEST_SKIP() << "this test is built with MPI";
#endif
  const std::array<std::pair<const char*, const char*>, 4> launched{
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}};
  for (const auto& [name, value] : launched) ::setenv(name, value, 1);
  try {
    const trainer::Ranks ranks({}, "a_program");
    ADD_FAILURE() << "there are ranks";
  } catch (const octavo::ConfigError& error) {
    EXPECT_TRUE(std::string_view(error.what())
                    .ends_with("; run scripts/install-dependencies ranks, and build again with "
                               "-DOCTAVO_MPI=ON"))
        << error.what();
  }
  for (const auto& [name, value] : launched) ::unsetenv(name);
}

}  // namespace ranks_test
