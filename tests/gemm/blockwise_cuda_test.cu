// GEMMs in scales of blocks and of rows on the Cuda device against FP64 products of the same
// operands.
#include <octavo/cuda.cuh>

#include "gemm/blockwise_products.hpp"
#include "support/on_gpu.cuh"

namespace octavo {
namespace blockwise_cuda_test {

class BlockwiseProductsOnCuda : public support::OnGpuIn<Fp8Recipe<Blockwise>> {};
class RowwiseProductsOnCuda : public support::OnGpuIn<Fp8Recipe<Rowwise>> {};

using Blocks = Fp8Recipe<Blockwise>;

constexpr ::support::LayerShape shapes[] = {
    {128, 128, 128}, {256, 384, 512}, {640, 256, 384}, {1024, 512, 896}};

TEST_F(BlockwiseProductsOnCuda, MatchReferenceForUnevenBlocks) {
  for (const ::support::LayerShape shape : shapes) {
    ::support::expect_products<Blocks, Bf16, Cuda>(shape);
    ::support::expect_products<Fp8Recipe<Blockwise, Hybrid>, Bf16, Cuda>(shape);
  }
}

TEST_F(BlockwiseProductsOnCuda, MatchReferenceWithFp32WeightGradients) {
  for (const ::support::LayerShape shape : shapes) {
    ::support::expect_products<Blocks, float, Cuda>(shape);
    ::support::expect_products<Fp8Recipe<Blockwise, Hybrid>, float, Cuda>(shape);
  }
}

// The last blocks of the weight's gradient are shorter than 128.
TEST_F(BlockwiseProductsOnCuda, MatchReferenceForPartialTokenBlocks) {
  ::support::expect_products<Blocks, Bf16, Cuda>({272, 384, 512});
  ::support::expect_products<Blocks, float, Cuda>({272, 384, 512});
  ::support::expect_products<Blocks, Bf16, Cuda>({16, 256, 384});
}

TEST_F(BlockwiseProductsOnCuda, WrongBlockScalesAreDetected) {
  ::support::expect_mistakes_are_noticed<Blocks, Cuda>({256, 384, 512});
}

using Rows = Fp8Recipe<Rowwise>;
using PowerRows = Fp8Recipe<RowwiseScaling<ScaleRounding::power_of_two>, E4M3Only>;

TEST_F(RowwiseProductsOnCuda, MatchReferenceForUnevenRows) {
  for (const ::support::LayerShape shape : shapes) {
    ::support::expect_products<Rows, Bf16, Cuda>(shape);
    ::support::expect_products<Rows, float, Cuda>(shape);
    ::support::expect_products<PowerRows, Bf16, Cuda>(shape);
  }
}

// Tokens and features are multiples of 16, and no more.
TEST_F(RowwiseProductsOnCuda, MatchReferenceForPartialTokenTiles) {
  ::support::expect_products<Rows, Bf16, Cuda>({272, 400, 528});
  ::support::expect_products<Rows, float, Cuda>({16, 272, 400});
}

TEST_F(RowwiseProductsOnCuda, WrongRowScalesAreDetected) {
  ::support::expect_mistakes_are_noticed<Rows, Cuda>({256, 384, 512},
                                                     {::support::Mistake::next_row});
}

}  // namespace blockwise_cuda_test
}  // namespace octavo
