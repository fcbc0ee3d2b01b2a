// expect: PerBlock: a block must have 16, 32, 64 or 128 columns
// expect ROWS: PerBlock: a block must have 1 row or be square
// expect SCALE: PerBlock: scales must be float, or E8M0 for blocks of 1 row
#include <octavo/octavo.hpp>

using namespace octavo;

struct Own {
  static constexpr const char* name = "own";
#if defined(OCTAVO_COMPILE_FAIL_ROWS)
  using InputGranularity = PerBlock<1, 64>;
  using WeightGranularity = PerBlock<2, 64>;
#elif defined(OCTAVO_COMPILE_FAIL_SCALE)
  using InputGranularity = PerBlock<1, 64, double>;
  using WeightGranularity = InputGranularity;
#elif defined(OCTAVO_COMPILE_FAIL_CONTROL)
  using InputGranularity = PerBlock<1, 32>;
  using WeightGranularity = InputGranularity;
#else
  using InputGranularity = PerBlock<1, 48>;
  using WeightGranularity = InputGranularity;
#endif
  static constexpr int shape_multiple = 16;
};

void train(const SessionOptions& options) {
  Context<Cpu> context;
  ModelSession<Llama<llama_tiny, Fp8Recipe<Own>, Cpu>> session(options, context);
}
