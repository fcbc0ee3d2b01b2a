// A name stands for one precision, and each precision for another.
#include <octavo/precision/named_precisions.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <type_traits>

namespace named_precisions_test {

using namespace octavo;

static_assert(std::is_same_v<PrecisionNamed<"fp32">, Fp32>);
static_assert(std::is_same_v<PrecisionNamed<"bf16">, Bf16>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-delayed">, Fp8Recipe<Delayed>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-delayed-fast-gradients">,
                             Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast>>);
static_assert(
    std::is_same_v<PrecisionNamed<"fp8-delayed-fast-gemms">,
                   Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-delayed-8bit-attention">,
                             Layerwise<Fp8Recipe<Delayed>, ForAttention<EightBitForward>>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-tensorwise">, Fp8Recipe<Tensorwise>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-rowwise">, Fp8Recipe<Rowwise>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-blockwise">, Fp8Recipe<Blockwise>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-delayed-bf16-edges">,
                             Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-tensorwise-bf16-edges">,
                             Layerwise<First<1, Bf16>, Fp8Recipe<Tensorwise>, Last<1, Bf16>>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-delayed-fp8-head">,
                             Layerwise<Fp8Recipe<Delayed>, Head<Fp8Recipe<Rowwise>>>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-tensorwise-fp8-head">,
                             Layerwise<Fp8Recipe<Tensorwise>, Head<Fp8Recipe<Rowwise>>>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-delayed-fast">,
                             Layerwise<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast>,
                                       Head<Fp8Recipe<Rowwise>>>>);
static_assert(std::is_same_v<
              PrecisionNamed<"fp8-delayed-fast-gemms-fp8-head">,
              Layerwise<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>,
                        Head<Fp8Recipe<Delayed>>>>);
static_assert(
    std::is_same_v<
        PrecisionNamed<"fp8-delayed-fastest">,
        Layerwise<Fp8Recipe<Delayed, Hybrid, GemmAccumulation::fast, GemmAccumulation::fast>,
                  Head<Fp8Recipe<Delayed>>, ForAttention<EightBitForward>, ForActivation<E4M3>>>);
static_assert(std::is_same_v<PrecisionNamed<"fp8-rowwise-fp8-head">,
                             Layerwise<Fp8Recipe<Rowwise>, Head<Fp8Recipe<Rowwise>>>>);
static_assert(std::is_same_v<PrecisionNamed<"mxfp8">, Mxfp8>);
static_assert(std::is_same_v<PrecisionNamed<"nvfp4">, Nvfp4>);

TEST(NamedPrecisions, AreAllDifferent) {
  std::set<std::string> names;
  std::set<std::string> types;
  named_precisions.for_each([&]<class P>(NamedPrecision<P> named) {
    names.insert(named.name);
    types.insert(precision_name<P>());
  });
  EXPECT_EQ(names.size(), named_precisions.size);
  EXPECT_EQ(types.size(), named_precisions.size);
}

}  // namespace named_precisions_test
