// Products of a few rows on the Cuda device against the Cpu device: every number of rows, sizes in
// whole vectors and not, addresses that are no multiple of a vector.
#include "kernels/cuda_support.cuh"

#include <octavo/gemm/cuda/few_rows.cuh>

#include <cmath>

namespace octavo {
namespace few_rows_cuda_test {

using support::constant;
using support::normal_values;
using support::OnGpu;
using support::TestDevice;

struct Case {
  Index rows, out, in;
  bool adds = false;
  bool biased = false;
  Index offset = 0;  ///< elements that the weight lies behind the beginning of its memory
};

std::string text_of(const Case& at) {
  return message(at.rows, " x ", at.out, " x ", at.in, ", offset ", at.offset);
}

template <class T>
double value(T element) {
  return static_cast<double>(static_cast<float>(element));
}

/// A bound for each result: rows of FP32 sums whose order differs.
template <class T>
std::vector<double> bounds(const Case& at, const std::vector<T>& x,
                           const std::vector<double>& weight) {
  std::vector<double> result;
  for (Index row = 0; row < at.rows; ++row) {
    for (Index out = 0; out < at.out; ++out) {
      double magnitude = 0;
      for (Index c = 0; c < at.in; ++c) {
        magnitude += std::abs(value(x[static_cast<std::size_t>(row * at.in + c)]) *
                              weight[static_cast<std::size_t>(out * at.in + c)]);
      }
      result.push_back(1e-6 * magnitude);
    }
  }
  return result;
}

/// Runs a product on a device.
/// @param weight  makes the weight: (place)
template <class T, class Y, Device D, class Weight>
std::vector<Y> product(const Case& at, const std::vector<T>& x, const Weight& weight) {
  Context<D> limits;
  TestDevice<D> device(few_rows_workspace(at.in, limits));
  const auto addend = constant(device.matrix(normal_values<Y>(at.rows * at.out, 1.0f, 3), at.out));
  const auto bias = constant(device.vector(normal_values<Y>(at.out, 1.0f, 4)));
  GemmOutput<Y, D> y{
      {device.template make_poisoned<Y>(at.rows * at.out), {at.rows, at.out}}, {}, {}};
  if (at.adds) y.addend = addend;
  if (at.biased) y.bias = bias;
  const auto rows = constant(device.matrix(x, at.in));
  const GemmRun run = few_rows_forward(rows, weight(device), y, device.context());
  EXPECT_STREQ(run.implementation, few_rows_implementation(D{}));
  return device.read(y.result);
}

constexpr Case cases[] = {{1, 576, 576},
                          {1, 1, 8},
                          {2, 960, 576, true},
                          {3, 1025, 1536, true, true},
                          {4, 64, 4096, false, true},
                          {5, 130, 48},
                          {7, 33, 512, true},
                          {8, 257, 1040, true, true},
                          {1, 77, 37, true, true},
                          {1, 40, 24},
                          {6, 19, 301},
                          {8, 3, 1},
                          {1, 131, 256, false, true, 3},
                          {4, 131, 256, false, false, 8}};

template <class T, class Y>
void compare_dense() {
  for (const Case& at : cases) {
    SCOPED_TRACE(text_of(at));
    const auto x = normal_values<T>(at.rows * at.in, 1.0f, 1);
    const auto elements = normal_values<T>(at.offset + at.out * at.in, 1.0f, 2);
    const auto weight = [&]<Device D>(TestDevice<D>& device) {
      return TensorView<const T, 2, D>{device.make(elements) + at.offset, {at.out, at.in}};
    };
    std::vector<double> values;
    for (auto element = elements.begin() + at.offset; element != elements.end(); ++element) {
      values.push_back(value(*element));
    }
    support::expect_close(product<T, Y, Cpu>(at, x, weight), product<T, Y, Cuda>(at, x, weight),
                          bounds(at, x, values));
  }
}

template <class T, class Y, class W, class Granularity>
void compare_quantized() {
  using Scale = typename Granularity::Scale;
  for (const Case& at : cases) {
    SCOPED_TRACE(text_of(at));
    const auto x = normal_values<T>(at.rows * at.in, 1.0f, 1);
    const auto codes = normal_values<W>(at.offset + at.out * at.in, 30.0f, 2);
    const auto numbers = normal_values<float>(scale_count<Granularity>(at.out, at.in), 1.0f, 5);
    std::vector<Scale> scales;
    for (const float number : numbers) scales.push_back(Scale(0.1f + std::abs(number)));
    const auto weight = [&]<Device D>(TestDevice<D>& device) {
      return QuantizedView<W, Granularity, Layout::row_major, D>{
          device.make(codes) + at.offset, device.make(scales), at.out, at.in};
    };
    std::vector<double> values;
    for (Index row = 0; row < at.out; ++row) {
      for (Index column = 0; column < at.in; ++column) {
        const Index scale = scale_index<Granularity>(row, column, at.out, at.in);
        values.push_back(value(codes[static_cast<std::size_t>(at.offset + row * at.in + column)]) *
                         value(scales[static_cast<std::size_t>(scale)]));
      }
    }
    support::expect_close(product<T, Y, Cpu>(at, x, weight), product<T, Y, Cuda>(at, x, weight),
                          bounds(at, x, values));
  }
}

class FewRowsOnCuda : public OnGpu {};

TEST_F(FewRowsOnCuda, DenseProductsMatchCpu) {
  compare_dense<Bf16, Bf16>();
  compare_dense<Bf16, float>();
  compare_dense<float, float>();
}

TEST_F(FewRowsOnCuda, QuantizedProductsMatchCpu) {
  compare_quantized<Bf16, Bf16, E4M3, PerTensor>();
  compare_quantized<Bf16, float, E4M3, PerRow>();
  compare_quantized<Bf16, Bf16, E4M3, PerBlock<128, 128>>();
  compare_quantized<Bf16, Bf16, E5M2, PerBlock<1, 32, E8M0>>();
}

// What is left of a recorded step's addend is its result: the residual stream grows where it is.
TEST_F(FewRowsOnCuda, ResultMayAliasAddend) {
  const Case at{3, 576, 576, true};
  const auto x = normal_values<Bf16>(at.rows * at.in, 1.0f, 1);
  const auto elements = normal_values<Bf16>(at.out * at.in, 1.0f, 2);
  const auto weight = [&]<Device D>(TestDevice<D>& device) {
    return constant(device.matrix(elements, at.in));
  };
  const auto expected = product<Bf16, Bf16, Cuda>(at, x, weight);
  TestDevice<Cuda> device;
  const auto result = device.matrix(normal_values<Bf16>(at.rows * at.out, 1.0f, 3), at.out);
  (void)few_rows_forward(constant(device.matrix(x, at.in)), weight(device),
                         GemmOutput<Bf16, Cuda>{result, constant(result), {}}, device.context());
  EXPECT_EQ(device.read(result), expected);
}

// Each product begins to read its weight while the one before it, whose result it multiplies, runs.
TEST_F(FewRowsOnCuda, PrefetchingWeightsChangesNoBit) {
  constexpr Index size = 1536;
  constexpr int products = 200;
  const auto elements = normal_values<Bf16>(size * size, 0.02f, 2);
  const auto run = [&](bool ahead) {
    TestDevice<Cuda> device;
    const auto weight = constant(device.matrix(elements, size));
    const auto stream = device.matrix(normal_values<Bf16>(size, 1.0f, 1), size);
    const auto branch = device.matrix(std::vector<Bf16>(size), size);
    for (int i = 0; i < products; ++i) {
      const bool grows = i % 2 == 1;
      const auto x = constant(grows ? branch : stream);
      const GemmOutput<Bf16, Cuda> y{grows ? stream : branch,
                                     grows ? constant(stream) : TensorView<const Bf16, 2, Cuda>{},
                                     {}};
      (void)few_rows_forward(x, weight, y, device.context(),
                             {ahead ? WeightReads::ahead : WeightReads::in_order});
      if (!ahead) device.context().synchronize();
    }
    return device.read(stream);
  };
  const auto expected = run(false);
  EXPECT_EQ(run(true), expected);
  EXPECT_NE(expected, normal_values<Bf16>(size, 1.0f, 1));
}

/// A gated product of a row that is normalised, or of more rows that are not, in one operation and
/// in three.
template <class T, class W>
void compare_fused(const Case& at) {
  SCOPED_TRACE(text_of(at));
  constexpr float epsilon = 1e-5f;
  TestDevice<Cuda> device;
  const auto& context = device.context();
  const bool normalises = at.rows == 1;
  const auto x = constant(device.matrix(normal_values<T>(at.rows * at.in, 1.0f, 1), at.in));
  const auto gain = constant(device.vector(normal_values<T>(at.in, 1.0f, 2)));
  const auto elements = device.make(normal_values<W>(at.out * at.in, 1.0f, 3));
  const auto scales = device.make(normal_values<float>(at.out, 1.0f, 4));
  const Index half = at.out / 2;
  const auto multiply = [&](TensorView<const T, 2, Cuda> rows, TensorView<T, 2, Cuda> y,
                            const FewRowsOptions<T, Cuda>& options) {
    const GemmOutput<T, Cuda> output{y, {}};
    if constexpr (std::is_same_v<T, W>) {
      (void)few_rows_forward(rows, {elements, {at.out, at.in}}, output, context, options);
    } else {
      const QuantizedView<W, PerRow, Layout::row_major, Cuda> w{elements, scales, at.out, at.in};
      (void)few_rows_forward(rows, w, output, context, options);
    }
  };
  const auto matrix = [&](Index columns) {
    return TensorView<T, 2, Cuda>{device.template make_poisoned<T>(at.rows * columns),
                                  {at.rows, columns}};
  };
  using Precision = std::conditional_t<std::is_same_v<T, float>, Fp32, Bf16>;
  const auto operand = [](TensorView<T, 2, Cuda> values) {
    return Operand<Precision, OperandKind::input, Cuda>{values};
  };
  const auto input = matrix(at.in);
  const auto wide = matrix(at.out);
  const auto expected = matrix(half);
  const auto found = matrix(half);
  if (normalises) {
    rms_norm_forward(x, gain, epsilon, operand(input),
                     TensorView<float, 1, Cuda>{device.make<float>(1), {1}}, context);
  }
  multiply(normalises ? constant(input) : x, wide, {});
  swiglu_forward(constant(wide), operand(expected), context);
  FewRowsOptions<T, Cuda> options{.is_gated = true};
  if (normalises) options.norm = {gain, epsilon};
  multiply(x, found, options);
  EXPECT_EQ(device.read(found), device.read(expected));
}

TEST_F(FewRowsOnCuda, FusedNormAndGateAreBitwiseEqualToSeparate) {
  for (const Case& at : {Case{1, 3072, 576}, Case{1, 2, 8}, Case{1, 34, 37}, Case{1, 640, 4096},
                         Case{1, 130, 12288}, Case{2, 62, 64}, Case{3, 530, 301}, Case{8, 34, 1536},
                         Case{1, 70, max_normalised_columns}}) {
    compare_fused<Bf16, Bf16>(at);
    compare_fused<Bf16, E4M3>(at);
    compare_fused<float, float>(at);
  }
}

/// What joins a cache, and the cache, in one operation and in two.
template <class T, class W>
void compare_cached(HeadLayout layout, Index in, Index first, Index rows, bool rotates) {
  SCOPED_TRACE(message(layout.heads, "/", layout.kv_heads, " heads of ", layout.head_dim, ", ",
                       rows, " rows of ", in, " at ", first, rotates ? ", rotated" : ""));
  constexpr Index capacity = 20;
  TestDevice<Cuda> device;
  const auto& context = device.context();
  const Index columns = layout.columns();
  const Index of_cache = layout.kv_heads * layout.head_dim;
  const auto x = constant(device.matrix(normal_values<T>(rows * in, 1.0f, 1), in));
  const auto elements = device.make(normal_values<W>(columns * in, 1.0f, 3));
  const auto scales = device.make(normal_values<float>(columns, 1.0f, 4));
  const auto gain = constant(device.vector(normal_values<T>(in, 1.0f, 2)));
  const auto bias = constant(device.vector(normal_values<T>(columns, 1.0f, 5)));
  const auto table =
      device.matrix(normal_values<float>(capacity * layout.head_dim, 1.0f, 6), layout.head_dim);
  std::vector<std::int32_t> places;
  for (Index row = 0; row < rows; ++row) places.push_back(static_cast<std::int32_t>(first + row));
  const auto positions = constant(device.vector(places));
  const auto make_rows = [&]() -> CacheRows<T, Cuda> {
    const auto cache = [&](unsigned seed) {
      return device.matrix(normal_values<T>(capacity * of_cache, 1.0f, seed), of_cache);
    };
    TensorView<const float, 2, Cuda> rotation;
    if (rotates) rotation = table;
    return {layout, rotation, positions, {cache(7), cache(8)}};
  };
  const auto multiply = [&](TensorView<T, 2, Cuda> y, const CacheRows<T, Cuda>& cached) {
    FewRowsOptions<T, Cuda> options{.cached = cached};
    if (rows == 1) options.norm = {gain, 1e-5f};
    const GemmOutput<T, Cuda> output{y, {}, bias};
    if constexpr (std::is_same_v<T, W>) {
      (void)few_rows_forward(x, {elements, {columns, in}}, output, context, options);
    } else {
      const QuantizedView<W, PerRow, Layout::row_major, Cuda> w{elements, scales, columns, in};
      (void)few_rows_forward(x, w, output, context, options);
    }
  };
  const auto matrix = [&] {
    return TensorView<T, 2, Cuda>{device.template make_poisoned<T>(rows * columns),
                                  {rows, columns}};
  };
  const auto qkv = matrix();
  const auto y = matrix();
  const auto expected = make_rows();
  const auto found = make_rows();
  multiply(qkv, {});
  append_to_cache(qkv, expected, context);
  multiply(y, found);
  EXPECT_EQ(device.read(found.cache.keys), device.read(expected.cache.keys));
  EXPECT_EQ(device.read(found.cache.values), device.read(expected.cache.values));
  const std::vector<T> whole = device.read(qkv);
  const std::vector<T> made = device.read(y);
  for (Index row = 0; row < rows; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(row * columns);
    const auto end = begin + static_cast<std::ptrdiff_t>(layout.heads * layout.head_dim);
    EXPECT_TRUE(std::equal(whole.begin() + begin, whole.begin() + end, made.begin() + begin))
        << "queries of row " << row;
  }
}

TEST_F(FewRowsOnCuda, FusedCacheAppendIsBitwiseEqualToSeparate) {
  for (const HeadLayout& layout :
       {HeadLayout{9, 3, 64}, HeadLayout{4, 4, 10}, HeadLayout{8, 2, 128}, HeadLayout{3, 1, 2}}) {
    for (const bool rotates : {true, false}) {
      for (const Index rows : {1, 2, 3, 8}) {
        // The last are outside, some of their rows at least.
        for (const Index first : {Index{0}, 20 - rows, Index{-1}, Index{19}, Index{20}}) {
          compare_cached<Bf16, Bf16>(layout, 576, first, rows, rotates);
          compare_cached<Bf16, E4M3>(layout, 96, first, rows, rotates);
          compare_cached<float, float>(layout, 37, first, rows, rotates);
        }
      }
    }
  }
}

}  // namespace few_rows_cuda_test
}  // namespace octavo
