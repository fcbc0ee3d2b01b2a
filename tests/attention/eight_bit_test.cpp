// The 8-bit forward of attention on the Cpu device, against its definition in FP64.
#include <octavo/octavo.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "attention/eight_bit_formula.hpp"
#include "support/matrix.hpp"

namespace eight_bit_attention_test {

using namespace octavo;
using namespace octavo::attention_formula;

using Begins = std::vector<Index>;

AttentionShape in_eight_bits(AttentionShape shape, Index window = 0, float scale = 0.0f) {
  shape.options = {window, scale, AttentionForward::eight_bit};
  return shape;
}

/// Runs both passes, of which the backward does not know the forward's format.
Results<Bf16> run(const AttentionShape& shape, Inputs<Bf16> inputs, const Begins& begins = {}) {
  support::ContextWithWorkspace place(2);
  place.bind(attention_workspace<Bf16>(shape, place.context));
  const BatchShape batch{shape.sequences, shape.tokens, shape.most_documents};
  std::vector<std::int32_t> tables(at(document_table_elements(batch)));
  if (!tables.empty()) write_document_tables(begins, 0, batch, tables);
  const auto documents = documents_over<Cpu>(tables.empty() ? nullptr : tables.data(), batch);
  const Index columns = shape.heads.columns();
  const Index out = shape.heads.heads * shape.heads.head_dim;
  Results<Bf16> results{std::vector<Bf16>(at(shape.rows() * out)),
                        std::vector<Bf16>(inputs.qkv.size()),
                        std::vector<float>(at(shape.rows() * shape.heads.heads))};
  const TensorView<Bf16, 2, Cpu> qkv{inputs.qkv.data(), {shape.rows(), columns}};
  const TensorView<Bf16, 2, Cpu> output{results.output.data(), {shape.rows(), out}};
  const TensorView<float, 1, Cpu> sums{results.log_sum_exp.data(),
                                       {shape.rows() * shape.heads.heads}};
  EXPECT_STREQ(attention_forward(shape, qkv, documents, output, sums, place.context),
               "octavo loops 8-bit");
  const TensorView<const Bf16, 2, Cpu> rounded_qkv = qkv;
  const TensorView<const Bf16, 2, Cpu> constant_output = output;
  const TensorView<const float, 1, Cpu> constant_sums = sums;
  const TensorView<const Bf16, 2, Cpu> gradient{inputs.output_gradient.data(), {shape.rows(), out}};
  const TensorView<Bf16, 2, Cpu> qkv_gradient{results.qkv_gradient.data(), {shape.rows(), columns}};
  EXPECT_STREQ(attention_backward(shape, rounded_qkv, documents, constant_output, gradient,
                                  constant_sums, qkv_gradient, place.context),
               "octavo loops");
  return results;
}

void expect_the_formula(const AttentionShape& shape, const Begins& begins = {},
                        float factor = 1.0f) {
  SCOPED_TRACE(message(shape.sequences, " x ", shape.tokens, ", head_dim ", shape.heads.head_dim,
                       ", window ", shape.options.window, ", ", begins.size(), " documents"));
  auto inputs = random_inputs<Bf16>(shape, 1);
  for (Bf16& value : inputs.qkv) value = Bf16(factor * static_cast<float>(value));
  AttentionShape oracle = shape;  // log-sum-exps are [sequences, heads, tokens] on this device
  oracle.most_documents = 0;
  const References expected = eight_bit_formula(oracle, inputs, begins);
  const Results<Bf16> actual = run(shape, inputs, begins);
  expect_close("output", actual.output, expected.output, eight_bit_tolerance);
  expect_close("log_sum_exp", actual.log_sum_exp, expected.log_sum_exp, log_sum_exp_tolerance);
}

TEST(EightBitAttention, MatchesFormula) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, {4, 4, 64}}, AttentionShape{3, 17, {4, 2, 32}},
        AttentionShape{2, 130, {4, 2, 64}}, AttentionShape{1, 300, {4, 1, 96}}}) {
    expect_the_formula(in_eight_bits(shape));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(EightBitAttention, MatchesFormulaForDocumentsAndWindows) {
  const HeadLayout heads{4, 2, 32};
  expect_the_formula(in_eight_bits({2, 130, heads, 9}), {0, 1, 64, 128, 129, 130, 194, 195});
  for (const Index window : {1, 50, 128}) {
    expect_the_formula(in_eight_bits({1, 300, heads}, window));
    expect_the_formula(in_eight_bits({1, 300, heads, 4}, window), {0, 77, 200});
  }
}

// Scales follow the inputs, so results only scale with them.
TEST(EightBitAttention, AdaptsToInputMagnitude) {
  for (const float factor : {0x1p-12f, 0x1p-4f, 20.0f}) {
    expect_the_formula(in_eight_bits({1, 200, {4, 2, 32}}, 0, 0.01f / (factor * factor)), {},
                       factor);
  }
}

// The more a row attends to a single key, the more of its gradients cancel: errors of the output's
// sum of probabilities would dominate them.
TEST(EightBitAttention, GradientsMatchRoundedOperands) {
  for (const float factor : {1.0f, 8.0f}) {
    const AttentionShape shape = in_eight_bits({1, 300, {4, 2, 64}});
    Inputs<Bf16> inputs = random_inputs<Bf16>(shape, 2);
    scale_scores(shape, factor, inputs);
    expect_close_gradients(shape, inputs, run(shape, inputs).qkv_gradient, 0.03);
  }
}

// Large scores differ by more than 1 after rounding, so probabilities of unrounded queries and keys
// would not sum to 1 with the log-sum-exp of the forward.
TEST(EightBitAttention, BackwardProbabilitiesSumToOne) {
  for (const AttentionShape& shape :
       {in_eight_bits({2, 200, {4, 2, 32}}), in_eight_bits({1, 300, {4, 1, 64}}, 50)}) {
    auto inputs = random_inputs<Bf16>(shape, 3);
    for (Bf16& value : inputs.qkv) value = Bf16(4.0f * static_cast<float>(value));
    expect_probabilities_sum_to_one(shape, inputs, run(shape, inputs).qkv_gradient);
  }
}

// The scale of values is at least 2^-40. A single token attends only to itself, so the output is
// its value.
TEST(EightBitAttention, SaturatesValuesAtLargestCodeTimes2To40) {
  constexpr Index dim = 32;
  const AttentionShape shape = in_eight_bits({1, 1, {1, 1, dim}});
  Inputs<Bf16> inputs = random_inputs<Bf16>(shape, 4);
  constexpr float largest = 448 * 0x1p40f;
  const auto output_of = [&](float value) {
    for (std::size_t i = 2 * dim; i < 3 * dim; ++i) inputs.qkv[i] = Bf16(value);
    return static_cast<float>(run(shape, inputs).output[0]);
  };
  EXPECT_EQ(output_of(largest), largest);
  EXPECT_EQ(output_of(-largest), -largest);
  EXPECT_EQ(output_of(largest * 0x1p20f), largest);
  EXPECT_EQ(output_of(-largest * 0x1p20f), -largest);
}

// Codes have no Inf, and a saturated value would look like a finite one.
TEST(EightBitAttention, NonfiniteInputsMakeOutputsNan) {
  expect_nan_from_nonfinite_inputs([](const AttentionShape& shape, const Inputs<Bf16>& inputs) {
    return run(shape, inputs).output;
  });
}

}  // namespace eight_bit_attention_test
