// expect STORAGE: PrecisionTraits: Storage, the format of weights and activations between GEMMs
// expect IS_QUANTIZED: PrecisionTraits: is_quantized must define whether GEMM operands
// expect SHAPE_MULTIPLE: PrecisionTraits: shape_multiple, of which a layer's features must be
// expect NAME: PrecisionTraits: name() must return the name that manifests print
// expect SCALING_TYPE: PrecisionTraits: ScalingType of a policy that quantises must be a scaling
// expect FORWARD_FORMAT: PrecisionTraits: ForwardFormat, of a quantised policy's inputs and weights
// expect BACKWARD_FORMAT: PrecisionTraits: BackwardFormat, of a quantised policy's gradients
// expect ODD_STORAGE: must be Bf16 or Fp32; add `using Storage = Bf16;`
// expect ODD_MULTIPLE: at least 1; add `static constexpr int shape_multiple = 16;`
// expect ODD_SCALING: or a type with the members required by the concept Scaling
// expect MIXED_SCALING: InputGranularity and WeightGranularity are incompatible
// expect ODD_FORWARD: must be E4M3; add `using ForwardFormat = E4M3;`
// expect ODD_BACKWARD: must be E4M3 or E5M2; add `using BackwardFormat = E5M2;`
#include <octavo/octavo.hpp>

using namespace octavo;

struct Own {};

struct Mixed {
  static constexpr const char* name = "mixed";
  using InputGranularity = PerTensor;
  using WeightGranularity = PerBlock<64, 64>;
  static constexpr int shape_multiple = 64;
};

// Each case leaves one member out, or gives it what cannot be.
template <>
struct octavo::PrecisionTraits<Own> {
#if defined(OCTAVO_COMPILE_FAIL_ODD_STORAGE)
  using Storage = E4M3;
#elif !defined(OCTAVO_COMPILE_FAIL_STORAGE)
  using Storage = Bf16;
#endif
#if !defined(OCTAVO_COMPILE_FAIL_IS_QUANTIZED)
  static constexpr bool is_quantized = true;
#endif
#if defined(OCTAVO_COMPILE_FAIL_ODD_MULTIPLE)
  static constexpr int shape_multiple = 0;
#elif !defined(OCTAVO_COMPILE_FAIL_SHAPE_MULTIPLE)
  static constexpr int shape_multiple = 16;
#endif
#if defined(OCTAVO_COMPILE_FAIL_ODD_SCALING)
  using ScalingType = PerTensor;
#elif defined(OCTAVO_COMPILE_FAIL_MIXED_SCALING)
  using ScalingType = Mixed;
#elif !defined(OCTAVO_COMPILE_FAIL_SCALING_TYPE)
  using ScalingType = Tensorwise;
#endif
#if defined(OCTAVO_COMPILE_FAIL_ODD_FORWARD)
  using ForwardFormat = E5M2;
#elif !defined(OCTAVO_COMPILE_FAIL_FORWARD_FORMAT)
  using ForwardFormat = E4M3;
#endif
#if defined(OCTAVO_COMPILE_FAIL_ODD_BACKWARD)
  using BackwardFormat = E2M1;
#elif !defined(OCTAVO_COMPILE_FAIL_BACKWARD_FORMAT)
  using BackwardFormat = E5M2;
#endif
#if !defined(OCTAVO_COMPILE_FAIL_NAME)
  static std::string name() { return "own"; }
#endif
};

Linear<Own, 64, 64, Bf16, Cpu> layer;
