// expect MULTIPLE_24: Linear: the input and output features must be multiples of the precision's
// expect MULTIPLE_24: FeatureCheck<Own<24, false>, 64, 192, 24>
// expect MULTIPLE_64: Linear: the input and output features must be multiples of the precision's
// expect MULTIPLE_64: FeatureCheck<Own<64, true>, 192, 96, 64>
// expect AND_SCALING: FeatureCheck<Own<24, true>, 72, 192, 48>
// expect OWN_SCALING_128: Linear: the input and output features must be multiples of the
// expect OWN_SCALING_32: Linear: the input and output features must be multiples of the
// expect BLOCKS: its scaling's shape_multiple and the columns of its scaling's blocks
#include <octavo/octavo.hpp>

using namespace octavo;

template <int Multiple, bool Quantized>
struct Own {};

template <int Multiple, bool Quantized>
struct octavo::PrecisionTraits<Own<Multiple, Quantized>> {
  using Storage = Bf16;
  static constexpr bool is_quantized = Quantized;
  static constexpr int shape_multiple = Multiple;
  using ScalingType = Tensorwise;  // whose own multiple is 16
  using ForwardFormat = E4M3;
  using BackwardFormat = E5M2;
  static std::string name() { return "own"; }
};

/// Of one's own, which its messages must not take for the library's of the same multiple.
template <int Columns, int Multiple>
struct Blocks {
  static constexpr const char* name = "own";
  using InputGranularity = PerBlock<1, Columns>;
  using WeightGranularity = PerBlock<1, Columns>;
  static constexpr int shape_multiple = Multiple;
};

#if defined(OCTAVO_COMPILE_FAIL_MULTIPLE_24)
Linear<Own<24, false>, 64, 192, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_MULTIPLE_64)
Linear<Own<64, true>, 192, 96, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_AND_SCALING)
Linear<Own<24, true>, 72, 192, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_OWN_SCALING_128)
Linear<Fp8Recipe<Blocks<64, 128>>, 64, 128, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_OWN_SCALING_32)
Linear<Fp8Recipe<Blocks<32, 32>>, 48, 64, Bf16, Cpu> layer;
#elif defined(OCTAVO_COMPILE_FAIL_BLOCKS)
Linear<Fp8Recipe<Blocks<32, 16>>, 48, 64, Bf16, Cpu> layer;
#else
Linear<Fp8Recipe<Blocks<64, 128>>, 256, 128, Bf16, Cpu> layer_of_128;
Linear<Fp8Recipe<Blocks<32, 16>>, 96, 64, Bf16, Cpu> layer_of_blocks;
Linear<Own<24, false>, 72, 192, Bf16, Cpu> layer;
Linear<Own<64, true>, 192, 128, Bf16, Cpu> quantized_layer;
Linear<Own<24, true>, 48, 192, Bf16, Cpu> layer_of_both;
Linear<AllowFallback<Own<64, true>>, 96, 40, Bf16, Cpu> layer_that_falls_back;
#endif
