// expect: Fp8Recipe: the first argument must be a scaling: Delayed, Tensorwise, Rowwise
#include <octavo/octavo.hpp>

struct Mixed {
  static constexpr const char* name = "mixed";
  using InputGranularity = octavo::PerRow;
#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
  using WeightGranularity = octavo::PerRow;
#else
  using WeightGranularity = octavo::PerBlock<128, 128>;
#endif
  static constexpr int shape_multiple = 128;
};

octavo::Fp8Recipe<Mixed> recipe;
