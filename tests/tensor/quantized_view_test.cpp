#include <octavo/tensor/tensor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <type_traits>

namespace quantized_view_test {

using namespace octavo;

using Vec128 = PerBlock<1, 128, float>;
using Blk128 = PerBlock<128, 128, float>;
using Mx = PerBlock<1, 32, E8M0>;

TEST(ScaleLayout, PerTensorHasOneScale) {
  EXPECT_EQ(scale_count<PerTensor>(100, 300), 1);
  EXPECT_EQ(scale_index<PerTensor>(99, 299, 100, 300), 0);
}

TEST(ScaleLayout, PerRowHasOneScaleForEachRow) {
  EXPECT_EQ(scale_count<PerRow>(100, 300), 100);
  EXPECT_EQ(scale_index<PerRow>(0, 299, 100, 300), 0);
  EXPECT_EQ(scale_index<PerRow>(99, 0, 100, 300), 99);
}

TEST(ScaleLayout, Vec128RunsAlongTheRows) {
  // s[k_block * M + row]
  EXPECT_EQ(scale_count<Vec128>(100, 300), 300);
  EXPECT_EQ(scale_count<Vec128>(100, 256), 200);
  EXPECT_EQ(scale_index<Vec128>(0, 0, 100, 300), 0);
  EXPECT_EQ(scale_index<Vec128>(7, 127, 100, 300), 7);
  EXPECT_EQ(scale_index<Vec128>(7, 128, 100, 300), 107);
  EXPECT_EQ(scale_index<Vec128>(99, 299, 100, 300), 299);
}

TEST(ScaleLayout, Blk128PadsBlockRowsToMultipleOfFour) {
  // s[row_block * L4 + k_block], L4 = ceil(K / 128) rounded up to 4
  EXPECT_EQ(scale_count<Blk128>(300, 300), 3 * 4);
  EXPECT_EQ(scale_count<Blk128>(256, 512), 2 * 4);
  EXPECT_EQ(scale_count<Blk128>(1, 513), 1 * 8);
  EXPECT_EQ(scale_index<Blk128>(127, 127, 300, 300), 0);
  EXPECT_EQ(scale_index<Blk128>(127, 128, 300, 300), 1);
  EXPECT_EQ(scale_index<Blk128>(128, 0, 300, 300), 4);
  EXPECT_EQ(scale_index<Blk128>(299, 299, 300, 300), 10);
  EXPECT_EQ(scale_index<Blk128>(128, 512, 300, 640), 12);
}

TEST(ScaleLayout, E8M0RunsAlongTheReducedDimension) {
  EXPECT_EQ(scale_count<Mx>(5, 96), 15);
  EXPECT_EQ(scale_count<Mx>(5, 97), 20);
  EXPECT_EQ(scale_index<Mx>(0, 31, 5, 96), 0);
  EXPECT_EQ(scale_index<Mx>(0, 32, 5, 96), 1);
  EXPECT_EQ(scale_index<Mx>(4, 95, 5, 96), 14);
}

// The FP32 scale of the tensor takes the room of 16.
TEST(ScaleLayout, E4M3ScalesFollowTensorScale) {
  using Rows = PerBlock<1, 16, E4M3>;
  using Squares = PerBlock<16, 16, E4M3>;
  EXPECT_EQ(scale_count<Rows>(5, 96), 16 + 30);
  EXPECT_EQ(scale_index<Rows>(0, 15, 5, 96), 16);
  EXPECT_EQ(scale_index<Rows>(4, 95, 5, 96), 16 + 29);
  EXPECT_EQ(scale_count<Squares>(40, 80), 16 + 3 * 8);
  EXPECT_EQ(scale_index<Squares>(39, 79, 40, 80), 16 + 2 * 8 + 4);
  std::array<E4M3, 46> scales{};
  const QuantizedView<E2M1, Rows, Layout::row_major, Cpu> view(nullptr, scales.data(), 5, 96);
  set_tensor_scale_inverse(view, 0.375f);
  EXPECT_EQ(tensor_scale_inverse(view), 0.375f);
  EXPECT_EQ(scales[16], E4M3());
}

template <class Granularity>
void check_that_blocks_have_scales_of_their_own(Index block_rows, Index block_columns) {
  for (const auto& [outer, inner] : {std::array<Index, 2>{1, 1}, std::array<Index, 2>{130, 300},
                                     std::array<Index, 2>{257, 640}}) {
    std::set<Index> seen;
    for (Index r = 0; r < outer; r += block_rows) {
      for (Index c = 0; c < inner; c += block_columns) {
        const Index at = scale_index<Granularity>(r, c, outer, inner);
        EXPECT_TRUE(seen.insert(at).second) << r << ", " << c << " shares a scale";
        EXPECT_LT(at, scale_count<Granularity>(outer, inner));
        const Index last_row = std::min(r + block_rows, outer) - 1;
        const Index last_column = std::min(c + block_columns, inner) - 1;
        EXPECT_EQ(scale_index<Granularity>(last_row, last_column, outer, inner), at);
      }
    }
  }
}

TEST(ScaleLayout, EveryBlockHasItsOwnScale) {
  check_that_blocks_have_scales_of_their_own<Vec128>(1, 128);
  check_that_blocks_have_scales_of_their_own<Blk128>(128, 128);
  check_that_blocks_have_scales_of_their_own<Mx>(1, 32);
  check_that_blocks_have_scales_of_their_own<PerBlock<16, 16, E4M3>>(16, 16);
}

TEST(QuantizedView, KnowsItsMemoryAndShape) {
  std::array<E4M3, 6> data{};
  std::array<float, 1> scale{};
  const QuantizedView<E4M3, PerTensor, Layout::transposed, Cpu> view(data.data(), scale.data(), 3,
                                                                     2);
  EXPECT_EQ(view.data(), data.data());
  EXPECT_EQ(view.scale_inverses(), scale.data());
  EXPECT_EQ(view.outer(), 3);
  EXPECT_EQ(view.inner(), 2);
  EXPECT_FALSE(view.empty());
  EXPECT_TRUE((QuantizedView<E4M3, PerTensor, Layout::transposed, Cpu>{}.empty()));
}

// Formats and granularities of operands follow from the recipe.
template <class P, OperandKind Kind, class Format, class Granularity>
constexpr bool is_quantised_to = std::is_same_v<OperandFormat<P, Kind>, Format> &&
                                 std::is_same_v<OperandGranularity<P, Kind>, Granularity>;
static_assert(is_quantised_to<Fp8Recipe<Delayed>, OperandKind::input, E4M3, PerTensor>);
static_assert(is_quantised_to<Fp8Recipe<Delayed>, OperandKind::weight, E4M3, PerTensor>);
static_assert(is_quantised_to<Fp8Recipe<Delayed>, OperandKind::output_gradient, E5M2, PerTensor>);
static_assert(is_quantised_to<Fp8Recipe<Rowwise>, OperandKind::weight, E4M3, PerRow>);
static_assert(is_quantised_to<Fp8Recipe<Rowwise>, OperandKind::output_gradient, E5M2, PerRow>);
static_assert(is_quantised_to<Fp8Recipe<Blockwise>, OperandKind::input, E4M3, Vec128>);
static_assert(is_quantised_to<Fp8Recipe<Blockwise>, OperandKind::weight, E4M3, Blk128>);
static_assert(is_quantised_to<Fp8Recipe<Blockwise>, OperandKind::output_gradient, E4M3, Vec128>);
static_assert(is_quantised_to<Mxfp8, OperandKind::weight, E4M3, Mx>);

TEST(OperandMemory, TakesBothCopiesWithTheirScales) {
  using Memory = OperandMemory<Fp8Recipe<Blockwise>, OperandKind::input, Cpu>;
  Arena<Cpu> arena;
  Memory memory;
  memory.allocate_row_major(arena, MemoryKind::activations, 100, 300);
  EXPECT_EQ(arena.plan().peak, 30208u + 1280u);  // 30000 bytes and 300 scales, in runs of 256
  memory.allocate_transposed(arena, MemoryKind::activations, 100, 300);
  EXPECT_EQ(arena.plan().peak, 30208u + 1280u + 30208u + 1280u);  // 300 x 1 scales again
}

TEST(OperandMemory, TakesAScaleForEachRowOfEachCopy) {
  OperandMemory<Fp8Recipe<Rowwise>, OperandKind::input, Cpu> memory;
  Arena<Cpu> arena;
  memory.allocate_row_major(arena, MemoryKind::activations, 100, 300);
  EXPECT_EQ(arena.plan().peak, 30208u + 512u);  // 30000 bytes and 100 scales, in runs of 256
  memory.allocate_transposed(arena, MemoryKind::activations, 100, 300);
  EXPECT_EQ(arena.plan().peak, 30208u + 512u + 30208u + 1280u);  // 300 scales
}

TEST(OperandMemory, OperandHasRequestedCopies) {
  OperandMemory<Fp8Recipe<Delayed>, OperandKind::input, Cpu> memory;
  std::array<E4M3, 6> row_major{};
  std::array<E4M3, 6> transposed{};
  memory.row_major = row_major.data();
  memory.transposed = transposed.data();
  OperandScaling slot{};
  const auto both = memory.operand(2, 3, &slot, true, {true, true});
  EXPECT_EQ(both.row_major.outer(), 2);
  EXPECT_EQ(both.row_major.inner(), 3);
  EXPECT_EQ(both.transposed.outer(), 3);
  EXPECT_EQ(both.transposed.inner(), 2);
  EXPECT_EQ(both.row_major.scale_inverses(), &slot.scale_inverse);
  EXPECT_EQ(both.transposed.scale_inverses(), &slot.scale_inverse);
  EXPECT_TRUE(both.record);
  const auto one = memory.operand(2, 3, &slot, false, {false, true});
  EXPECT_TRUE(one.row_major.empty());
  EXPECT_FALSE(one.transposed.empty());
  EXPECT_FALSE(one.record);
}

// cuBLASLt reads the inverse of a scale where it lies: its address must be a multiple of 16.
static_assert(alignof(OperandScale) % 16 == 0 && offsetof(OperandScale, scale_inverse) == 0);

}  // namespace quantized_view_test
