// What attention runs through on the Cuda device, and its memory, as any machine can plan it.
#include <octavo/attention/cuda/workspace.hpp>

#include <gtest/gtest.h>

#include <string>

namespace attention_choice_test {

using namespace octavo;

constexpr AttentionShape llama_8b{1, 8192, {32, 8, 128}};
constexpr std::size_t gib = std::size_t{1} << 30;

DeviceLimits<Cuda> limits_with(bool cudnn, bool deterministic) {
  DeviceLimits<Cuda> limits;
  limits.cudnn = cudnn;
  limits.deterministic = deterministic;
  return limits;
}

/// cuDNN's answer about a shape, as if it was asked.
CudnnSupport& answer(DeviceLimits<Cuda>& limits, const AttentionShape& shape = llama_8b) {
  for (auto& [key, known] : limits.cudnn_support) {
    if (key == detail::cudnn_key(shape)) return known;
  }
  return limits.cudnn_support.emplace_back(detail::cudnn_key(shape), CudnnSupport{}).second;
}

template <class T = Bf16>
std::string runs(const AttentionShape& shape, const DeviceLimits<Cuda>& limits) {
  return std::string(attention_implementation<T>(AttentionPass::forward, shape, limits)) + ", " +
         attention_implementation<T>(AttentionPass::backward, shape, limits);
}

TEST(AttentionChoice, FollowsLibraryFormatAndLength) {
  EXPECT_EQ(runs(llama_8b, limits_with(true, false)), "cudnn, cudnn");
  EXPECT_EQ(runs(llama_8b, limits_with(false, false)), "octavo, octavo");
  EXPECT_EQ(runs<float>(llama_8b, limits_with(true, false)), "octavo, octavo");
  for (const Index tokens : {64, 65, 100, 1000, 4097, 8191}) {
    const AttentionShape shape{1, tokens, {32, 8, 128}};
    EXPECT_EQ(runs(shape, limits_with(true, false)), "cudnn, cudnn") << tokens;
    EXPECT_EQ(runs(shape, limits_with(true, true)), "cudnn, cudnn deterministic") << tokens;
  }
  for (const Index tokens : {1, 63}) {
    EXPECT_EQ(runs({1, tokens, {32, 8, 128}}, limits_with(true, false)), "octavo, octavo")
        << tokens;
  }
}

TEST(AttentionChoice, OneTimeShapeUsesOwnKernels) {
  AttentionShape shape{1, 128, {32, 8, 128}};
  shape.once = true;
  EXPECT_EQ(runs(shape, limits_with(true, false)), "octavo, octavo");
  EXPECT_EQ(attention_fallback(AttentionPass::forward, shape, limits_with(true, false)), "");
}

TEST(AttentionChoice, DocumentsUseSameLibraryAsSequences) {
  const AttentionShape documents{1, 8192, {32, 8, 128}, 16};
  EXPECT_EQ(runs(documents, limits_with(true, false)), "cudnn, cudnn");
  EXPECT_EQ(runs(documents, limits_with(false, false)), "octavo, octavo");
  // The gradients of all scores, as if each of 16 documents had 8192 tokens, are 64 GiB.
  EXPECT_EQ(runs(documents, limits_with(true, true)), "cudnn, octavo");
}

// An FP32 gradient of queries as wide as fused rows, gradients of keys and values as wide as a
// fused row for each of the 4 heads of a group, and softmax sums; beside them four tables.
TEST(AttentionChoice, EstimatesWorkspaceOfDocuments) {
  const AttentionShape documents{1, 8192, {32, 8, 128}, 16};
  const std::size_t rows = std::size_t{8192} * (32 * 4 + 6144 * 4 * (1 + 2 * 4));
  const std::size_t tables = 4 * 256;
  const std::size_t workspace = attention_workspace(documents, limits_with(true, false));
  EXPECT_GE(workspace, rows + tables);
  EXPECT_LE(workspace, rows + tables + gib / 2);
  EXPECT_EQ(attention_workspace(documents, limits_with(false, false)), std::size_t{8192} * 32 * 4);
  DeviceLimits<Cuda> asked = limits_with(true, false);
  answer(asked) = CudnnSupport{gib, 2 * gib, "", ""};
  EXPECT_EQ(attention_workspace(documents, asked), 2 * gib + tables);
  // Heads that cuDNN lays out a document at a time.
  const AttentionShape narrow{1, 8192, {32, 8, 24}, 16};
  EXPECT_GE(attention_workspace(narrow, limits_with(true, false)),
            std::size_t{16} * 8192 * 32 * (4 + 24 * 8));
}

TEST(AttentionChoice, RefusedShapeFallsBackWithReason) {
  DeviceLimits<Cuda> limits = limits_with(true, false);
  answer(limits) = {};
  answer(limits).forward_refusal = "too odd";
  EXPECT_EQ(runs(llama_8b, limits), "octavo, octavo");
  EXPECT_EQ(attention_fallback(AttentionPass::forward, llama_8b, limits), "too odd");
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits), "too odd");
  EXPECT_EQ(attention_workspace(llama_8b, limits), std::size_t{8192} * 32 * 4);
  answer(limits) = CudnnSupport{2 * gib, 0, "no backward", ""};
  EXPECT_EQ(runs(llama_8b, limits), "cudnn, octavo");
  EXPECT_EQ(attention_fallback(AttentionPass::forward, llama_8b, limits), "");
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits), "no backward");
}

// Layers of one model may have different windows.
TEST(AttentionChoice, EachWindowHasItsOwnCudnnAnswer) {
  AttentionShape local = llama_8b;
  local.options.window = 1024;
  AttentionShape whole = llama_8b;
  whole.options.window = 8192;  // as long as a sequence: hides nothing
  DeviceLimits<Cuda> limits = limits_with(true, false);
  answer(limits).forward = 3;
  answer(limits, local).forward_refusal = "no windows";
  EXPECT_EQ(runs(local, limits), "octavo, octavo");
  EXPECT_EQ(attention_fallback(AttentionPass::forward, local, limits), "no windows");
  EXPECT_EQ(runs(llama_8b, limits), "cudnn, cudnn");
  EXPECT_EQ(runs(whole, limits), "cudnn, cudnn");
  answer(limits) = {gib, gib, "", ""};
  answer(limits, local) = {2 * gib, 3 * gib, "", ""};
  EXPECT_EQ(attention_workspace(llama_8b, limits), gib);
  EXPECT_EQ(attention_workspace(local, limits), 3 * gib);
}

TEST(AttentionChoice, DeterministicBackwardMustFitWorkspaceLimit) {
  EXPECT_EQ(runs(llama_8b, limits_with(true, true)), "cudnn, cudnn deterministic");
  // The gradients of all scores alone have 32 · 16384² · 2 bytes: 16 GiB.
  EXPECT_EQ(runs({1, 16384, {32, 8, 128}}, limits_with(true, true)), "cudnn, octavo");
  EXPECT_EQ(runs({1, 16384, {32, 8, 128}}, limits_with(true, false)), "cudnn, cudnn");
  DeviceLimits<Cuda> limits = limits_with(true, true);
  limits.max_deterministic_workspace = 4 * gib;
  EXPECT_EQ(runs(llama_8b, limits), "cudnn, octavo");
}

TEST(AttentionChoice, CudnnAnswerOverridesEstimate) {
  constexpr std::size_t own = std::size_t{8192} * 32 * 4;
  DeviceLimits<Cuda> limits = limits_with(true, true);
  answer(limits) = {0, 0, "there is none", ""};
  EXPECT_EQ(runs(llama_8b, limits), "cudnn, octavo");
  EXPECT_EQ(attention_workspace(llama_8b, limits), own);
  answer(limits) = {0, 3 * gib + 1, "", ""};
  EXPECT_EQ(runs(llama_8b, limits), "cudnn, cudnn deterministic");
  EXPECT_EQ(attention_workspace(llama_8b, limits), 3 * gib + 1);
}

// The forward runs through cuDNN, whatever becomes of the backward.
TEST(AttentionChoice, KeepsForwardWorkspaceIfBackwardFallsBack) {
  DeviceLimits<Cuda> limits = limits_with(true, true);
  answer(limits) = {2 * gib, 0, "there is none", ""};
  EXPECT_EQ(attention_workspace(llama_8b, limits), 2 * gib);
  answer(limits) = {2 * gib, 9 * gib, "", ""};
  EXPECT_EQ(runs(llama_8b, limits), "cudnn, octavo");
  EXPECT_EQ(attention_workspace(llama_8b, limits), 2 * gib);
}

TEST(AttentionChoice, ReportsReasonOfBackwardFallback) {
  DeviceLimits<Cuda> limits = limits_with(true, true);
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits), "");
  answer(limits) = {0, 0, "there is none", ""};
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits), "there is none");
  EXPECT_EQ(attention_fallback<float>(AttentionPass::backward, llama_8b, limits), "")
      << "cuDNN is no choice in fp32";
  answer(limits) = {0, 9 * gib, "", ""};
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits),
            "cuDNN's deterministic backward needs a workspace of 9663676416 bytes, of which only "
            "8589934592 are allowed");
  limits.deterministic = false;
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits), "");
  EXPECT_EQ(attention_fallback(AttentionPass::backward, llama_8b, limits_with(false, true)), "");
}

TEST(AttentionChoice, EstimatesWorkspaceWithoutCudnnAnswer) {
  // Softmax sums and FP32 gradients of queries, keys and values, for each of 32 heads.
  const std::size_t plain = std::size_t{8192} * 32 * (4 + 128 * 8);
  EXPECT_GE(attention_workspace(llama_8b, limits_with(true, false)), plain);
  EXPECT_LE(attention_workspace(llama_8b, limits_with(true, false)), plain + gib / 2);
  const std::size_t scores = std::size_t{32} * 8192 * 8192 * 2;
  EXPECT_GE(attention_workspace(llama_8b, limits_with(true, true)), scores + plain);
  EXPECT_LE(attention_workspace(llama_8b, limits_with(true, true)), scores + plain + gib / 2);
  EXPECT_EQ(attention_workspace(llama_8b, limits_with(false, true)), std::size_t{8192} * 32 * 4);
  EXPECT_EQ(attention_workspace<float>(llama_8b, limits_with(true, true)),
            std::size_t{8192} * 32 * 4)
      << "cuDNN is no choice in fp32";
}

TEST(AttentionChoice, ThrowsForUnsupportedHeadDim) {
  EXPECT_THROW(runs({1, 64, {4, 4, 260}}, limits_with(true, false)), ConfigError);
  EXPECT_EQ(runs<float>({1, 64, {4, 4, 250}}, limits_with(true, false)), "octavo, octavo");
}

// Tiles of 128 tokens cover a sequence of 64s; keys and values that no heads share need no
// gradients for each head.
TEST(AttentionChoice, WorkspaceCoversWholeTilesAndNoMore) {
  const DeviceLimits<Cuda> limits = limits_with(true, false);
  const auto of = [&](Index tokens, Index kv_heads) {
    return attention_workspace({64, tokens, {32, kv_heads, 128}}, limits);
  };
  EXPECT_EQ(of(64, 8), of(128, 8));
  EXPECT_EQ(of(192, 8), of(256, 8));
  EXPECT_LT(of(128, 8), of(192, 8));
  const std::size_t rows = std::size_t{64} * 128 * 32;
  EXPECT_EQ(of(128, 8) - of(128, 32), rows * 128 * 4) << "in BF16, of keys and of values";
}

/// What is said of a shape that the own kernels cannot run; empty where they can.
std::string refusal(const AttentionShape& shape, bool is_bf16) {
  try {
    detail::require_own_attention(shape, is_bf16);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(AttentionChoice, NamesUnsupportedHeadDimAndLength) {
  for (const Index dim : {8, 96, 128, 136, 256})
    EXPECT_EQ(refusal({1, 64, {1, 1, dim}}, true), "") << dim;
  for (const Index dim : {100, 250, 264}) {
    const std::string text = refusal({1, 64, {1, 1, dim}}, true);
    EXPECT_EQ(text.find(message("head_dim is ", dim, ", but")), 0u) << text;
  }
  EXPECT_EQ(refusal({1, 64, {1, 1, 250}}, false), "");
  EXPECT_EQ(refusal({1, 64, {1, 1, 264}}, false).find("head_dim is 264, but"), 0u);
  // 65535 blocks of 128 tokens; of 64 in the backward of wide heads.
  EXPECT_EQ(refusal({1, 8388480, {1, 1, 64}}, true), "");
  EXPECT_NE(refusal({1, 8388481, {1, 1, 64}}, true).find("has 8388481 tokens"), std::string::npos);
  EXPECT_EQ(refusal({1, 4194240, {1, 1, 256}}, true), "");
  EXPECT_NE(refusal({1, 4194241, {1, 1, 256}}, true).find("has 4194241 tokens"), std::string::npos);
}

}  // namespace attention_choice_test
