// What the trainer says of the environment of its ranks.
#include <train_llama/ranks.hpp>

#include <gtest/gtest.h>

#include <string>
#include <string_view>

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

}  // namespace ranks_test
