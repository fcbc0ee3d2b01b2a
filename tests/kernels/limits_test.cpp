// The largest matrices of the Cuda device's kernels, as any machine can ask.
#include <octavo/kernels/cuda/limits.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace limits_test {

using namespace octavo;

/// What is said of a matrix that is too large; empty for others.
template <class P>
std::string refusal(Index rows, Index columns) {
  try {
    detail::require_operand_size<P>("quantize", rows, columns);
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "";
}

TEST(CudaLimits, ErrorsNameSizeAndLimit) {
  using Fp8 = Fp8Recipe<Delayed>;
  EXPECT_EQ(refusal<Fp8>(8388480, 16777216), "");
  EXPECT_EQ(refusal<Fp8>(1, 16777217),
            "quantize: rows must have at most 16777216 columns on Cuda, but have 16777217; split "
            "the rows");
  EXPECT_EQ(refusal<Bf16>(1, 16777217), refusal<Fp8>(1, 16777217));
  EXPECT_EQ(refusal<Fp8>(8388481, 128),
            "quantize: at most 8388480 rows can be cast at once on Cuda, but there are 8388481; "
            "process fewer "
            "tokens at once");
  EXPECT_EQ(refusal<Bf16>(8388481, 128), "") << "only casts work in a grid of tiles";
}

// What the kernels compute with 32 bits: the last row of a tile, in its second part.
TEST(CudaLimits, TileOffsetsFitIn31Bits) {
  constexpr Index stride = detail::max_columns;
  EXPECT_LE((detail::tile_side - 1) * stride + stride / 2, std::numeric_limits<int>::max());
}

}  // namespace limits_test
