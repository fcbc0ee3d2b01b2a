// Sliding windows and the scale of scores on the Cpu device, against the formula in FP64.
#include <octavo/attention/cached_attention.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attention/formula.hpp"
#include "support/matrix.hpp"

namespace window_test {

using namespace octavo;
using namespace attention_formula;
using support::bytes_of;
using support::Matrix;

constexpr HeadLayout heads{4, 2, 8};

template <class T>
Results<T> attend(const AttentionShape& shape, const Inputs<T>& inputs,
                  const std::vector<Index>& begins = {}) {
  const BatchShape batch{shape.sequences, shape.tokens, shape.most_documents};
  std::vector<std::int32_t> tables(static_cast<std::size_t>(document_table_elements(batch)));
  if (!tables.empty()) write_document_tables(begins, 0, batch, tables);
  const auto documents = documents_over<Cpu>(tables.data(), batch);
  const Index columns = shape.heads.columns();
  const Index out_columns = shape.heads.heads * shape.heads.head_dim;
  const Index rows = shape.rows();
  const Index statistics = rows * shape.heads.heads;
  Results<T> results{std::vector<T>(inputs.output_gradient.size(), T(77.0f)),
                     std::vector<T>(inputs.qkv.size(), T(77.0f)),
                     std::vector<float>(at(statistics))};
  support::ContextWithWorkspace place(2);
  place.bind(attention_workspace(shape, place.context));
  std::vector<T> values = inputs.qkv;
  const TensorView<T, 2, Cpu> qkv{values.data(), {rows, columns}};
  const TensorView<const T, 2, Cpu> d_output{inputs.output_gradient.data(), {rows, out_columns}};
  const TensorView<T, 2, Cpu> output{results.output.data(), {rows, out_columns}};
  const TensorView<float, 1, Cpu> log_sum_exp{results.log_sum_exp.data(), {statistics}};
  (void)attention_forward(shape, qkv, documents, output, log_sum_exp, place.context);
  (void)attention_backward<T, Cpu>(shape, qkv, documents, output, d_output, log_sum_exp,
                                   {results.qkv_gradient.data(), {rows, columns}}, place.context);
  return results;
}

/// Compares with the formula, whose log-sum-exps are [rows, heads] if there are documents.
template <class T>
void expect_the_formula(const AttentionShape& shape, const std::vector<Index>& begins,
                        Tolerance tolerance) {
  SCOPED_TRACE(message(shape.sequences, " x ", shape.tokens, ", window ", shape.options.window,
                       ", scale ", shape.options.scale, ", ", begins.size(), " documents"));
  const auto inputs = random_inputs<T>(shape, 1);
  const References expected = formula(shape, inputs, begins);
  const Results<T> actual = attend(shape, inputs, begins);
  expect_close("output", actual.output, expected.output, tolerance);
  expect_close("dqkv", actual.qkv_gradient, expected.qkv_gradient, tolerance);
  if (shape.most_documents == 0) {
    expect_close("log_sum_exp", actual.log_sum_exp, expected.log_sum_exp, log_sum_exp_tolerance);
  }
}

AttentionShape windowed(AttentionShape shape, Index window, float scale = 0.0f) {
  shape.options = {window, scale};
  return shape;
}

class AttentionWindow : public testing::TestWithParam<Index> {};

// Lengths within a block of 64 queries, at its edge and beyond; 600 keys are more than a product
// sums at once.
TEST_P(AttentionWindow, MatchesFormula) {
  for (const Index tokens : {1, 5, 64, 130, 600}) {
    const AttentionShape shape = windowed({1, tokens, heads}, GetParam());
    expect_the_formula<float>(shape, {}, fp32_tolerance);
    expect_the_formula<Bf16>(shape, {}, bf16_tolerance);
  }
  expect_the_formula<float>(windowed({3, 70, {6, 1, 10}}, GetParam()), {}, fp32_tolerance);
  expect_the_formula<float>(windowed({1, 90, {2, 1, 256}}, GetParam()), {}, fp32_tolerance);
}

TEST_P(AttentionWindow, MatchesFormulaForDocuments) {
  expect_the_formula<float>(windowed({1, 200, heads, 5}, GetParam()), {0, 1, 65, 66, 130},
                            fp32_tolerance);
  expect_the_formula<Bf16>(windowed({3, 70, heads, 9}, GetParam()), {0, 64, 70, 140, 141, 209},
                           bf16_tolerance);
  expect_the_formula<float>(windowed({1, 700, heads, 3}, GetParam()), {0, 33}, fp32_tolerance);
}

INSTANTIATE_TEST_SUITE_P(Windows, AttentionWindow, testing::Values(1, 2, 7, 64, 65, 100, 300),
                         testing::PrintToStringParamName());

TEST(AttentionWindows, FullLengthWindowIsBitwiseEqualToNoWindow) {
  for (const Index tokens : {1, 64, 130, 600}) {
    const AttentionShape shape{1, tokens, heads};
    const auto inputs = random_inputs<Bf16>(shape, 2);
    const Results<Bf16> none = attend(shape, inputs);
    for (const Index window : {tokens, tokens + 1, std::numeric_limits<Index>::max()}) {
      EXPECT_TRUE(attend(windowed(shape, window), inputs) == none) << tokens << ' ' << window;
    }
    if (tokens == 1) continue;
    EXPECT_FALSE(attend(windowed(shape, tokens - 1), inputs) == none) << tokens;
  }
}

TEST(AttentionScale, MatchesFormula) {
  for (const float scale : {0.0625f, 0.3f, 1.0f}) {
    expect_the_formula<float>(windowed({2, 70, heads}, 0, scale), {}, fp32_tolerance);
    expect_the_formula<Bf16>(windowed({1, 130, heads, 2}, 40, scale), {0, 77}, bf16_tolerance);
  }
}

/// The outputs of rows that are appended to a cache piece by piece.
template <class T>
std::vector<T> decode(const AttentionShape& shape, std::vector<T> qkv,
                      const std::vector<Index>& pieces) {
  const Index kv_columns = shape.heads.kv_heads * shape.heads.head_dim;
  const Index out_columns = shape.heads.heads * shape.heads.head_dim;
  const Index capacity = shape.tokens + 3;
  Matrix<T> keys(capacity, kv_columns, T(std::numeric_limits<float>::quiet_NaN()));
  Matrix<T> values(keys);
  const KeyValueCache<T, Cpu> cache{keys.view(), values.view()};
  std::vector<std::int32_t> positions(at(shape.tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<T> output(at(shape.tokens * out_columns), T(77.0f));
  Index first = 0;
  for (const Index rows : pieces) {
    support::ContextWithWorkspace place(2);
    place.bind(cached_attention_workspace(shape.heads, rows, capacity, place.context));
    const TensorView<T, 2, Cpu> piece{qkv.data() + first * shape.heads.columns(),
                                      {rows, shape.heads.columns()}};
    const TensorView<const std::int32_t, 1, Cpu> places{positions.data() + first, {rows}};
    append_to_cache(piece, shape.heads, {}, {}, places, cache, place.context);
    cached_attention<T, Cpu>(piece, shape.heads, shape.options, places, cache,
                             {output.data() + first * out_columns, {rows, out_columns}},
                             place.context);
    first += rows;
  }
  return output;
}

TEST(CachedAttentionWindow, PiecesAreBitwiseEqualToWholeSequence) {
  const std::vector<std::vector<Index>> cuts{
      {1, 1, 1, 1}, {7, 1, 9, 1}, {65, 1, 66, 1, 3}, {300, 1, 1, 270, 1}};
  for (const Index window : {1, 3, 64, 70, 200, 280}) {
    for (const auto& pieces : cuts) {
      const Index tokens = std::accumulate(pieces.begin(), pieces.end(), Index{0});
      const AttentionShape shape = windowed({1, tokens, heads}, window, 0.5f);
      SCOPED_TRACE(message(tokens, " tokens, window ", window));
      const auto inputs = random_inputs<Bf16>(shape, 3);
      const auto exact = random_inputs<float>(shape, 3);
      EXPECT_EQ(bytes_of(decode(shape, inputs.qkv, pieces)),
                bytes_of(attend(shape, inputs).output));
      EXPECT_EQ(bytes_of(decode(shape, exact.qkv, pieces)), bytes_of(attend(shape, exact).output));
    }
  }
}

TEST(AttentionOptionsErrors, NameInvalidOption) {
  const auto message_of = [](const AttentionOptions& options) -> std::string {
    AttentionShape shape{1, 4, heads};
    shape.options = options;
    try {
      (void)attend(shape, random_inputs<float>(shape, 4));
    } catch (const ShapeError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of({4, 0.5f}), "");
  EXPECT_EQ(message_of({-1, 0.0f}),
            "attention_forward: window must not be negative, but is -1; 0 means no limit");
  EXPECT_EQ(message_of({0, -2.0f}),
            "attention_forward: scale must be positive, but is -2; 0 means 1 / sqrt(head_dim)");
  EXPECT_NE(message_of({0, std::numeric_limits<float>::infinity()}), "");
}

}  // namespace window_test
