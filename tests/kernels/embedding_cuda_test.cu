// The embedding on the Cuda device: against the Cpu device to the bit where the order of sums is
// the same or cannot matter, against sums in double elsewhere, with tokens of every frequency.
#include "kernels/cuda_support.cuh"

#include <cstdio>
#include <numeric>

namespace octavo {
namespace embedding_cuda_test {

using support::constant;
using support::normal_values;
using support::TestDevice;

class EmbeddingOnCuda : public support::OnGpu {};

/// A power of two, so that tokens outside need one more bit in a sort.
constexpr std::int32_t vocabulary = 512;

/// What a backward works on.
template <class G>
struct Inputs {
  Index columns;
  std::vector<std::int32_t> tokens;
  std::vector<Bf16> y_gradient;
  std::vector<G> gradient;  ///< before

  Inputs(std::vector<std::int32_t> all, Index width)
      : columns(width),
        tokens(std::move(all)),
        y_gradient(static_cast<std::size_t>(count() * width)),
        gradient(static_cast<std::size_t>(vocabulary * width)) {}
  [[nodiscard]] Index count() const { return static_cast<Index>(tokens.size()); }
};

/// Normal numbers, whose sums are rounded.
template <class G>
Inputs<G> normal_inputs(std::vector<std::int32_t> tokens, Index columns) {
  Inputs<G> inputs(std::move(tokens), columns);
  inputs.y_gradient = normal_values<Bf16>(inputs.count() * columns, 1.0f, 2);
  inputs.gradient = normal_values<G>(vocabulary * columns, 1.0f, 3);
  return inputs;
}

/// Whole numbers from −7 to 8, different in every row and column: their sums are exact in FP32, so
/// that a sum has one result, whatever its order.
template <class G>
Inputs<G> whole_inputs(std::vector<std::int32_t> tokens, Index columns) {
  Inputs<G> inputs(std::move(tokens), columns);
  std::uint32_t state = 1;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 28) - 7.0f;
  };
  for (Bf16& value : inputs.y_gradient) value = Bf16(next());
  for (G& value : inputs.gradient) value = G(next());
  return inputs;
}

/// `count` tokens, of which every other is one of the first `few`.
std::vector<std::int32_t> some_tokens(Index count, std::uint32_t few) {
  std::mt19937 random(11);
  std::vector<std::int32_t> tokens;
  for (Index i = 0; i < count; ++i) {
    const std::uint32_t range = i % 2 == 0 ? few : static_cast<std::uint32_t>(vocabulary);
    tokens.push_back(static_cast<std::int32_t>(random() % range));
  }
  tokens.back() = vocabulary - 1;
  return tokens;
}

std::vector<std::int32_t> equal_tokens(Index count, std::int32_t token) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(count), token);
}

template <Device D, class G>
std::vector<G> backward_on(const Inputs<G>& inputs) {
  TestDevice<D> device(embedding_workspace(inputs.count()));
  const auto gradient = device.matrix(inputs.gradient, inputs.columns);
  embedding_backward(constant(device.vector(inputs.tokens)),
                     constant(device.matrix(inputs.y_gradient, inputs.columns)), gradient,
                     device.context());
  return device.read(gradient);
}

template <class G>
void expect_the_cpus(const Inputs<G>& inputs) {
  EXPECT_TRUE(backward_on<Cpu>(inputs) == backward_on<Cuda>(inputs))
      << inputs.count() << " tokens, " << inputs.columns << " columns";
}

TEST_F(EmbeddingOnCuda, ForwardCopiesTheRows) {
  for (const Index columns : {8, 37, 520, 4104}) {
    const std::vector<std::int32_t> tokens = some_tokens(257, 3);
    const std::vector<Bf16> table = normal_values<Bf16>(vocabulary * columns, 1.0f, 1);
    TestDevice<Cuda> device;
    const Index count = static_cast<Index>(tokens.size());
    const TensorView<Bf16, 2, Cuda> y{device.make_poisoned<Bf16>(count * columns),
                                      {count, columns}};
    embedding_forward(constant(device.vector(tokens)), constant(device.matrix(table, columns)), y,
                      device.context());
    const std::vector<Bf16> copied = device.read(y);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto row = table.begin() + tokens[t] * columns;
      ASSERT_TRUE(std::equal(row, row + columns, copied.begin() + static_cast<Index>(t) * columns))
          << "row " << t << " of " << columns << " columns";
    }
  }
}

// Memcheck sees reads and writes outside the table.
TEST_F(EmbeddingOnCuda, OutOfRangeTokensReadAndWriteNothing) {
  for (const Index count : {40, 20'000}) {  // searched, and sorted
    for (const Index columns : {8, 37}) {
      std::vector<std::int32_t> tokens;
      for (Index i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(i % vocabulary));
      tokens[1] = vocabulary;
      tokens[5] = 0x7fffffff;
      tokens[7] = -1;
      const std::vector<Bf16> table = normal_values<Bf16>(vocabulary * columns, 1.0f, 1);
      TestDevice<Cuda> device;
      const TensorView<Bf16, 2, Cuda> y{device.make_poisoned<Bf16>(count * columns),
                                        {count, columns}};
      embedding_forward(constant(device.vector(tokens)), constant(device.matrix(table, columns)), y,
                        device.context());
      const std::vector<Bf16> read = device.read(y);
      for (Index c = 0; c < columns; ++c) {
        const auto at = [&](Index t) { return read[static_cast<std::size_t>(t * columns + c)]; };
        ASSERT_TRUE(std::isnan(static_cast<float>(at(1)))) << count << ' ' << columns;
        ASSERT_TRUE(std::isnan(static_cast<float>(at(5)))) << count << ' ' << columns;
        ASSERT_EQ(static_cast<float>(at(7)), 0.0f);
        ASSERT_EQ(at(2).bits, table[static_cast<std::size_t>(2 * columns + c)].bits);
      }
      // Sums of whole numbers: the order of tokens does not matter.
      expect_the_cpus(whole_inputs<float>(tokens, columns));
    }
  }
}

// A sort reads as many bits of a token as the vocabulary needs. Here, a token outside the
// vocabulary has the same such bits as each token inside, and both alternate.
TEST_F(EmbeddingOnCuda, OutOfRangeTokensDoNotSplitOthers) {
  constexpr std::int32_t period = 1024;  // the next power of two
  for (const std::int32_t distance : {-period, period}) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 20'000; ++i) {
      tokens.push_back(i / 2 % vocabulary + i % 2 * distance);
    }
    expect_the_cpus(whole_inputs<float>(tokens, 72));
  }
}

// No token occurs 128 times, so that each sum has the order of the Cpu.
TEST_F(EmbeddingOnCuda, RareTokenSumsAreBitwiseEqualToCpu) {
  for (const Index count : {1, 17, 130, 257, 8192, 16384, 16385}) {  // searched, and sorted
    for (const Index columns : {8, 37, 520, 4104}) {
      if (count > 257 && columns > 520) continue;
      std::vector<std::int32_t> tokens = some_tokens(std::min<Index>(count, 257), 3);
      for (Index i = 257; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(i % 293));
      std::vector<Index> times(vocabulary);
      for (const std::int32_t token : tokens) ++times[static_cast<std::size_t>(token)];
      ASSERT_LT(*std::max_element(times.begin(), times.end()), detail::frequent_count);
      expect_the_cpus(normal_inputs<float>(tokens, columns));
      expect_the_cpus(normal_inputs<Bf16>(tokens, columns));
    }
  }
}

TEST_F(EmbeddingOnCuda, IntegerSumsAreBitwiseEqualToCpu) {
  for (const Index count : {127, 128, 129, 255, 256, 257, 300, 8192, 16384, 16385, 20'000}) {
    for (const Index columns : {8, 37, 136, 520, 4104}) {
      if (count > 300 && columns > 136) continue;
      expect_the_cpus(whole_inputs<float>(some_tokens(count, 3), columns));
      expect_the_cpus(whole_inputs<Bf16>(some_tokens(count, 3), columns));
      expect_the_cpus(whole_inputs<float>(equal_tokens(count, 0), columns));
      expect_the_cpus(whole_inputs<Bf16>(equal_tokens(count, vocabulary - 1), columns));
    }
  }
}

// Frequencies on both sides of where a token becomes frequent, beside each other when sorted.
TEST_F(EmbeddingOnCuda, SumsTokensOfEveryFrequency) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; token < 190; ++token) {
    tokens.insert(tokens.end(), static_cast<std::size_t>(token), token);
  }
  for (const std::size_t count : {tokens.size(), std::size_t{16000}}) {  // sorted, and searched
    std::vector<std::int32_t> shuffled = tokens;
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(5));
    shuffled.resize(count);
    for (const Index columns : {72, 264}) {
      expect_the_cpus(whole_inputs<float>(shuffled, columns));
      expect_the_cpus(whole_inputs<Bf16>(shuffled, columns));
    }
  }
}

// Both sums are in FP32: each rounds at most once an addition, by 2^-24 of a partial sum, which is
// at most the sum of the magnitudes. The Cpu adds one occurrence after the other.
TEST_F(EmbeddingOnCuda, FrequentTokenSumsMatchCpuWithinRounding) {
  for (const auto& tokens : {some_tokens(8192, 3), equal_tokens(5000, 7), some_tokens(20'000, 2)}) {
    const auto inputs = normal_inputs<float>(tokens, 72);
    const std::vector<float> cpu = backward_on<Cpu>(inputs);
    const std::vector<float> cuda = backward_on<Cuda>(inputs);
    std::vector<double> magnitudes(inputs.gradient.size());
    std::vector<Index> times(inputs.gradient.size());
    for (Index t = 0; t < inputs.count(); ++t) {
      for (Index c = 0; c < inputs.columns; ++c) {
        const auto to = static_cast<std::size_t>(tokens[static_cast<std::size_t>(t)] * 72 + c);
        magnitudes[to] += std::abs(static_cast<double>(
            static_cast<float>(inputs.y_gradient[static_cast<std::size_t>(t * 72 + c)])));
        ++times[to];
      }
    }
    double worst = 0;
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      const double all = magnitudes[i] + std::abs(static_cast<double>(inputs.gradient[i]));
      const double allowed = 2 * static_cast<double>(times[i]) * 0x1p-24 * all;
      const double error = std::abs(static_cast<double>(cpu[i]) - static_cast<double>(cuda[i]));
      ASSERT_LE(error, allowed) << "element " << i;
      if (allowed > 0) worst = std::max(worst, error / allowed);
    }
    std::printf("  %d tokens: worst difference %.4f of what rounding allows\n",
                static_cast<int>(inputs.count()), worst);
  }
}

TEST_F(EmbeddingOnCuda, BackwardIsDeterministic) {
  for (const auto& tokens : {some_tokens(8192, 3), equal_tokens(20'000, 7)}) {
    const auto inputs = normal_inputs<float>(tokens, 136);
    const std::vector<float> first = backward_on<Cuda>(inputs);
    for (int repetition = 0; repetition < 3; ++repetition) {
      EXPECT_TRUE(backward_on<Cuda>(inputs) == first);
    }
  }
}

/// Milliseconds of one backward on tokens of 4096 columns: the best of some.
double milliseconds(const std::vector<std::int32_t>& tokens) {
  constexpr Index columns = 4096;
  const auto count = static_cast<Index>(tokens.size());
  TestDevice<Cuda> device(embedding_workspace(count));
  const cudaStream_t stream = device.context().stream();
  const auto all = constant(device.vector(tokens));
  const TensorView<Bf16, 2, Cuda> y_gradient{device.make<Bf16>(count * columns), {count, columns}};
  const TensorView<Bf16, 2, Cuda> gradient{device.make<Bf16>(vocabulary * columns),
                                           {vocabulary, columns}};
  fill_zero(y_gradient.data(), y_gradient.bytes(), device.context());
  fill_zero(gradient.data(), gradient.bytes(), device.context());
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
  float best = INFINITY;
  for (int run = 0; run < 4; ++run) {
    check(cudaEventRecord(events[0], stream), "cudaEventRecord");
    embedding_backward(all, constant(y_gradient), gradient, device.context());
    check(cudaEventRecord(events[1], stream), "cudaEventRecord");
    check(cudaEventSynchronize(events[1]), "cudaEventSynchronize");
    float time = 0;
    check(cudaEventElapsedTime(&time, events[0], events[1]), "cudaEventElapsedTime");
    best = std::min(best, time);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  return static_cast<double>(best);
}

// A batch that is nearly all padding. Two blocks of threads would take about forty times as long as
// all do for a batch of many tokens.
TEST_F(EmbeddingOnCuda, ManyEqualTokensAreSpreadOverBlocks) {
  constexpr Index count = 131'072;
  const double equal = milliseconds(equal_tokens(count, 0));
  const double mixed = milliseconds(some_tokens(count, vocabulary));
  std::printf("  %d tokens of 4096 columns: all equal %.3f ms, of %d %.3f ms; 16384: %.3f, %.3f\n",
              static_cast<int>(count), equal, static_cast<int>(vocabulary), mixed,
              milliseconds(equal_tokens(16'384, 0)), milliseconds(some_tokens(16'384, vocabulary)));
  EXPECT_LT(equal, 4 * mixed);
  expect_the_cpus(whole_inputs<float>(equal_tokens(count, 5), 72));
}

// The sort writes no further than the workspace that is announced, and sorts.
TEST_F(EmbeddingOnCuda, EmbeddingWorkspaceSuffices) {
  constexpr std::int32_t words = 128'256;
  constexpr Index guard = 4096;
  for (const Index count : {Index{16'385}, Index{100'000}, Index{1} << 20}) {
    std::mt19937 random(13);
    std::vector<std::int32_t> tokens;
    for (Index i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(words)));
    }
    TestDevice<Cuda> device;
    const std::size_t bytes = embedding_workspace(count);
    std::byte* memory = device.make_poisoned<std::byte>(static_cast<Index>(bytes) + guard);
    device.context().bind_workspace({memory, bytes});
    const auto sorted =
        detail::sort_tokens(constant(device.vector(tokens)), Index{words}, device.context());
    ASSERT_EQ(sorted.count, count);
    std::vector<std::int32_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    const auto token = [&](std::int32_t i) { return tokens[static_cast<std::size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return token(a) < token(b); });
    EXPECT_TRUE(device.read(sorted.positions, count) == order) << count;
    std::vector<std::int32_t> in_order;
    for (const std::int32_t i : order) in_order.push_back(token(i));
    EXPECT_TRUE(device.read(sorted.tokens, count) == in_order) << count;
    EXPECT_TRUE(device.read(memory + bytes, guard) ==
                std::vector<std::byte>(guard, std::byte{0xff}))
        << count;
  }
}

}  // namespace embedding_cuda_test
}  // namespace octavo
