// Ranks that have a part of the vocabulary each make the losses and gradients of the whole.
#include <octavo/kernels/embedding.hpp>
#include <octavo/kernels/vocabulary_parallel.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/matrix.hpp"

namespace vocabulary_parallel_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr Index ranks = 4;
constexpr Index columns = 16;
constexpr Index vocabulary = 37;  // the third rank has 5 real columns, the fourth none
/// Of each rank, ignored, and outside: in the padding and beyond it.
const std::vector<std::int32_t> targets{5, 16, 36, -1, 37, 2'000'000'000, 31};
const auto tokens = static_cast<Index>(targets.size());

TensorView<const std::int32_t, 1, Cpu> target_view() { return {targets.data(), {tokens}}; }

/// Of all ranks; large ones in what pads the vocabulary, and rows far from zero.
template <class T>
Matrix<T> logits_of_all() {
  auto logits = random_matrix<T>(tokens, ranks * columns, 1, 3.0f);
  for (Index t = 0; t < tokens; ++t) {
    for (Index c = 0; c < ranks * columns; ++c) {
      if (c >= vocabulary) logits.at(t, c) = T(1e4f);
      if (t == 2 && c < vocabulary) logits.at(t, c) = T(static_cast<float>(c) + 400.0f);
      if (t == 6 && c < vocabulary) logits.at(t, c) = T(-400.0f - static_cast<float>(c));
    }
  }
  return logits;
}

template <class T>
double log_sum_exp(const Matrix<T>& logits, Index t) {
  double largest = logits(t, 0);
  for (Index c = 1; c < vocabulary; ++c) largest = std::max(largest, logits(t, c));
  double sum = 0.0;
  for (Index c = 0; c < vocabulary; ++c) sum += std::exp(logits(t, c) - largest);
  return largest + std::log(sum);
}

/// What one rank finds.
template <class T>
struct OfRank {
  Matrix<T> gradient{tokens, columns};
  Matrix<float> losses{1, tokens, -7.0f};
};

template <class T>
std::vector<OfRank<T>> cross_entropy_of_ranks(const Matrix<T>& logits, bool has_scale) {
  support::ContextWithWorkspace place;
  const Matrix<float> scale(1, 1, 0.125f);
  std::vector<LogitSum> sums(static_cast<std::size_t>(ranks * tokens));
  std::vector<OfRank<T>> found(ranks);
  const auto part_of = [](Index rank) { return VocabularyPart{rank * columns, vocabulary}; };
  for (Index rank = 0; rank < ranks; ++rank) {
    Matrix<T>& own = found[static_cast<std::size_t>(rank)].gradient;
    for (Index t = 0; t < tokens; ++t) {
      const auto* row = logits.input().row(t) + rank * columns;
      std::copy(row, row + columns, own.view().row(t));
    }
    sum_logits(own.input(), target_view(), part_of(rank), {sums.data() + rank * tokens, {tokens}},
               place.context);
  }
  const TensorView<const LogitSum, 2, Cpu> all{sums.data(), {ranks, tokens}};
  for (Index rank = 0; rank < ranks; ++rank) {
    OfRank<T>& own = found[static_cast<std::size_t>(rank)];
    parallel_cross_entropy(
        all, own.gradient.view(), target_view(), own.losses.flat(), part_of(rank),
        has_scale ? scale.flat_input() : TensorView<const float, 1, Cpu>(), place.context);
  }
  return found;
}

template <class T>
void expect_formula(double unit) {
  const auto logits = logits_of_all<T>();
  const auto found = cross_entropy_of_ranks(logits, true);
  for (Index t = 0; t < tokens; ++t) {
    const Index target = targets[static_cast<std::size_t>(t)];
    const double sum = log_sum_exp(logits, t);
    const float loss = found[0].losses.elements[static_cast<std::size_t>(t)];
    if (target >= vocabulary) {
      EXPECT_TRUE(std::isnan(loss)) << t;
    } else {
      const double expected = target < 0 ? 0.0 : sum - logits(t, target);
      EXPECT_NEAR(loss, expected, 1e-6 * (1.0 + expected)) << t;
    }
    for (Index c = 0; c < ranks * columns; ++c) {
      const double gradient = found[static_cast<std::size_t>(c / columns)].gradient(t, c % columns);
      if (target >= vocabulary && c < vocabulary) {
        EXPECT_TRUE(std::isnan(gradient)) << t << ' ' << c;
        continue;
      }
      double expected = 0.0;
      if (c < vocabulary && target >= 0) {
        expected = 0.125 * (std::exp(logits(t, c) - sum) - (c == target ? 1.0 : 0.0));
      }
      EXPECT_NEAR(gradient, expected, unit * std::abs(expected) + 1e-8) << t << ' ' << c;
    }
  }
  for (const OfRank<T>& rank : found) {
    EXPECT_EQ(support::bytes_of(rank.losses.elements), support::bytes_of(found[0].losses.elements));
  }
}

TEST(VocabularyParallel, LossAndGradientMatchFormula) {
  expect_formula<float>(4e-6);
  expect_formula<Bf16>(0x1p-8);
}

TEST(VocabularyParallel, PreservesLogitsWithoutGradientScale) {
  const auto logits = logits_of_all<float>();
  const auto found = cross_entropy_of_ranks(logits, false);
  const auto trained = cross_entropy_of_ranks(logits, true);
  for (Index rank = 0; rank < ranks; ++rank) {
    const OfRank<float>& own = found[static_cast<std::size_t>(rank)];
    EXPECT_EQ(own.gradient(2, 3), logits(2, rank * columns + 3));
    EXPECT_EQ(support::bytes_of(own.losses.elements),
              support::bytes_of(trained[0].losses.elements));
  }
}

TEST(VocabularyParallel, EachTokenBelongsToOneRank) {
  constexpr Index hidden = 5;
  const std::vector<std::int32_t> ids{0, 15, 16, 36, 3, 16};
  const auto count = static_cast<Index>(ids.size());
  const TensorView<const std::int32_t, 1, Cpu> id_view{ids.data(), {count}};
  const auto table = random_matrix<float>(ranks * columns, hidden, 1);
  const auto dy = random_matrix<float>(count, hidden, 2);
  support::ContextWithWorkspace place(2, embedding_workspace(count));
  Matrix<double> sum(count, hidden);
  Matrix<float> gradient(ranks * columns, hidden, 1.0f);
  for (Index rank = 0; rank < ranks; ++rank) {
    std::vector<std::int32_t> rows(ids.size(), -7);
    const TensorView<std::int32_t, 1, Cpu> local{rows.data(), {count}};
    local_tokens(id_view, rank * columns, columns, local, place.context);
    Matrix<float> y(count, hidden, -7.0f);
    const TensorView<const std::int32_t, 1, Cpu> of_rank = local;
    embedding_forward(of_rank, table.input().rows(rank * columns, columns), y.view(),
                      place.context);
    embedding_backward(of_rank, dy.input(), gradient.view().rows(rank * columns, columns),
                       place.context);
    for (Index t = 0; t < count; ++t) {
      for (Index c = 0; c < hidden; ++c) sum.at(t, c) += y(t, c);
    }
  }
  for (Index t = 0; t < count; ++t) {
    const Index id = ids[static_cast<std::size_t>(t)];
    for (Index c = 0; c < hidden; ++c) {
      EXPECT_EQ(sum(t, c), table(id, c)) << t << ' ' << c;
      gradient.at(id, c) -= static_cast<float>(dy(t, c));
    }
  }
  for (const float left : gradient.elements) EXPECT_NEAR(left, 1.0f, 1e-6);
}

}  // namespace vocabulary_parallel_test
