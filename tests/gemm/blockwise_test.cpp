#include <octavo/octavo.hpp>

#include "gemm/blockwise_products.hpp"

namespace blockwise_test {

using namespace octavo;

using Blocks = Fp8Recipe<Blockwise>;
using HybridBlocks = Fp8Recipe<Blockwise, Hybrid>;

TEST(BlockwiseProducts, AreThoseOfTheirOperandsWithUnevenBlocks) {
  support::expect_products<Blocks, float, Cpu>({144, 256, 384});
  support::expect_products<HybridBlocks, Bf16, Cpu>({144, 256, 384});
}

TEST(BlockwiseProducts, ScalesOfOtherBlocksWouldBeNoticed) {
  support::expect_mistakes_are_noticed<Blocks, Cpu>({144, 256, 384});
}

}  // namespace blockwise_test
