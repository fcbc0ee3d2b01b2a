// Common names stay free for programs that write `using namespace octavo`.
#include <octavo/memory/buffer.hpp>
#include <octavo/tensor/operand.hpp>

#include <gtest/gtest.h>

struct Copies {
  int count = 1;
};
struct Release {
  int number = 2;
};

namespace user_names_test {

TEST(UserNames, DoNotCollideWithLibraryNames) {
  using namespace octavo;
  EXPECT_EQ(Copies{}.count + Release{}.number, 3);
}

}  // namespace user_names_test
