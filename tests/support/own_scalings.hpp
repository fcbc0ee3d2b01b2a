#pragma once

#include <octavo/precision/precision.hpp>

/// Scalings as users write them: other blocks than the library's, and no rounding.
namespace support {

struct BlocksOf64 {
  static constexpr const char* name = "blocks of 64";
  using InputGranularity = octavo::PerBlock<1, 64>;
  using WeightGranularity = octavo::PerBlock<64, 64>;
  static constexpr int shape_multiple = 64;
};

struct RowsOf16 {
  static constexpr const char* name = "rows of 16";
  using InputGranularity = octavo::PerBlock<1, 16, octavo::E8M0>;
  using WeightGranularity = octavo::PerBlock<1, 16, octavo::E8M0>;
  static constexpr int shape_multiple = 16;
};

struct FourSteps {
  static constexpr const char* name = "four steps";
  using InputGranularity = octavo::PerTensor;
  using WeightGranularity = octavo::PerTensor;
  static constexpr int shape_multiple = 16;
  static constexpr int history_length = 4;
  static constexpr auto reduction = octavo::AmaxReduction::max;
  static constexpr int margin = 0;
};

}  // namespace support
