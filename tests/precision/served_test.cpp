#include <octavo/precision/precision.hpp>

#include <gtest/gtest.h>

#include <string>

namespace served_test {

using namespace octavo;

/// What a GPU of this compute capability is refused with; empty: it is not.
template <class Precision>
std::string refusal(int capability) {
  try {
    require_precision_served<Precision>(1, "NVIDIA Test", capability);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

using Edges = Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>;
using BlocksInside = Layerwise<First<1, Fp8Recipe<Delayed>>, Bf16, Head<Fp8Recipe<Blockwise>>>;

TEST(RequirePrecisionServed, AcceptsGpusThatMultiplyTheRecipe) {
  for (const int capability : {70, 80, 89, 90, 100, 120}) {
    SCOPED_TRACE(capability);
    const bool fp8 = capability >= 89;
    const bool fp32_blocks = capability == 90;
    const bool mx_blocks = capability >= 100;
    EXPECT_EQ(refusal<Fp32>(capability), "");
    EXPECT_EQ(refusal<Bf16>(capability), "");
    EXPECT_EQ(refusal<Fp8Recipe<Delayed>>(capability).empty(), fp8);
    EXPECT_EQ(refusal<Fp8Recipe<Tensorwise>>(capability).empty(), fp8);
    EXPECT_EQ(refusal<Fp8Recipe<Blockwise>>(capability).empty(), fp32_blocks);
    EXPECT_EQ(refusal<AllowFallback<Fp8Recipe<Blockwise>>>(capability).empty(), fp32_blocks);
    EXPECT_EQ(refusal<Mxfp8>(capability).empty(), mx_blocks);
    EXPECT_EQ(refusal<AllowFallback<Mxfp8>>(capability), "");  // runs in BF16 on every GPU
    EXPECT_EQ(refusal<Edges>(capability).empty(), fp8);
    EXPECT_EQ(refusal<BlocksInside>(capability).empty(), fp32_blocks);
  }
}

TEST(RequirePrecisionServed, SaysInOneLineWhatToChoose) {
  EXPECT_EQ(refusal<Fp8Recipe<Blockwise>>(100),
            "GPU 1 (NVIDIA Test) has compute capability 10.0, but cuBLASLt multiplies fp8 "
            "blockwise on 9.0 alone; choose Fp8Recipe<Tensorwise>, another GPU, or the Cpu "
            "device");
  EXPECT_EQ(refusal<Edges>(80),
            "GPU 1 (NVIDIA Test) has compute capability 8.0, but cuBLASLt multiplies fp8 delayed "
            "on 8.9 or later; choose Bf16, another GPU, or the Cpu device");
}

// Types refuse what no GPU serves that the kernels are made for.
static_assert(runs_on<Fp8Recipe<Blockwise>, Cuda> && runs_on<Fp8Recipe<Delayed>, Cuda>);
static_assert(runs_on<Bf16, Cuda> && runs_on<AllowFallback<Mxfp8>, Cuda>);
static_assert(!runs_on<Mxfp8, Cuda> && runs_on<Mxfp8, Cpu>);

}  // namespace served_test
