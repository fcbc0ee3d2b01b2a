#include <train_llama/manifest_summary.hpp>

#include <gtest/gtest.h>

#include "support/small_model.hpp"

namespace manifest_summary_test {

using namespace octavo;

constexpr LlamaConfig with_biases = [] {
  LlamaConfig config = support::small;
  config.qkv_bias = true;
  return config;
}();

template <LlamaConfig Config, class Precision>
bool rounds_biased_keys() {
  Context<Cpu> context(1);
  const ModelSession<Llama<Config, Precision, Cpu>> session(support::small_options(), context);
  return trainer::rounds_biased_keys(session.manifest());
}

TEST(ManifestSummary, RoundsBiasedKeysOnlyInEightBits) {
  using EightBit = Layerwise<Bf16, ForAttention<EightBitForward>>;
  EXPECT_TRUE((rounds_biased_keys<with_biases, EightBit>()));
  EXPECT_FALSE((rounds_biased_keys<support::small, EightBit>()));
  EXPECT_FALSE((rounds_biased_keys<with_biases, Bf16>()));
}

}  // namespace manifest_summary_test
