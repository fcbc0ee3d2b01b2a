#include <octavo/tensor/swizzled_scales.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "support/golden.hpp"

namespace swizzled_scales_test {

using namespace octavo;

/// Walks memory as cuBLAS documents it: tile after tile, of each tile 32 groups of 16 scales, of a
/// group four rows that are 32 apart, of each row four blocks.
template <class Body>
void walk(Index rows, Index blocks, const Body& body) {
  Index place = 0;
  for (Index tile_row = 0; tile_row < rows; tile_row += 128) {
    for (Index tile_block = 0; tile_block < blocks; tile_block += 4) {
      for (Index group = 0; group < 32; ++group) {
        for (Index row = tile_row + group; row < tile_row + 128; row += 32) {
          for (Index block = tile_block; block < tile_block + 4; ++block) body(row, block, place++);
        }
      }
    }
  }
  EXPECT_EQ(place, swizzled_scale_count(rows, blocks));
}

TEST(SwizzledScales, MatchCublasLayout) {
  for (const Index rows : {1, 33, 128, 129, 300}) {
    for (const Index blocks : {1, 4, 5, 12}) {
      walk(rows, blocks, [&](Index row, Index block, Index place) {
        ASSERT_EQ(swizzled_scale_index(row, block, blocks), place)
            << row << ", " << block << " of " << rows << " x " << blocks;
      });
    }
  }
}

TEST(SwizzledScales, MatchTorchao) {
  int compared = 0;
  const auto compare = [&](const std::string& name, const std::vector<double>& numbers) {
    if (!name.starts_with("swizzled:")) return;
    ++compared;
    const std::size_t by = name.find('x');
    const Index rows = std::stoi(name.substr(9, by - 9));
    const Index blocks = std::stoi(name.substr(by + 1));
    std::vector<double> expected(static_cast<std::size_t>(swizzled_scale_count(rows, blocks)));
    for (Index row = 0; row < rows; ++row) {
      for (Index block = 0; block < blocks; ++block) {
        const auto place = static_cast<std::size_t>(swizzled_scale_index(row, block, blocks));
        expected[place] = static_cast<double>(1 + row * blocks + block);
      }
    }
    EXPECT_EQ(numbers, expected) << name;
  };
  reference::golden_detail::read_tensors(reference::golden_path("block_scales.golden"), compare);
  EXPECT_EQ(compared, 3);
}

}  // namespace swizzled_scales_test
