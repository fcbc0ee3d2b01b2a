#include <octavo/octavo.hpp>

#include "gemm/blockwise_products.hpp"

namespace blockwise_test {

using namespace octavo;

using Blocks = Fp8Recipe<Blockwise>;
using HybridBlocks = Fp8Recipe<Blockwise, Hybrid>;

TEST(BlockwiseProducts, MatchReferenceForUnevenBlocks) {
  support::expect_products<Blocks, float, Cpu>({144, 256, 384});
  support::expect_products<HybridBlocks, Bf16, Cpu>({144, 256, 384});
}

TEST(BlockwiseProducts, WrongBlockScalesAreDetected) {
  support::expect_mistakes_are_noticed<Blocks, Cpu>({144, 256, 384});
}

using Rows = Fp8Recipe<Rowwise>;

TEST(RowwiseProducts, MatchReferenceForUnevenRows) {
  support::expect_products<Rows, float, Cpu>({144, 272, 400});
  support::expect_products<Fp8Recipe<RowwiseScaling<ScaleRounding::power_of_two>, E4M3Only>, Bf16,
                           Cpu>({144, 272, 400});
}

TEST(RowwiseProducts, WrongRowScalesAreDetected) {
  support::expect_mistakes_are_noticed<Rows, Cpu>({144, 256, 384}, {support::Mistake::next_row});
}

}  // namespace blockwise_test
