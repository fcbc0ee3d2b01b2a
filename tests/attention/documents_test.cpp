// Attention within documents on the Cpu device: each has the bits that it has alone.
#include <octavo/attention/attention.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "support/matrix.hpp"

namespace attention_documents_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr HeadLayout heads{4, 2, 16};
constexpr Index out_columns = 64;

template <class T>
struct Results {
  Matrix<T> output, gradient;
  Matrix<float> log_sum_exp;
};

/// A forward and a backward.
/// @param begins  of documents; the shape says how many there are at most
template <class T>
Results<T> attend(const BatchShape& batch, const std::vector<Index>& begins, Matrix<T> qkv,
                  const Matrix<T>& output_gradient, int threads = 2) {
  const AttentionShape shape{batch.sequences, batch.tokens, heads, batch.most_documents};
  std::vector<std::int32_t> tables(static_cast<std::size_t>(document_table_elements(batch)));
  if (!tables.empty()) write_document_tables(begins, 0, batch, tables);
  const auto documents = documents_over<Cpu>(tables.data(), batch);
  Results<T> results{Matrix<T>(batch.rows(), out_columns, T(77.0f)),
                     Matrix<T>(batch.rows(), heads.columns(), T(77.0f)),
                     Matrix<float>(1, batch.rows() * heads.heads)};
  support::ContextWithWorkspace place(threads);
  place.bind(attention_workspace(shape, place.context));
  (void)attention_forward(shape, qkv.view(), documents, results.output.view(),
                          results.log_sum_exp.flat(), place.context);
  (void)attention_backward<T, Cpu>(shape, qkv.input(), documents, results.output.view(),
                                   output_gradient.input(), results.log_sum_exp.flat(),
                                   results.gradient.view(), place.context);
  return results;
}

template <class T>
Matrix<T> some_rows(const Matrix<T>& matrix, Index first, Index count) {
  Matrix<T> part(count, matrix.columns);
  for (Index r = 0; r < count; ++r) {
    for (Index c = 0; c < matrix.columns; ++c)
      part.elements[static_cast<std::size_t>(r * matrix.columns + c)] =
          matrix.elements[static_cast<std::size_t>((first + r) * matrix.columns + c)];
  }
  return part;
}

template <class T>
void expect_each_document_as_alone(const BatchShape& batch, const std::vector<Index>& begins) {
  const auto qkv = random_matrix<T>(batch.rows(), heads.columns(), 1);
  const auto output_gradient = random_matrix<T>(batch.rows(), out_columns, 2);
  const Results<T> all = attend(batch, begins, qkv, output_gradient);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const Index first = begins[i];
    const Index end = i + 1 < begins.size() ? begins[i + 1] : batch.rows();
    SCOPED_TRACE(testing::Message() << "rows " << first << " to " << end);
    const Index count = end - first;
    const Results<T> alone = attend<T>({1, count}, {}, some_rows(qkv, first, count),
                                       some_rows(output_gradient, first, count));
    EXPECT_EQ(some_rows(all.output, first, count).elements, alone.output.elements);
    EXPECT_EQ(some_rows(all.gradient, first, count).elements, alone.gradient.elements);
    const Index sequence = first / batch.tokens;
    for (Index head = 0; head < heads.heads; ++head) {
      for (Index t = 0; t < count; ++t) {
        const Index place =
            (sequence * heads.heads + head) * batch.tokens + first % batch.tokens + t;
        ASSERT_EQ(all.log_sum_exp.elements[static_cast<std::size_t>(place)],
                  alone.log_sum_exp.elements[static_cast<std::size_t>(head * count + t)])
            << "head " << head << ", token " << t;
      }
    }
  }
}

// Documents of one token, of a block of 64 queries, and of more and less; in one sequence and in
// three, with as many documents as are allowed and with fewer.
TEST(AttentionDocuments, AreBitwiseEqualToSeparateRuns) {
  expect_each_document_as_alone<float>({1, 200, 5}, {0, 1, 65, 66, 130});
  expect_each_document_as_alone<Bf16>({1, 200, 5}, {0, 1, 65, 66, 130});
  expect_each_document_as_alone<float>({3, 70, 9}, {0, 64, 70, 140, 141, 209});
  expect_each_document_as_alone<Bf16>({3, 70, 210}, {0, 64, 70, 140, 141, 209});
}

TEST(AttentionDocuments, ManyAreBitwiseEqualToSeparateRuns) {
  std::vector<Index> begins;
  for (Index i = 0; i < 64; ++i) begins.push_back(3 * i);
  expect_each_document_as_alone<float>({1, 200, 64}, begins);
}

TEST(AttentionDocuments, WholeSequencesAreBitwiseEqualToNoDocuments) {
  const auto qkv = random_matrix<Bf16>(210, heads.columns(), 3);
  const auto output_gradient = random_matrix<Bf16>(210, out_columns, 4);
  const auto plain = attend<Bf16>({3, 70}, {}, qkv, output_gradient);
  const auto whole = attend<Bf16>({3, 70, 8}, {}, qkv, output_gradient);
  EXPECT_EQ(whole.output.elements, plain.output.elements);
  EXPECT_EQ(whole.gradient.elements, plain.gradient.elements);
  EXPECT_EQ(whole.log_sum_exp.elements, plain.log_sum_exp.elements);
}

TEST(AttentionDocuments, DoNotDependOnTheNumberOfThreads) {
  const auto qkv = random_matrix<Bf16>(210, heads.columns(), 5);
  const auto output_gradient = random_matrix<Bf16>(210, out_columns, 6);
  const auto one = attend<Bf16>({3, 70, 8}, {9, 72, 199}, qkv, output_gradient, 1);
  const auto several = attend<Bf16>({3, 70, 8}, {9, 72, 199}, qkv, output_gradient, 4);
  EXPECT_EQ(several.output.elements, one.output.elements);
  EXPECT_EQ(several.gradient.elements, one.gradient.elements);
}

TEST(AttentionDocuments, RejectTablesOfOtherShape) {
  const BatchShape batch{1, 8, 3};
  std::vector<std::int32_t> tables(static_cast<std::size_t>(document_table_elements(batch)));
  write_document_tables({}, 0, batch, tables);
  Matrix<float> qkv(8, heads.columns());
  Matrix<float> output(8, out_columns);
  Matrix<float> log_sum_exp(1, 32);
  const auto forward = [&](Index most, const Documents<Cpu>& documents) {
    const AttentionShape shape{1, 8, heads, most};
    support::ContextWithWorkspace place;
    place.bind(attention_workspace(shape, place.context));
    (void)attention_forward(shape, qkv.view(), documents, output.view(), log_sum_exp.flat(),
                            place.context);
  };
  const auto documents = documents_over<Cpu>(tables.data(), batch);
  EXPECT_NO_THROW(forward(3, documents));
  EXPECT_THROW(forward(0, documents), ShapeError);
  EXPECT_THROW(forward(3, {}), ShapeError);
  EXPECT_THROW(forward(4, documents), ShapeError);
  EXPECT_THROW(forward(2, documents_over<Cpu>(tables.data(), {1, 7, 2})), ShapeError);
}

}  // namespace attention_documents_test
