// What is said of blocks that are alike is said once.
#include <common/folded.hpp>

#include <gtest/gtest.h>

#include <sstream>

namespace folded_test {

TEST(Folded, MergesEqualLinesOfBlocks) {
  std::ostringstream lines;
  for (int block = 0; block < 12; ++block) {
    const char* const precision = block == 0 || block == 7 ? "bf16" : "fp8-delayed";
    lines << "gemm | blocks." << block << ".qkv  forward | 256 x 128  | " << precision << "\n";
    lines << "gemm | blocks." << block << ".down   dgrad | 128 x 1024 | " << precision << "\n";
  }
  lines << "gemm | head  forward | 50304 x 128 | bf16\n";
  for (int block = 0; block < 12; ++block) {
    lines << "attention | blocks." << block << ".attention | own loops\n";
  }
  EXPECT_EQ(programs::folded(lines.str()),
            "gemm | blocks.0,7.qkv forward      | 256 x 128   | bf16\n"
            "gemm | blocks.0,7.down dgrad       | 128 x 1024  | bf16\n"
            "gemm | blocks.1-6,8-11.qkv forward | 256 x 128   | fp8-delayed\n"
            "gemm | blocks.1-6,8-11.down dgrad  | 128 x 1024  | fp8-delayed\n"
            "gemm | head forward                | 50304 x 128 | bf16\n"
            "attention | blocks.0-11.attention | own loops\n");
}

TEST(Folded, KeepsOtherLines) {
  EXPECT_EQ(programs::folded("gemm plans: 3 tried\nblocks.\nblocks.x | a\n"),
            "gemm plans: 3 tried\nblocks.\nblocks.x | a\n");
  EXPECT_EQ(programs::folded(""), "");
}

}  // namespace folded_test
