#include <octavo/attention/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/matrix.hpp"

namespace attention_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

/// Causal attention and its gradient by the formulas, in double, one query at a time.
class Reference {
 public:
  template <class T>
  Reference(const AttentionShape& shape, const Matrix<T>& qkv, const Matrix<T>& d_output)
      : output(shape.rows(), shape.heads.heads * shape.heads.head_dim),
        gradient(shape.rows(), shape.heads.columns()) {
    const auto [heads, kv_heads, dim] = shape.heads;
    for (Index s = 0; s < shape.sequences; ++s) {
      for (Index h = 0; h < heads; ++h) {
        const Index kv = h / (heads / kv_heads);
        const Index key = (heads + kv) * dim;
        const Index value = (heads + kv_heads + kv) * dim;
        for (Index t = 0; t < shape.tokens; ++t)
          attend(qkv, d_output, s * shape.tokens, t, h * dim, key, value, dim);
      }
    }
  }

  Matrix<double> output;
  Matrix<double> gradient;
  std::vector<double> log_sum_exps;  ///< [sequences, heads, tokens]

 private:
  template <class T>
  void attend(const Matrix<T>& qkv, const Matrix<T>& d_output, Index first, Index t, Index query,
              Index key, Index value, Index dim) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    std::vector<double> weights;
    double sum = 0.0;
    for (Index u = 0; u <= t; ++u) {
      double score = 0.0;
      for (Index c = 0; c < dim; ++c)
        score += qkv(first + t, query + c) * qkv(first + u, key + c) * scale;
      weights.push_back(std::exp(score));
      sum += weights.back();
    }
    log_sum_exps.push_back(std::log(sum));
    std::vector<double> d_weights;
    double mean = 0.0;
    for (Index u = 0; u <= t; ++u) {
      double& weight = weights[static_cast<std::size_t>(u)];
      weight /= sum;
      double d_weight = 0.0;
      for (Index c = 0; c < dim; ++c) {
        output.at(first + t, query + c) += weight * qkv(first + u, value + c);
        d_weight += d_output(first + t, query + c) * qkv(first + u, value + c);
        gradient.at(first + u, value + c) += weight * d_output(first + t, query + c);
      }
      d_weights.push_back(d_weight);
      mean += weight * d_weight;
    }
    for (Index u = 0; u <= t; ++u) {
      const auto at = static_cast<std::size_t>(u);
      const double d_score = weights[at] * (d_weights[at] - mean) * scale;
      for (Index c = 0; c < dim; ++c) {
        gradient.at(first + t, query + c) += d_score * qkv(first + u, key + c);
        gradient.at(first + u, key + c) += d_score * qkv(first + t, query + c);
      }
    }
  }
};

/// Inputs and results of a forward and a backward.
template <class T>
struct Attention {
  Attention(const AttentionShape& attention_shape, Matrix<T> values, Matrix<T> d_values,
            int threads = 2)
      : shape(attention_shape),
        qkv(std::move(values)),
        d_output(std::move(d_values)),
        output(d_output.rows, d_output.columns, T(77.0f)),
        log_sum_exp(1, shape.rows() * shape.heads.heads),
        gradient(qkv.rows, qkv.columns, T(77.0f)) {
    support::ContextWithWorkspace place(threads);
    place.bind(attention_workspace(shape, place.context));
    (void)attention_forward(shape, qkv.view(), {}, output.view(), log_sum_exp.flat(),
                            place.context);
    (void)attention_backward<T, Cpu>(shape, qkv.input(), {}, output.view(), d_output.input(),
                                     log_sum_exp.flat(), gradient.view(), place.context);
  }

  AttentionShape shape;
  Matrix<T> qkv;
  Matrix<T> d_output;
  Matrix<T> output;
  Matrix<float> log_sum_exp;
  Matrix<T> gradient;
};

template <class T>
Attention<T> random_attention(const AttentionShape& shape, int threads = 2) {
  return {shape, random_matrix<T>(shape.rows(), shape.heads.columns(), 1),
          random_matrix<T>(shape.rows(), shape.heads.heads * shape.heads.head_dim, 2), threads};
}

/// Compares with the reference; `unit` is the storage format's rounding error.
template <class T>
void check(const AttentionShape& shape) {
  constexpr double unit = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;
  const Attention<T> run = random_attention<T>(shape);
  const Reference reference(shape, run.qkv, run.d_output);
  double largest = 0.0;
  for (const double g : reference.gradient.elements) largest = std::max(largest, std::abs(g));
  for (Index r = 0; r < shape.rows(); ++r) {
    for (Index c = 0; c < run.output.columns; ++c) {
      const double expected = reference.output(r, c);
      ASSERT_NEAR(run.output(r, c), expected, unit * std::abs(expected) + 2e-6) << r << ' ' << c;
    }
    for (Index c = 0; c < run.gradient.columns; ++c) {
      // The backward starts from the stored output, whose rounding reaches every gradient.
      const double expected = reference.gradient(r, c);
      ASSERT_NEAR(run.gradient(r, c), expected, unit * (std::abs(expected) + 0.5 * largest))
          << r << ' ' << c;
    }
  }
  for (std::size_t i = 0; i < reference.log_sum_exps.size(); ++i)
    ASSERT_NEAR(support::value_of(run.log_sum_exp.elements[i]), reference.log_sum_exps[i], 4e-6);
}

class AttentionLengths : public testing::TestWithParam<Index> {};

TEST_P(AttentionLengths, ForwardAndBackwardMatchFormula) {
  for (const HeadLayout heads :
       {HeadLayout{1, 1, 8}, HeadLayout{6, 2, 16}, HeadLayout{4, 4, 10}, HeadLayout{4, 1, 32}}) {
    for (const Index sequences : {1, 3}) {
      SCOPED_TRACE(testing::Message() << heads.heads << " heads on " << heads.kv_heads << ", "
                                      << sequences << " sequences");
      check<float>({sequences, GetParam(), heads});
      check<Bf16>({sequences, GetParam(), heads});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, AttentionLengths, testing::Values(1, 2, 63, 64, 65, 130),
                         testing::PrintToStringParamName());

TEST(Attention, ChangesInOneSequenceDoNotAffectOthers) {
  const AttentionShape shape{3, 70, {4, 2, 16}};
  const Attention<float> before = random_attention<float>(shape);
  Matrix<float> qkv = before.qkv;
  Matrix<float> d_output = before.d_output;
  for (Index t = 70; t < 140; ++t) {
    for (Index c = 0; c < qkv.columns; ++c) qkv.at(t, c) += 1.0f;
    for (Index c = 0; c < d_output.columns; ++c) d_output.at(t, c) -= 1.0f;
  }
  const Attention<float> after(shape, qkv, d_output);
  for (Index t = 0; t < shape.rows(); ++t) {
    if (t >= 70 && t < 140) continue;
    for (Index c = 0; c < d_output.columns; ++c) ASSERT_EQ(after.output(t, c), before.output(t, c));
    for (Index c = 0; c < qkv.columns; ++c) ASSERT_EQ(after.gradient(t, c), before.gradient(t, c));
  }
  EXPECT_NE(after.output(139, 0), before.output(139, 0));
}

TEST(Attention, LaterTokensDoNotAffectEarlierOutputs) {
  const AttentionShape shape{2, 130, {2, 1, 16}};
  const Attention<float> before = random_attention<float>(shape);
  for (const Index changed : {1, 63, 64, 100, 129}) {
    Matrix<float> qkv = before.qkv;
    for (Index c = 0; c < qkv.columns; ++c) qkv.at(changed, c) = 50.0f;
    const Attention<float> after(shape, qkv, before.d_output);
    for (Index t = 0; t < changed; ++t) {
      for (Index c = 0; c < before.output.columns; ++c)
        ASSERT_EQ(after.output(t, c), before.output(t, c)) << changed << ' ' << t;
    }
    EXPECT_NE(after.output(changed, 0), before.output(changed, 0));
  }
}

TEST(Attention, EarlierOutputsSendNoGradientToLaterTokens) {
  const AttentionShape shape{1, 130, {2, 1, 16}};
  Matrix<float> d_output(130, 32);
  for (Index t = 0; t < 70; ++t) {
    for (Index c = 0; c < 32; ++c) d_output.at(t, c) = 1.0f + static_cast<float>(c);
  }
  const Attention<float> run(shape, random_matrix<float>(130, 64, 3), d_output);
  for (Index t = 70; t < 130; ++t) {
    for (Index c = 0; c < 64; ++c) ASSERT_EQ(run.gradient(t, c), 0.0) << t << ' ' << c;
  }
  EXPECT_NE(run.gradient(69, 63), 0.0);
}

TEST(Attention, LargeScoresDoNotOverflow) {
  const AttentionShape shape{1, 70, {2, 1, 16}};
  auto qkv = random_matrix<float>(70, 64, 4, 40.0f);  // scores of some thousands
  const Attention<float> run(shape, qkv, random_matrix<float>(70, 32, 5));
  for (const float y : run.output.elements) ASSERT_TRUE(std::isfinite(y));
  for (const float g : run.gradient.elements) ASSERT_TRUE(std::isfinite(g));
}

TEST(Attention, DoesNotDependOnTheNumberOfThreads) {
  const AttentionShape shape{3, 65, {6, 2, 16}};
  const Attention<Bf16> one = random_attention<Bf16>(shape, 1);
  for (const int threads : {2, 4}) {
    const Attention<Bf16> several = random_attention<Bf16>(shape, threads);
    EXPECT_EQ(several.output.elements, one.output.elements) << threads;
    EXPECT_EQ(several.gradient.elements, one.gradient.elements) << threads;
    EXPECT_EQ(several.log_sum_exp.elements, one.log_sum_exp.elements) << threads;
  }
}

TEST(AttentionErrors, ShapesMustAgree) {
  const AttentionShape shape{1, 4, {4, 2, 8}};
  const AttentionShape uneven{1, 4, {4, 3, 8}};
  const auto forward = [](const AttentionShape& s, Index columns, Index outputs, Index sums) {
    Matrix<float> qkv(4, columns);
    Matrix<float> output(4, outputs);
    Matrix<float> log_sum_exp(1, sums);
    support::ContextWithWorkspace place;
    place.bind(attention_workspace(s, place.context));
    (void)attention_forward(s, qkv.view(), {}, output.view(), log_sum_exp.flat(), place.context);
  };
  EXPECT_NO_THROW(forward(shape, 64, 32, 16));
  EXPECT_THROW(forward(shape, 63, 32, 16), ShapeError);
  EXPECT_THROW(forward(shape, 64, 31, 16), ShapeError);
  EXPECT_THROW(forward(shape, 64, 32, 15), ShapeError);
  EXPECT_THROW(forward(uneven, 80, 32, 16), ShapeError);
}

}  // namespace attention_test
