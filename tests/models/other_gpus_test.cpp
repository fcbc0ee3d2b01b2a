// Models that are laid out for GPUs with other features; no machine needs to have one.
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/octavo.hpp>

#include <gtest/gtest.h>

#include <string>

#include "support/small_model.hpp"

namespace other_gpus_test {

using namespace octavo;

/// The refusal of a model on a GPU; empty if it is laid out.
template <class Precision>
std::string refusal(int capability) {
  DeviceLimits<Cuda> limits;
  limits.gpu = features_of(capability);
  limits.card = "GPU 0";
  Arena<Cuda> arena;
  try {
    const Llama<support::small, Precision, Cuda> model(arena, {1, 64}, {}, limits);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ModelsOnOtherGpus, RejectsLayersWithUnsupportedRecipes) {
  using Tensorwise8 = Fp8Recipe<Tensorwise>;
  using RowwiseHead = Layerwise<Tensorwise8, Head<Fp8Recipe<Rowwise>>>;
  EXPECT_EQ(refusal<Bf16>(80), "");
  EXPECT_EQ(refusal<Tensorwise8>(80), "GPU 0 does not support FP8 GEMMs; use fp32 or bf16");
  EXPECT_EQ(refusal<Tensorwise8>(89), "");
  EXPECT_EQ(refusal<Tensorwise8>(120), "");
  EXPECT_EQ(refusal<RowwiseHead>(89).find("GPU 0 does not support fp8-rowwise"), 0u)
      << refusal<RowwiseHead>(89);
  EXPECT_EQ(refusal<RowwiseHead>(90), "");
}

}  // namespace other_gpus_test
