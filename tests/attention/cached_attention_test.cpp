// Attention to kept keys and values: against the formula in FP64, and against attention of the
// whole sequence, of which it has the bits however rows are cut.
#include <octavo/attention/cached_attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "support/matrix.hpp"

namespace cached_attention_test {

using namespace octavo;
using support::bytes_of;
using support::Matrix;
using support::random_matrix;

constexpr float poison = 77.0f;

/// One layer's cache, and what rows that come piece by piece make of it.
template <class T>
class Decoding {
 public:
  Decoding(HeadLayout layout, Index capacity, int threads = 2)
      : layout_(layout),
        place_(threads),
        keys_(capacity, layout.kv_heads * layout.head_dim, T(std::nanf(""))),
        values_(keys_) {}

  /// The outputs of the next rows.
  /// @param rotation  empty: rows come rotated
  Matrix<T> append(Matrix<T> qkv, const QkNorm<const T, Cpu>& norm,
                   TensorView<const float, 2, Cpu> rotation) {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(qkv.rows));
    std::iota(positions.begin(), positions.end(), next_);
    next_ += static_cast<std::int32_t>(qkv.rows);
    const TensorView<const std::int32_t, 1, Cpu> places{positions.data(), {qkv.rows}};
    const KeyValueCache<T, Cpu> cache{keys_.view(), values_.view()};
    append_to_cache(qkv.view(), layout_, norm, rotation, places, cache, place_.context);
    Matrix<T> output(qkv.rows, layout_.heads * layout_.head_dim, T(poison));
    place_.bind(cached_attention_workspace(layout_, qkv.rows, cache.capacity(), place_.context));
    cached_attention(qkv.input(), layout_, {}, places, cache, output.view(), place_.context);
    return output;
  }

  void go_to(std::int32_t position) { next_ = position; }
  [[nodiscard]] const Matrix<T>& keys() const { return keys_; }

 private:
  HeadLayout layout_;
  support::ContextWithWorkspace place_;
  Matrix<T> keys_, values_;
  std::int32_t next_ = 0;
};

template <class T>
Matrix<T> rows_of(const Matrix<T>& source, Index begin, Index count) {
  Matrix<T> part(count, source.columns);
  std::copy_n(source.elements.begin() + begin * source.columns, part.size(), part.elements.begin());
  return part;
}

/// A model's rows, and what its training kernels make of them.
template <class T>
struct Whole {
  Whole(HeadLayout heads, Index tokens, bool normalised)
      : layout(heads),
        qkv(random_matrix<T>(tokens, heads.columns(), 1)),
        rotation(random_matrix<float>(tokens + 3, heads.head_dim, 2)),
        query_weight(random_matrix<T>(1, heads.head_dim, 3)),
        key_weight(random_matrix<T>(1, heads.head_dim, 4)),
        output(tokens, heads.heads * heads.head_dim) {
    if (normalised) norm = {query_weight.flat_input(), key_weight.flat_input(), 1e-6f};
    const AttentionShape shape{1, tokens, layout};
    support::ContextWithWorkspace place(1);
    Matrix<T> rotated(tokens, layout.columns());
    rope_forward(qkv.input(), layout, norm, rotation.input(), tokens, rotated.view(),
                 place.context);
    Matrix<float> sums(1, tokens * layout.heads);
    place.bind(attention_workspace(shape, place.context));
    (void)attention_forward(shape, rotated.view(), {}, output.view(), sums.flat(), place.context);
  }

  HeadLayout layout;
  Matrix<T> qkv;
  Matrix<float> rotation;
  Matrix<T> query_weight, key_weight;
  QkNorm<const T, Cpu> norm;
  Matrix<T> output;
};

template <class T>
void expect_the_bits_of_the_whole(HeadLayout layout, bool normalised,
                                  const std::vector<Index>& pieces) {
  const Index tokens = std::accumulate(pieces.begin(), pieces.end(), Index{0});
  const Whole<T> whole(layout, tokens, normalised);
  Decoding<T> decoding(layout, tokens + 3);
  Index begin = 0;
  for (const Index count : pieces) {
    const Matrix<T> output =
        decoding.append(rows_of(whole.qkv, begin, count), whole.norm, whole.rotation.input());
    ASSERT_EQ(bytes_of(output.elements), bytes_of(rows_of(whole.output, begin, count).elements))
        << count << " rows after " << begin;
    begin += count;
  }
}

TEST(CachedAttention, PiecesAreBitwiseEqualToWholeSequence) {
  const std::vector<std::vector<Index>> cuts{{1, 1, 1, 1}, {7, 1, 9, 1}, {65, 1, 66, 1, 3}};
  for (const auto& pieces : cuts) {
    expect_the_bits_of_the_whole<Bf16>({6, 2, 16}, false, pieces);
    expect_the_bits_of_the_whole<float>({4, 1, 10}, true, pieces);
  }
  expect_the_bits_of_the_whole<Bf16>({2, 2, 96}, true, {280, 1, 1});
}

TEST(CachedAttention, MatchesFormula) {
  const HeadLayout layout{4, 2, 8};
  const Index before = 5;
  const auto qkv = random_matrix<float>(before + 2, layout.columns(), 5);
  Decoding<float> decoding(layout, before + 2);
  (void)decoding.append(rows_of(qkv, 0, before), {}, {});
  const Matrix<float> output = decoding.append(rows_of(qkv, before, 2), {}, {});
  for (Index row = 0; row < output.rows; ++row) {
    for (Index head = 0; head < layout.heads; ++head) {
      const Index key = (layout.heads + head / 2) * layout.head_dim;
      std::vector<double> sums(static_cast<std::size_t>(layout.head_dim));
      double total = 0;
      for (Index seen = 0; seen <= before + row; ++seen) {
        double score = 0;
        for (Index c = 0; c < layout.head_dim; ++c) {
          score += qkv(before + row, head * layout.head_dim + c) * qkv(seen, key + c);
        }
        const double weight = std::exp(score / std::sqrt(8.0));
        total += weight;
        for (Index c = 0; c < layout.head_dim; ++c) {
          sums[static_cast<std::size_t>(c)] +=
              weight * qkv(seen, key + layout.kv_heads * layout.head_dim + c);
        }
      }
      for (Index c = 0; c < layout.head_dim; ++c) {
        ASSERT_NEAR(output(row, head * layout.head_dim + c),
                    sums[static_cast<std::size_t>(c)] / total, 2e-6);
      }
    }
  }
}

TEST(CachedAttention, DoesNotDependOnTheNumberOfThreads) {
  const auto qkv = random_matrix<Bf16>(9, HeadLayout{6, 3, 16}.columns(), 6);
  Decoding<Bf16> one({6, 3, 16}, 9, 1);
  Decoding<Bf16> many({6, 3, 16}, 9, 3);
  EXPECT_EQ(bytes_of(one.append(qkv, {}, {}).elements),
            bytes_of(many.append(qkv, {}, {}).elements));
}

// What a text had before is overwritten when another begins, or a part of it is drawn anew.
TEST(CachedAttention, ReusedPositionIsOverwritten) {
  const HeadLayout layout{2, 1, 8};
  const auto qkv = random_matrix<float>(6, layout.columns(), 7);
  Decoding<float> straight(layout, 8);
  Decoding<float> anew(layout, 8);
  (void)straight.append(rows_of(qkv, 0, 3), {}, {});
  (void)anew.append(rows_of(qkv, 0, 3), {}, {});
  (void)anew.append(rows_of(qkv, 4, 2), {}, {});
  anew.go_to(3);
  EXPECT_EQ(bytes_of(straight.append(rows_of(qkv, 3, 1), {}, {}).elements),
            bytes_of(anew.append(rows_of(qkv, 3, 1), {}, {}).elements));
}

TEST(CachedAttention, ErrorsNameMismatchedArgument) {
  const HeadLayout layout{2, 1, 8};
  const auto message_of = [&](const HeadLayout& heads, Index rows, std::int32_t position,
                              Index columns) {
    try {
      Decoding<float> decoding(heads, 4);
      decoding.go_to(position);
      (void)decoding.append(random_matrix<float>(rows, columns, 8), {}, {});
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message_of(layout, 2, 2, layout.columns()), "nothing");
  EXPECT_NE(message_of(layout, 2, 3, layout.columns()).find("position 4"), std::string::npos);
  EXPECT_NE(message_of(layout, 1, -1, layout.columns()).find("position -1"), std::string::npos);
  EXPECT_NE(message_of(layout, 5, 0, layout.columns()).find("5 new rows"), std::string::npos);
  EXPECT_NE(message_of(layout, 1, 0, 31).find("qkv has shape [1, 31]"), std::string::npos);
  EXPECT_NE(message_of({3, 2, 8}, 1, 0, 56).find("3 heads cannot share 2"), std::string::npos);
}

TEST(CachedAttention, PositionsMustBeConsecutive) {
  const HeadLayout layout{1, 1, 4};
  Matrix<float> qkv(2, layout.columns()), keys(4, 4), output(2, 4);
  const std::vector<std::int32_t> positions{1, 3};
  support::ContextWithWorkspace place(1, cached_attention_workspace(layout, 2, 4, {1}));
  EXPECT_THROW(cached_attention(qkv.input(), layout, {}, {positions.data(), {2}},
                                {keys.view(), keys.view()}, output.view(), place.context),
               ShapeError);
}

}  // namespace cached_attention_test
