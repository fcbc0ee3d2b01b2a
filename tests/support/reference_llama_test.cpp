#include "reference_llama.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "golden.hpp"

namespace reference_llama_test {

using reference::Golden;

/// The reference against the results of Hugging Face transformers, one golden file each.
class ReferenceAgainstGolden : public testing::TestWithParam<std::string> {
 protected:
  std::vector<double> reference_logits() const {
    return reference::logits(golden_.config, golden_.weights, golden_.tokens, golden_.batch,
                             golden_.sequence_length);
  }

  double reference_loss() const {
    return reference::mean_cross_entropy(golden_.config, golden_.weights, golden_.tokens,
                                         golden_.targets, golden_.batch, golden_.sequence_length);
  }

  Golden golden_ = reference::read_golden(reference::golden_path(GetParam()));
};

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

TEST_P(ReferenceAgainstGolden, RopeFrequenciesAgree) {
  const std::vector<double> frequencies = reference::rope_frequencies(golden_.config);
  ASSERT_EQ(frequencies.size(), golden_.rope_frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    EXPECT_NEAR(frequencies[i], golden_.rope_frequencies[i], 3e-7 * frequencies[i]) << "pair " << i;
  }
}

// transformers computes norms, RoPE and softmax in float: about 1e-6 on logits of order 1.
TEST_P(ReferenceAgainstGolden, LogitsAgree) {
  const std::vector<double> computed = reference_logits();
  ASSERT_EQ(computed.size(), golden_.logits.size());
  ASSERT_GT(largest_magnitude(golden_.logits), 1.0);
  for (std::size_t i = 0; i < computed.size(); ++i) {
    ASSERT_NEAR(computed[i], golden_.logits[i], 5e-6) << "element " << i;
  }
}

TEST_P(ReferenceAgainstGolden, LossAgrees) { EXPECT_NEAR(reference_loss(), golden_.loss, 5e-7); }

TEST_P(ReferenceAgainstGolden, EveryGradientAgrees) {
  ASSERT_EQ(golden_.gradients.size(), golden_.weights.size());
  for (const auto& [name, gradient] : golden_.gradients) {
    ASSERT_EQ(gradient.size(), golden_.weights.at(name).size()) << name;
    const double largest = largest_magnitude(gradient);
    ASSERT_GT(largest, 1e-5) << name;
    const auto by_magnitude = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const auto steepest = static_cast<std::size_t>(
        std::max_element(gradient.begin(), gradient.end(), by_magnitude) - gradient.begin());
    for (const std::size_t index : {steepest, gradient.size() / 3}) {
      const double difference = reference::central_difference(
          golden_.config, golden_.weights, name, index, 1e-4, golden_.tokens, golden_.targets,
          golden_.batch, golden_.sequence_length);
      EXPECT_NEAR(difference, gradient[index], 1e-5 * largest) << name << " element " << index;
    }
  }
}

TEST_P(ReferenceAgainstGolden, LaterTokensChangeNoEarlierLogit) {
  const std::vector<double> before = reference_logits();
  int& last_of_first_sequence =
      golden_.tokens[static_cast<std::size_t>(golden_.sequence_length - 1)];
  last_of_first_sequence = (last_of_first_sequence + 1) % golden_.config.vocabulary;
  const std::vector<double> after = reference_logits();
  const auto vocabulary = static_cast<std::size_t>(golden_.config.vocabulary);
  const auto changed_row = static_cast<std::size_t>(golden_.sequence_length - 1);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i / vocabulary == changed_row) {
      ASSERT_NE(before[i], after[i]) << "element " << i;
    } else {
      ASSERT_EQ(before[i], after[i]) << "element " << i;
    }
  }
}

TEST_P(ReferenceAgainstGolden, ZeroFinalNormGivesLogOfVocabulary) {
  for (double& gain : golden_.weights.at("model.norm.weight")) gain = 0.0;
  EXPECT_NEAR(reference_loss(), std::log(golden_.config.vocabulary), 1e-12);
}

TEST_P(ReferenceAgainstGolden, RejectsWeightsAndTokensThatDoNotFit) {
  golden_.tokens.back() = golden_.config.vocabulary;
  EXPECT_THROW(reference_logits(), std::invalid_argument);
  golden_.tokens.back() = 0;
  golden_.targets.back() = -1;
  EXPECT_THROW(reference_loss(), std::invalid_argument);
  golden_.targets.back() = 0;
  golden_.weights.at("model.layers.0.mlp.up_proj.weight").pop_back();
  EXPECT_THROW(reference_logits(), std::invalid_argument);
  golden_.weights.erase("model.layers.0.mlp.up_proj.weight");
  EXPECT_THROW(reference_logits(), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Files, ReferenceAgainstGolden,
                         testing::Values("llama_small.golden", "qwen3_small.golden"),
                         [](const auto& parameter) {
                           return parameter.param.substr(0, parameter.param.find('.'));
                         });

// theta 500, head_dim 16, original length 32, factor 8, low 1, high 4: wavelengths up to 8 stay,
// those past 32 are divided by 8.
TEST(ReferenceRope, SmallLlamaUsesAllThreeBranches) {
  const Golden golden = reference::read_golden(reference::golden_path("llama_small.golden"));
  reference::ReferenceConfig plain = golden.config;
  plain.llama3_rope = false;
  const std::vector<double> scaled = reference::rope_frequencies(golden.config);
  const std::vector<double> unscaled = reference::rope_frequencies(plain);
  EXPECT_DOUBLE_EQ(scaled[0], 1.0);
  for (const std::size_t blended : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_LT(scaled[blended], unscaled[blended]);
    EXPECT_GT(scaled[blended], unscaled[blended] / 8.0);
  }
  for (std::size_t divided = 3; divided < 8; ++divided) {
    EXPECT_DOUBLE_EQ(scaled[divided], unscaled[divided] / 8.0);
  }
  EXPECT_GT(golden.sequence_length, golden.config.rope_original_length);
}

// With one token the softmax has one term, so q and k do not matter and the whole model is a few
// lines of arithmetic: hidden 2, x = (3, 4), every norm gain 1, epsilon 0, v and o identity,
// MLP zero, head rows (1, 0) and (0, 1).
TEST(ReferenceLlama, OneTokenModelByHand) {
  reference::ReferenceConfig config;
  config.layers = 1;
  config.hidden = config.head_dim = config.vocabulary = 2;
  config.ffn = config.heads = config.kv_heads = 1;
  config.rope_theta = 10000.0;
  const std::vector<double> identity{1.0, 0.0, 0.0, 1.0};
  const std::vector<double> ones{1.0, 1.0};
  const std::string layer = "model.layers.0.";
  const reference::Weights weights{{"model.embed_tokens.weight", {3.0, 4.0, 0.0, 0.0}},
                                   {layer + "input_layernorm.weight", ones},
                                   {layer + "self_attn.q_proj.weight", identity},
                                   {layer + "self_attn.k_proj.weight", identity},
                                   {layer + "self_attn.v_proj.weight", identity},
                                   {layer + "self_attn.o_proj.weight", identity},
                                   {layer + "post_attention_layernorm.weight", ones},
                                   {layer + "mlp.gate_proj.weight", ones},
                                   {layer + "mlp.up_proj.weight", {0.0, 0.0}},
                                   {layer + "mlp.down_proj.weight", ones},
                                   {"model.norm.weight", ones},
                                   {"lm_head.weight", identity}};
  // norm: (3, 4) / sqrt(12.5); the residual keeps the ratio 3 : 4, so the final norm repeats it.
  const std::vector<double> logits = reference::logits(config, weights, {0}, 1, 1);
  ASSERT_EQ(logits.size(), 2U);
  EXPECT_NEAR(logits[0], 0.848528137423857, 1e-14);
  EXPECT_NEAR(logits[1], 1.131370849898476, 1e-14);
  // -log(1 / (1 + exp(logits[1] - logits[0]))) = log(1 + e^0.282842712474619)
  EXPECT_NEAR(reference::mean_cross_entropy(config, weights, {0}, {0}, 1, 1), 0.8445353801692854,
              1e-14);
}

}  // namespace reference_llama_test
