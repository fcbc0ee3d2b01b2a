#include <octavo/precision/precision.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "support/own_scalings.hpp"

namespace precision_test {

using namespace octavo;

using Fp8 = Fp8Recipe<Delayed>;
using Current = Fp8Recipe<Tensorwise>;

template <class P, int Layer, LinearRole Role, class Expected>
constexpr bool resolves = std::is_same_v<PrecisionOf<P, Layer, 4, Role>, Expected>;

// A plain precision holds everywhere but in the head, which runs in the storage format.
static_assert(resolves<Fp8, 0, LinearRole::qkv, Fp8>);
static_assert(resolves<Fp8, 3, LinearRole::down, Fp8>);
static_assert(resolves<Fp8, 0, LinearRole::head, Bf16>);
static_assert(resolves<Mxfp8, 0, LinearRole::head, Bf16>);
static_assert(resolves<Bf16, 0, LinearRole::head, Bf16>);
static_assert(resolves<Fp32, 0, LinearRole::head, Fp32>);
static_assert(resolves<AllowFallback<Fp8>, 1, LinearRole::output, AllowFallback<Fp8>>);

// Edges.
using Edges = Layerwise<First<1, Bf16>, Fp8, Last<2, Current>>;
static_assert(resolves<Edges, 0, LinearRole::qkv, Bf16>);
static_assert(resolves<Edges, 0, LinearRole::down, Bf16>);
static_assert(resolves<Edges, 1, LinearRole::gate_up, Fp8>);
static_assert(resolves<Edges, 2, LinearRole::gate_up, Current>);
static_assert(resolves<Edges, 3, LinearRole::output, Current>);
static_assert(resolves<Edges, 0, LinearRole::head, Bf16>);
static_assert(resolves<Edges, 3, LinearRole::head, Bf16>);

// The order of the parts does not matter.
using Reordered = Layerwise<Last<2, Current>, Fp8, First<1, Bf16>>;
static_assert(resolves<Reordered, 0, LinearRole::qkv, Bf16>);
static_assert(resolves<Reordered, 3, LinearRole::qkv, Current>);

// Edges may cover all blocks where the head still runs in the base.
using Covered = Layerwise<First<3, Fp8>, Last<1, Current>, Bf16>;
static_assert(resolves<Covered, 2, LinearRole::qkv, Fp8>);
static_assert(resolves<Covered, 3, LinearRole::qkv, Current>);
static_assert(resolves<Covered, 3, LinearRole::head, Bf16>);

// The head.
using FastHead = Layerwise<Fp8, Head<Current>>;
static_assert(resolves<FastHead, 0, LinearRole::head, Current>);
static_assert(resolves<FastHead, 3, LinearRole::down, Fp8>);

// One role, but edges are stronger than roles.
using Down = Layerwise<First<1, Bf16>, For<LinearRole::down, Current>, Fp8>;
static_assert(resolves<Down, 0, LinearRole::down, Bf16>);
static_assert(resolves<Down, 1, LinearRole::down, Current>);
static_assert(resolves<Down, 1, LinearRole::gate_up, Fp8>);
static_assert(resolves<Down, 1, LinearRole::head, Bf16>);

// What is stored between GEMMs.
static_assert(std::is_same_v<StorageOf<Fp32>, float>);
static_assert(std::is_same_v<StorageOf<Bf16>, Bf16>);
static_assert(std::is_same_v<StorageOf<Mxfp8>, Bf16>);
static_assert(std::is_same_v<StorageOf<Edges>, Bf16>);

// AllowFallback asks the shape; without it the precision stays, and the layer refuses the shape.
using Blocks = Fp8Recipe<Blockwise>;
template <class P, int In, int Out>
using PrecisionForShape = PrecisionForLayer<P, In, Out, Cpu>;
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Blocks>, 256, 384>, Blocks>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Blocks>, 256, 192>, Bf16>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Blocks>, 192, 256>, Bf16>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Mxfp8>, 96, 32>, Mxfp8>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Mxfp8>, 96, 48>, Bf16>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Fp8>, 48, 16>, Fp8>);
static_assert(std::is_same_v<PrecisionForLayer<AllowFallback<Mxfp8>, 96, 32, Cuda>, Mxfp8>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Nvfp4>, 48, 16>, Nvfp4>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Nvfp4>, 40, 16>, Bf16>);
static_assert(std::is_same_v<PrecisionForLayer<AllowFallback<Nvfp4>, 48, 16, Cuda>, Nvfp4>);
static_assert(std::is_same_v<PrecisionForLayer<AllowFallback<Fp8>, 48, 16, Cuda>, Fp8>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Fp8>, 40, 16>, Bf16>);
static_assert(std::is_same_v<PrecisionForShape<Blocks, 192, 192>, Blocks>);

// Which precisions quantise, and to what.
static_assert(QuantizedPrecision<Fp8> && QuantizedPrecision<Mxfp8>);
static_assert(!QuantizedPrecision<Bf16> && !QuantizedPrecision<Fp32>);
static_assert(LinearPrecision<Bf16> && !LinearPrecision<int>);
static_assert(std::is_same_v<PrecisionTraits<Fp8>::ForwardFormat, E4M3>);
static_assert(std::is_same_v<PrecisionTraits<Fp8>::BackwardFormat, E5M2>);
static_assert(std::is_same_v<PrecisionTraits<Blocks>::BackwardFormat, E4M3>);
static_assert(std::is_same_v<PrecisionTraits<Fp8Recipe<Rowwise>>::BackwardFormat, E5M2>);
static_assert(std::is_same_v<PrecisionTraits<Mxfp8>::BackwardFormat, E4M3>);
static_assert(std::is_same_v<PrecisionTraits<Fp8Recipe<Delayed, E4M3Only>>::BackwardFormat, E4M3>);

// Two levels of scales are those of E2M1, and E2M1 has them.
static_assert(QuantizedPrecision<Nvfp4> && runs_on<Nvfp4, Cpu> && runs_on<Nvfp4, Cuda>);
static_assert(std::is_same_v<PrecisionTraits<Nvfp4>::ForwardFormat, E2M1>);
static_assert(std::is_same_v<PrecisionTraits<Nvfp4>::BackwardFormat, E2M1>);
static_assert(!LinearPrecision<Fp8Recipe<NvScaling>>);

// Emulation changes the name alone.
using EmulatedFp8 = Emulated<Fp8Recipe<Delayed, E4M3Only>>;
static_assert(QuantizedPrecision<EmulatedFp8> && feature_multiple<EmulatedFp8>() == 16);
static_assert(std::is_same_v<PrecisionTraits<EmulatedFp8>::BackwardFormat, E4M3>);
static_assert(runs_on<EmulatedFp8, Cpu> && runs_on<EmulatedFp8, Cuda>);
static_assert(gpu_runs<EmulatedFp8>(features_of(80)) && !gpu_runs<Fp8>(features_of(80)));
static_assert(gpu_runs<Nvfp4>(features_of(100)) && gpu_runs<Nvfp4>(features_of(120)));
static_assert(!gpu_runs<Nvfp4>(features_of(90)) && gpu_runs<Emulated<Nvfp4>>(features_of(90)));
static_assert(!LinearPrecision<Emulated<Bf16>> && !LinearPrecision<Emulated<EmulatedFp8>>);
static_assert(!LinearPrecision<Emulated<AllowFallback<Fp8>>>);

// The field's defaults.
static_assert(history_length<Delayed>() == 1024 && history_length<DelayedScaling<16>>() == 16);
static_assert(history_length<Tensorwise>() == 0 && history_length<MxScaling>() == 0);
static_assert(Delayed::reduction == AmaxReduction::max && Delayed::margin == 0);
static_assert(Delayed::rounding == ScaleRounding::exact);
static_assert(Blockwise::rounding == ScaleRounding::power_of_two);
static_assert(Rowwise::rounding == ScaleRounding::exact && history_length<Rowwise>() == 0);

// Histories are of whole tensors, and one scale covers a tensor on both sides or on none.
struct BlocksWithHistory : support::BlocksOf64 {
  static constexpr int history_length = 4;
  static constexpr auto reduction = AmaxReduction::max;
  static constexpr int margin = 0;
};
struct BlocksOfWeightsAlone : support::BlocksOf64 {
  using InputGranularity = PerTensor;
};
struct BlocksOfInputsAlone : support::BlocksOf64 {
  using WeightGranularity = PerTensor;
};
static_assert(Scaling<support::BlocksOf64> && Scaling<support::FourSteps>);
static_assert(!Scaling<BlocksWithHistory>);
static_assert(!Scaling<BlocksOfWeightsAlone> && !Scaling<BlocksOfInputsAlone>);

// A policy needs all members; tests/compile_fail/policy_member.cpp holds what the compiler says.
struct Own {};
struct Nameless {};
struct Doubling {};

}  // namespace precision_test

template <>
struct octavo::PrecisionTraits<precision_test::Own> {
  using Storage = Bf16;
  static constexpr bool is_quantized = true;
  static constexpr int shape_multiple = 24;
  static std::string name() { return "own"; }
  using ScalingType = DelayedScaling<16, AmaxReduction::most_recent>;
  using ForwardFormat = E4M3;
  using BackwardFormat = E4M3;
};
template <>
struct octavo::PrecisionTraits<precision_test::Nameless> {
  using Storage = float;
  static constexpr bool is_quantized = false;
  static constexpr int shape_multiple = 1;
};
template <>
struct octavo::PrecisionTraits<precision_test::Doubling> {
  using Storage = float;
  static constexpr bool is_quantized = true;
  static constexpr int shape_multiple = 1;
  static std::string name() { return "mx, stored as fp32"; }
  using ScalingType = MxScaling;
  using ForwardFormat = E4M3;
  using BackwardFormat = E5M2;
};

namespace precision_test {

static_assert(QuantizedPrecision<Own> && QuantizedPrecision<Doubling> &&
              !LinearPrecision<Nameless>);
static_assert(LinearPrecision<AllowFallback<Own>> && !LinearPrecision<AllowFallback<Nameless>>);
static_assert(!LinearPrecision<AllowFallback<AllowFallback<Fp8>>>);
static_assert(!LinearPrecision<Fp8Recipe<int>> && !LinearPrecision<Fp8Recipe<Delayed, E5M2Only>>);

// Features are multiples of the policy's own number and of its scaling's.
static_assert(feature_multiple<Own>() == 48 && feature_multiple<Doubling>() == 32);
static_assert(feature_multiple<Fp8>() == 16 && feature_multiple<Blocks>() == 128);
static_assert(feature_multiple<Bf16>() == 1);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Own>, 96, 48>, Own>);
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Own>, 96, 72>, Bf16>);

// What falls back, falls back to what it stores; scaling decides which devices a policy runs on.
static_assert(std::is_same_v<PrecisionForShape<AllowFallback<Doubling>, 64, 48>, Fp32>);
static_assert(std::is_same_v<PrecisionForLayer<AllowFallback<Doubling>, 64, 64, Cuda>, Doubling>);
using Of64 = Fp8Recipe<support::BlocksOf64>;
static_assert(std::is_same_v<PrecisionForLayer<AllowFallback<Of64>, 64, 64, Cuda>, Bf16>);
static_assert(runs_on<Own, Cuda> && runs_on<Doubling, Cuda> && runs_on<Doubling, Cpu>);

// Types refuse only what no GPU serves.
static_assert(runs_on<Bf16, Cuda> && runs_on<Fp8, Cuda> && runs_on<Blocks, Cuda>);
static_assert(runs_on<Mxfp8, Cuda> && runs_on<Mxfp8, Cpu> && runs_on<AllowFallback<Of64>, Cuda>);
static_assert(!runs_on<Of64, Cuda> && runs_on<Of64, Cpu> &&
              runs_on<Fp8Recipe<support::FourSteps>, Cuda>);

// An own policy stands in a model as others do.
using WithOwn = Layerwise<First<1, Bf16>, Own, Head<AllowFallback<Own>>>;
static_assert(resolves<WithOwn, 1, LinearRole::down, Own>);
static_assert(resolves<WithOwn, 3, LinearRole::head, AllowFallback<Own>>);

TEST(PrecisionName, NamesEveryRecipe) {
  EXPECT_EQ(precision_name<Fp32>(), "fp32");
  EXPECT_EQ(precision_name<Bf16>(), "bf16");
  EXPECT_EQ(precision_name<Fp8>(), "fp8-delayed");
  EXPECT_EQ(precision_name<Current>(), "fp8-tensorwise");
  EXPECT_EQ(precision_name<Blocks>(), "fp8-blockwise");
  EXPECT_EQ(precision_name<Mxfp8>(), "mxfp8");
  EXPECT_EQ(precision_name<Nvfp4>(), "nvfp4");
  EXPECT_EQ(precision_name<EmulatedFp8>(), "emulated fp8-delayed (e4m3 only)");
  EXPECT_EQ(precision_name<AllowFallback<Fp8>>(), "fp8-delayed or bf16");
  EXPECT_EQ(precision_name<Own>(), "own");
  EXPECT_EQ(precision_name<AllowFallback<Doubling>>(), "mx, stored as fp32 or fp32");
}

// Recipes that compute otherwise have another name: a state says by it what it is of.
TEST(PrecisionName, NamesNonDefaultOptions) {
  using Most = DelayedScaling<16, AmaxReduction::most_recent, Margin{2}>;
  EXPECT_EQ(precision_name<Fp8Recipe<Most>>(), "fp8-delayed (history 16, most recent, margin 2)");
  using Rounded = DelayedScaling<1024, AmaxReduction::max, Margin{0}, ScaleRounding::power_of_two>;
  EXPECT_EQ(precision_name<Fp8Recipe<Rounded>>(),
            "fp8-delayed (history 1024, max, margin 0, powers of two)");
  EXPECT_EQ(precision_name<Fp8Recipe<TensorwiseScaling<ScaleRounding::power_of_two>>>(),
            "fp8-tensorwise (powers of two)");
  EXPECT_EQ(precision_name<Fp8Recipe<RowwiseScaling<ScaleRounding::power_of_two>>>(),
            "fp8-rowwise (powers of two)");
  EXPECT_EQ(precision_name<Fp8Recipe<BlockwiseScaling<ScaleRounding::exact>>>(),
            "fp8-blockwise (exact scales)");
  EXPECT_EQ(precision_name<Fp8Recipe<Rowwise>>(), "fp8-rowwise");
  EXPECT_EQ((precision_name<Fp8Recipe<Blockwise, Hybrid>>()), "fp8-blockwise (e4m3 and e5m2)");
  EXPECT_EQ((precision_name<Fp8Recipe<Rowwise, E4M3Only>>()), "fp8-rowwise (e4m3 only)");
  EXPECT_EQ((precision_name<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast>>()),
            "fp8-delayed (fast gradients)");
  EXPECT_EQ((precision_name<Fp8Recipe<Rowwise, E4M3Only, GemmAccumulation::fast>>()),
            "fp8-rowwise (e4m3 only, fast gradients)");
  using Fast = Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>;
  EXPECT_EQ(precision_name<Fast>(), "fp8-delayed (fast gradients, fast weight gradients)");
  using FastWeights = Fp8Recipe<Delayed, Hybrid, GemmAccumulation::full, GemmAccumulation::fast>;
  EXPECT_EQ(precision_name<FastWeights>(), "fp8-delayed (fast weight gradients)");
  EXPECT_EQ((precision_name<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::full>>()), "fp8-delayed");
}

TEST(PrecisionName, NamesThePartsOfLayerwise) {
  EXPECT_EQ(precision_name<Edges>(), "first 1 bf16, fp8-delayed, last 2 fp8-tensorwise");
  EXPECT_EQ(precision_name<FastHead>(), "fp8-delayed, head fp8-tensorwise");
  using WithAttention = Layerwise<ForAttention<EightBitForward>, Fp8Recipe<Delayed>>;
  EXPECT_EQ(precision_name<WithAttention>(), "fp8-delayed, attention forward 8-bit");
  EXPECT_EQ(attention_forward_of<WithAttention>, AttentionForward::eight_bit);
  EXPECT_EQ(attention_forward_of<Lora<WithAttention>>, AttentionForward::eight_bit);
  EXPECT_EQ(attention_forward_of<Inference<WithAttention>>, AttentionForward::storage);
  EXPECT_EQ(attention_forward_of<FastHead>, AttentionForward::storage);
  using Narrow = Layerwise<ForActivation<E4M3>, Fp8Recipe<Delayed>, ForAttention<EightBitForward>>;
  EXPECT_EQ(precision_name<Narrow>(),
            "fp8-delayed, activation input E4M3, attention forward 8-bit");
  EXPECT_EQ(attention_forward_of<Narrow>, AttentionForward::eight_bit);
  EXPECT_EQ(activation_input_of<Narrow>, ActivationInput::e4m3);
  EXPECT_EQ(activation_input_of<Inference<Narrow>>, ActivationInput::storage);
  EXPECT_EQ(precision_name<Inference<Narrow>>(), "fp8-delayed");
  EXPECT_EQ(precision_name<Inference<FastHead>>(), "fp8-delayed, head fp8-tensorwise");
  EXPECT_EQ(precision_name<Inference<Bf16>>(), "bf16");
  EXPECT_EQ(activation_input_of<WithAttention>, ActivationInput::storage);
  EXPECT_EQ(precision_name<Down>(), "first 1 bf16, down fp8-tensorwise, fp8-delayed");
  EXPECT_EQ(precision_name<WithOwn>(), "first 1 bf16, own, head own or bf16");
}

// One recipe has one name, by which a state is known.
TEST(PrecisionName, DoesNotDependOnTheOrderOfParts) {
  using OfDown = For<LinearRole::down, Current>;
  using OfQkv = For<LinearRole::qkv, Bf16>;
  const std::string name =
      "first 1 bf16, qkv bf16, down fp8-tensorwise, fp8-delayed, last 2 bf16, head own";
  EXPECT_EQ(
      (precision_name<Layerwise<First<1, Bf16>, OfQkv, OfDown, Fp8, Last<2, Bf16>, Head<Own>>>()),
      name);
  EXPECT_EQ(
      (precision_name<Layerwise<Head<Own>, Last<2, Bf16>, Fp8, OfDown, OfQkv, First<1, Bf16>>>()),
      name);
  EXPECT_EQ((precision_name<Layerwise<Fp8, OfDown, For<LinearRole::head, Own>, First<1, Bf16>,
                                      Last<2, Bf16>, OfQkv>>()),
            name);
}

TEST(LinearRole, HasNamesOfFields) {
  EXPECT_EQ(name_of(LinearRole::qkv), "qkv");
  EXPECT_EQ(name_of(LinearRole::output), "output");
  EXPECT_EQ(name_of(LinearRole::gate_up), "gate_up");
  EXPECT_EQ(name_of(LinearRole::down), "down");
  EXPECT_EQ(name_of(LinearRole::head), "head");
}

}  // namespace precision_test
