// Products of a few rows: against FP64, and against the product of many rows, of which they have
// the bits.
#include <octavo/gemm/few_rows.hpp>
#include <octavo/kernels/rms_norm.hpp>
#include <octavo/kernels/swiglu.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gemm/matmul_reference.hpp"
#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace few_rows_test {

using namespace octavo;
using reference::Product;
using support::bytes_of;
using support::Matrix;
using support::random_matrix;

struct Sizes {
  Index rows, out, in;
};
constexpr Sizes sizes[] = {{1, 1, 1}, {1, 130, 301}, {3, 17, 5}, {8, 129, 32}};

/// Runs a product with every choice of addend and bias.
template <class Y, class Run>
void check_epilogues(const Sizes& at, const Product& product, const Run& run) {
  const auto addend = random_matrix<Y>(at.rows, at.out, 3);
  const auto bias = random_matrix<Y>(1, at.out, 4);
  for (const bool adds : {false, true}) {
    for (const bool biased : {false, true}) {
      Matrix<Y> result(at.rows, at.out, Y(77.0f));
      support::ContextWithWorkspace place(2);
      place.bind(few_rows_workspace(at.in, place.context));
      GemmOutput<Y, Cpu> y{result.view(), {}, {}};
      if (adds) y.addend = addend.input();
      if (biased) y.bias = bias.flat_input();
      run(y, place.context);
      product.check(result, adds ? &addend : nullptr, biased ? &bias : nullptr);
    }
  }
}

template <class T>
void check_dense() {
  for (const Sizes& at : sizes) {
    SCOPED_TRACE(testing::Message() << at.rows << " x " << at.out << " x " << at.in);
    const auto x = random_matrix<T>(at.rows, at.in, 1);
    const auto w = random_matrix<T>(at.out, at.in, 2);
    const Product product(at.rows, at.out, at.in, x, w);
    const auto run = [&](const auto& y, const auto& context) {
      const GemmRun ran = few_rows_forward(x.input(), w.input(), y, context);
      EXPECT_STREQ(ran.b, FormatTraits<T>::name);
    };
    check_epilogues<T>(at, product, run);
    check_epilogues<float>(at, product, run);
  }
}

TEST(FewRows, DenseProductsMatchReference) {
  check_dense<Bf16>();
  check_dense<float>();
}

TEST(FewRows, AreBitwiseEqualToManyRows) {
  const Index out = 150;
  const Index in = 300;
  const auto x = random_matrix<Bf16>(20, in, 1);
  const auto w = random_matrix<Bf16>(out, in, 2);
  const auto addend = random_matrix<Bf16>(20, out, 3);
  const auto bias = random_matrix<Bf16>(1, out, 4);
  Matrix<Bf16> many(20, out);
  support::ContextWithWorkspace place(2);
  place.bind(std::max(matmul_workspace(20, out, in, place.context),
                      few_rows_workspace(in, place.context)));
  (void)matmul_forward(x.input(), w.input(),
                       GemmOutput<Bf16, Cpu>{many.view(), addend.input(), bias.flat_input()},
                       place.context);
  for (const Index rows : {Index{1}, max_few_rows}) {
    Matrix<Bf16> few(rows, out);
    (void)few_rows_forward(
        x.input().rows(5, rows), w.input(),
        GemmOutput<Bf16, Cpu>{few.view(), addend.input().rows(5, rows), bias.flat_input()},
        place.context);
    const auto begin = many.elements.begin() + 5 * out;
    EXPECT_EQ(bytes_of(few.elements), bytes_of(std::vector<Bf16>(begin, begin + rows * out)));
  }
}

/// A weight of random codes, and what they stand for.
template <class W, class Granularity>
struct Weight {
  Weight(Index out, Index in)
      : codes(random_matrix<W>(out, in, 5, 30.0f)),
        scales(1, scale_count<Granularity>(out, in), typename Granularity::Scale(0.0f)) {
    std::mt19937 random(6);
    std::uniform_real_distribution<float> scale(0.01f, 4.0f);
    for (auto& one : scales.elements) one = typename Granularity::Scale(scale(random));
  }
  [[nodiscard]] QuantizedView<W, Granularity, Layout::row_major, Cpu> view() {
    return {codes.elements.data(), scales.elements.data(), codes.rows, codes.columns};
  }
  double operator()(Index row, Index column) const {
    return codes(row, column) *
           scales(0, scale_index<Granularity>(row, column, codes.rows, codes.columns));
  }

  Matrix<W> codes;
  Matrix<typename Granularity::Scale> scales;
};

template <class T, class W, class Granularity>
void check_quantized() {
  for (const Sizes& at : {Sizes{1, 130, 301}, Sizes{8, 17, 144}}) {
    const auto x = random_matrix<T>(at.rows, at.in, 1);
    Weight<W, Granularity> w(at.out, at.in);
    const Product product(at.rows, at.out, at.in, x, w);
    check_epilogues<T>(at, product, [&](const auto& y, const auto& context) {
      const GemmRun ran = few_rows_forward(x.input(), w.view(), y, context);
      EXPECT_STREQ(ran.a, FormatTraits<T>::name);
      EXPECT_STREQ(ran.b, FormatTraits<W>::name);
    });
  }
}

TEST(FewRows, QuantizedProductsMatchDecodedWeights) {
  check_quantized<Bf16, E4M3, PerTensor>();
  check_quantized<Bf16, E4M3, PerRow>();
  check_quantized<Bf16, E4M3, PerBlock<128, 128>>();
  check_quantized<float, E5M2, PerBlock<1, 32, E8M0>>();
}

/// x / √(mean(x²) + epsilon) · weight of one row.
Matrix<float> normalised(const Matrix<float>& x, const Matrix<float>& weight, double epsilon) {
  double squares = 0;
  for (Index i = 0; i < x.columns; ++i) squares += x(0, i) * x(0, i);
  const double root = std::sqrt(squares / static_cast<double>(x.columns) + epsilon);
  Matrix<float> result(1, x.columns);
  for (std::size_t i = 0; i < result.elements.size(); ++i) {
    result.elements[i] = static_cast<float>(x.elements[i] / root * weight.elements[i]);
  }
  return result;
}

// An epsilon that counts: squares are about 1.
TEST(FewRows, FusedNormMatchesReference) {
  constexpr float epsilon = 0.5f;
  for (const Sizes& at : {Sizes{1, 5, 16}, Sizes{1, 130, 301}, Sizes{1, 257, 64}}) {
    SCOPED_TRACE(testing::Message() << at.out << " x " << at.in);
    const auto x = random_matrix<float>(1, at.in, 1);
    const auto w = random_matrix<float>(at.out, at.in, 2);
    const auto gain = random_matrix<float>(1, at.in, 5);
    const Product product(1, at.out, at.in, normalised(x, gain, epsilon), w);
    check_epilogues<float>(at, product, [&](const auto& y, const auto& context) {
      (void)few_rows_forward(x.input(), w.input(), y, context,
                             {.norm = {gain.flat_input(), epsilon}});
    });
  }
}

TEST(FewRows, FusedGateUsesFirstHalfOfProduct) {
  for (const Sizes& at :
       {Sizes{1, 2, 1}, Sizes{1, 300, 64}, Sizes{8, 34, 33}, Sizes{8, 1034, 33}}) {
    SCOPED_TRACE(testing::Message() << at.rows << " x " << at.out << " x " << at.in);
    const auto x = random_matrix<float>(at.rows, at.in, 1);
    const auto w = random_matrix<float>(at.out, at.in, 2);
    const Index half = at.out / 2;
    Matrix<float> y(at.rows, half, 77.0f);
    support::ContextWithWorkspace place(2);
    place.bind(few_rows_workspace(at.in, place.context));
    (void)few_rows_forward(x.input(), w.input(), GemmOutput<float, Cpu>{y.view(), {}},
                           place.context, {.is_gated = true});
    const auto dot = [&](Index row, Index column) {
      double sum = 0;
      for (Index i = 0; i < at.in; ++i) sum += x(row, i) * w(column, i);
      return sum;
    };
    for (Index row = 0; row < at.rows; ++row) {
      for (Index c = 0; c < half; ++c) {
        const double gate = dot(row, c);
        const double expected = gate / (1 + std::exp(-gate)) * dot(row, half + c);
        ASSERT_NEAR(y(row, c), expected, 1e-4 * (1 + std::abs(expected))) << row << ", " << c;
      }
    }
  }
}

// Rounded to BF16 between the operations, as it is where each is one of its own.
TEST(FewRows, FusedNormAndGateAreBitwiseEqualToSeparate) {
  constexpr Index in = 144;
  constexpr Index out = 290;
  constexpr float epsilon = 1e-5f;
  const auto x = random_matrix<Bf16>(1, in, 1);
  const auto gain = random_matrix<Bf16>(1, in, 2);
  Weight<E4M3, PerRow> w(out, in);
  support::ContextWithWorkspace place(2);
  place.bind(few_rows_workspace(in, place.context));

  Matrix<Bf16> input(1, in), wide(1, out), expected(1, out / 2), y(1, out / 2);
  Matrix<float> inverse(1, 1);
  rms_norm_forward(x.input(), gain.flat_input(), epsilon, support::dense_input(input),
                   inverse.flat(), place.context);
  (void)few_rows_forward(input.input(), w.view(), GemmOutput<Bf16, Cpu>{wide.view(), {}},
                         place.context);
  swiglu_forward(wide.input(), support::dense_input(expected), place.context);

  (void)few_rows_forward(x.input(), w.view(), GemmOutput<Bf16, Cpu>{y.view(), {}}, place.context,
                         {.norm = {gain.flat_input(), epsilon}, .is_gated = true});
  EXPECT_EQ(bytes_of(y.elements), bytes_of(expected.elements));
}

/// A cache, and rows that are to join it at a position.
template <class T>
struct CacheOfRows {
  CacheOfRows(HeadLayout heads, Index capacity, std::vector<std::int32_t> places)
      : layout(heads),
        rotation(random_matrix<float>(capacity, heads.head_dim, 11)),
        keys(random_matrix<T>(capacity, heads.kv_heads * heads.head_dim, 12)),
        values(random_matrix<T>(capacity, heads.kv_heads * heads.head_dim, 13)),
        positions(std::move(places)) {}

  CacheRows<T, Cpu> rows(bool rotates = true) {
    return {layout,
            rotates ? rotation.input() : TensorView<const float, 2, Cpu>{},
            {positions.data(), {static_cast<Index>(positions.size())}},
            {keys.view(), values.view()}};
  }

  HeadLayout layout;
  Matrix<float> rotation;
  Matrix<T> keys, values;
  std::vector<std::int32_t> positions;
};

// Rounded to BF16 before the rotation, as it is where each is an operation of its own.
TEST(FewRows, FusedCacheAppendIsBitwiseEqualToSeparate) {
  constexpr Index in = 33;
  const HeadLayout layout{4, 2, 10};
  const Index queries = layout.heads * layout.head_dim;
  for (const bool rotates : {false, true}) {
    const auto x = random_matrix<Bf16>(2, in, 1);
    const auto w = random_matrix<Bf16>(layout.columns(), in, 2);
    const auto bias = random_matrix<Bf16>(1, layout.columns(), 3);
    support::ContextWithWorkspace place(2);
    place.bind(few_rows_workspace(in, place.context));
    CacheOfRows<Bf16> expected(layout, 7, {3, 4}), found(layout, 7, {3, 4});
    Matrix<Bf16> qkv(2, layout.columns()), y(2, layout.columns());

    (void)few_rows_forward(x.input(), w.input(),
                           GemmOutput<Bf16, Cpu>{qkv.view(), {}, bias.flat_input()}, place.context);
    append_to_cache(qkv.view(), expected.rows(rotates), place.context);

    (void)few_rows_forward(x.input(), w.input(),
                           GemmOutput<Bf16, Cpu>{y.view(), {}, bias.flat_input()}, place.context,
                           {.cached = found.rows(rotates)});
    EXPECT_EQ(bytes_of(found.keys.elements), bytes_of(expected.keys.elements));
    EXPECT_EQ(bytes_of(found.values.elements), bytes_of(expected.values.elements));
    for (Index row = 0; row < 2; ++row) {
      for (Index c = 0; c < queries; ++c) ASSERT_EQ(y(row, c), qkv(row, c)) << row << ", " << c;
    }
  }
}

TEST(FewRows, ErrorsNameInvalidCacheArgument) {
  const HeadLayout layout{2, 1, 4};
  CacheOfRows<Bf16> cache(layout, 3, {1});
  const auto message_of = [&](const CacheRows<Bf16, Cpu>& rows, Index columns, bool is_gated,
                              auto y) {
    const Matrix<Bf16> x(1, 4), w(is_gated ? 2 * columns : columns, 4);
    support::ContextWithWorkspace place(1);
    place.bind(few_rows_workspace(4, place.context));
    try {
      (void)few_rows_forward(
          x.input(), w.input(),
          GemmOutput<decltype(y), Cpu>{Matrix<decltype(y)>(1, columns).view(), {}}, place.context,
          {.is_gated = is_gated, .cached = rows});
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? "" : text;
  };
  EXPECT_EQ(message_of(cache.rows(), 16, false, Bf16()), "nothing");
  EXPECT_EQ(says(message_of(cache.rows(), 16, true, Bf16()), "gated result cannot be"), "");
  EXPECT_EQ(says(message_of(cache.rows(), 16, false, float()), "must have the format"), "");
  EXPECT_EQ(
      says(message_of(cache.rows(), 12, false, Bf16()), "few_rows_forward: qkv has shape [1, 12]"),
      "");
  CacheOfRows<Bf16> odd({2, 1, 5}, 3, {1});
  EXPECT_EQ(says(message_of(odd.rows(false), 20, false, Bf16()), "heads of 5 columns"), "");
  auto short_table = cache.rows();
  short_table.rotation = cache.rotation.input().rows(0, 2);
  EXPECT_EQ(says(message_of(short_table, 16, false, Bf16()), "few_rows_forward: a sequence of 3"),
            "");
}

TEST(FewRows, ErrorsNameMismatchedArgument) {
  const Matrix<Bf16> gain(1, 4), long_gain(1, 6);
  const auto message_of = [&](Index rows, Index in, FewRowsOptions<Bf16, Cpu> options = {},
                              Index out = 5, Index columns = 5, bool adds = true,
                              bool biased = false) {
    const Matrix<Bf16> x(rows, 4), w(out, in), addend(rows, columns), bias(1, columns);
    Matrix<Bf16> y(rows, columns);
    support::ContextWithWorkspace place(1);
    place.bind(few_rows_workspace(4, place.context));
    try {
      GemmOutput<Bf16, Cpu> output{y.view(), {}, {}};
      if (adds) output.addend = addend.input();
      if (biased) output.bias = bias.flat_input();
      (void)few_rows_forward(x.input(), w.input(), output, place.context, options);
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? "" : text;
  };
  EXPECT_EQ(message_of(8, 4), "nothing");
  EXPECT_EQ(says(message_of(9, 4), "9 rows"), "");
  EXPECT_EQ(says(message_of(1, 3), "4 and 3"), "");
  EXPECT_EQ(says(message_of(2, 4, {.norm = {gain.flat_input(), 0}}), "2 rows cannot be"), "");
  EXPECT_EQ(says(message_of(1, 4, {.norm = {long_gain.flat_input(), 0}}), "weight of the"), "");
  EXPECT_EQ(says(message_of(1, 4, {.is_gated = true}), "result"), "");
  const FewRowsOptions<Bf16, Cpu> gated{.is_gated = true};
  EXPECT_EQ(message_of(1, 4, gated, 10, 5, false), "nothing");
  EXPECT_EQ(says(message_of(1, 4, gated, 5, 2, false), "a weight of 5 rows"), "");
  EXPECT_EQ(says(message_of(1, 4, gated, 10, 5), "an addend"), "");
  EXPECT_EQ(says(message_of(1, 4, gated, 10, 5, false, true), "a bias"), "");
}

}  // namespace few_rows_test
