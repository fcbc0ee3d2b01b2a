// expect: a scaling with history_length, reduction or margin must have all three
// expect MARGIN: a margin from 0 to 16
// expect BLOCKS: and be PerTensor
// expect ROUNDING: the scaling's rounding must be a ScaleRounding
#include <octavo/octavo.hpp>

struct Own {
  static constexpr const char* name = "own";
#if defined(OCTAVO_COMPILE_FAIL_BLOCKS)
  using InputGranularity = octavo::PerBlock<1, 64>;
#else
  using InputGranularity = octavo::PerTensor;
#endif
  using WeightGranularity = InputGranularity;
  static constexpr int shape_multiple = 64;
  static constexpr int history_length = 16;
  static constexpr octavo::AmaxReduction reduction = octavo::AmaxReduction::max;
#if defined(OCTAVO_COMPILE_FAIL_MARGIN)
  static constexpr int margin = 40;
#elif defined(OCTAVO_COMPILE_FAIL_ROUNDING) || defined(OCTAVO_COMPILE_FAIL_BLOCKS) || \
    defined(OCTAVO_COMPILE_FAIL_CONTROL)
  static constexpr int margin = 0;
#endif
#if defined(OCTAVO_COMPILE_FAIL_ROUNDING)
  static constexpr bool rounding = true;
#endif
};

octavo::Fp8Recipe<Own> recipe;
