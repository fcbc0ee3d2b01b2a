// expect: InputGranularity and WeightGranularity are incompatible
// expect ROWS: InputGranularity and WeightGranularity are incompatible
// expect SQUARE: InputGranularity and WeightGranularity are incompatible
#include <octavo/octavo.hpp>

struct Mixed {
  static constexpr const char* name = "mixed";
#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
  using InputGranularity = octavo::PerBlock<1, 64>;
  using WeightGranularity = octavo::PerBlock<64, 64>;
#elif defined(OCTAVO_COMPILE_FAIL_ROWS)
  using InputGranularity = octavo::PerRow;
  using WeightGranularity = octavo::PerBlock<128, 128>;
#elif defined(OCTAVO_COMPILE_FAIL_SQUARE)
  using InputGranularity = octavo::PerBlock<64, 64>;
  using WeightGranularity = octavo::PerBlock<1, 64>;
#else
  using InputGranularity = octavo::PerBlock<1, 128>;
  using WeightGranularity = octavo::PerBlock<64, 64>;
#endif
  static constexpr int shape_multiple = 128;
};

octavo::Fp8Recipe<Mixed> recipe;
