// Block scales on the Cuda device, and kernels that end in quantised operands: equal to the bit to
// the Cpu device's quantisation of the same values.
#include "kernels/cuda_support.cuh"

namespace octavo {
namespace quantize_cuda_test {

using support::expect_same;
using support::normal_values;
using support::OperandBytes;
using support::TestDevice;
using support::TestOperand;

class TensorScalesOnCuda : public support::OnGpu {};
class RowScalesOnCuda : public support::OnGpu {};
class BlockScalesOnCuda : public support::OnGpu {};
class ScalesOnCuda : public support::OnGpu {};
class ProducersOnCuda : public support::OnGpu {};

enum class Pattern { normal, zeros, every_bit_pattern, with_infinity, with_nan };
constexpr Pattern patterns[] = {Pattern::normal, Pattern::zeros, Pattern::every_bit_pattern,
                                Pattern::with_infinity, Pattern::with_nan};

std::vector<Bf16> make_pattern(Pattern pattern, Index count, unsigned seed) {
  std::vector<Bf16> values = normal_values<Bf16>(count, 3.0f, seed);
  std::uint32_t number = 0;
  for (Bf16& value : values) {
    // An odd factor: 65536 values in a row hold every pattern once.
    const auto bits = static_cast<std::uint16_t>(40503u * number++);
    if (pattern == Pattern::zeros) value.bits = static_cast<std::uint16_t>(bits & 0x8000u);
    if (pattern == Pattern::every_bit_pattern) value.bits = bits;
  }
  const auto middle = static_cast<std::size_t>(count / 2);
  if (pattern == Pattern::with_infinity) values[middle].bits = 0xff80u;
  if (pattern == Pattern::with_nan) values[middle].bits = 0x7fc1u;
  return values;
}

template <class P, OperandKind Kind, Device D>
OperandBytes quantized_on(const std::vector<Bf16>& values, Index columns, float scale,
                          OperandCopies copies, bool record, bool scale_is_found = false) {
  TestDevice<D> device(row_amaxes_workspace(static_cast<Index>(values.size()) / columns, columns));
  const TestOperand<P, Kind, D> memory(device, values, columns, scale);
  auto operand = memory.operand(copies, record);
  operand.scale_is_found = scale_is_found;
  quantize(operand, device.context());
  return memory.read();
}

/// Copies and recording in turn, so that every shape and pattern meets some of them.
template <class P, OperandKind Kind>
void compare_quantized(bool scale_is_found = false) {
  constexpr std::pair<Index, Index> shapes[] = {{1, 8},     {1, 128},   {17, 33},
                                                {32, 64},   {128, 128}, {130, 136},
                                                {257, 129}, {256, 384}, {272, 520}};
  constexpr OperandCopies copies[] = {{true, true}, {true, false}, {false, true}, {false, false}};
  unsigned number = 0;
  for (const auto& [rows, columns] : shapes) {
    for (const Pattern pattern : patterns) {
      const std::vector<Bf16> values = make_pattern(pattern, rows * columns, number);
      const OperandCopies wanted = copies[number % 4];
      const bool record = number % 3 != 0;
      SCOPED_TRACE(message(rows, " x ", columns, ", pattern ", static_cast<int>(pattern),
                           ", copies ", number % 4, ", record ", record));
      ++number;
      expect_same(
          quantized_on<P, Kind, Cpu>(values, columns, 0.37f, wanted, record, scale_is_found),
          quantized_on<P, Kind, Cuda>(values, columns, 0.37f, wanted, record, scale_is_found));
    }
  }
}

TEST_F(TensorScalesOnCuda, CastWithPrecomputedScaleIsBitwiseEqualToCpu) {
  compare_quantized<Fp8Recipe<Tensorwise>, OperandKind::input>(true);
  compare_quantized<Fp8Recipe<Tensorwise>, OperandKind::output_gradient>(true);
}

using PowerRows = Fp8Recipe<RowwiseScaling<ScaleRounding::power_of_two>>;

TEST_F(RowScalesOnCuda, AreBitwiseEqualToCpu) {
  compare_quantized<Fp8Recipe<Rowwise>, OperandKind::input>();
  compare_quantized<Fp8Recipe<Rowwise>, OperandKind::output_gradient>();
  compare_quantized<PowerRows, OperandKind::weight>();
}

TEST_F(RowScalesOnCuda, AreRecomputedDespitePrecomputedScale) {
  compare_quantized<Fp8Recipe<Rowwise>, OperandKind::input>(true);
}

// What was in the workspace, and the amaxes of another operand, leave no trace.
TEST_F(RowScalesOnCuda, DoNotDependOnEarlierCasts) {
  using P = Fp8Recipe<Rowwise>;
  constexpr Index rows = 144;
  constexpr Index columns = 264;
  const std::vector<Bf16> large = normal_values<Bf16>(rows * columns, 1e4f, 1);
  const std::vector<Bf16> small = normal_values<Bf16>(rows * columns, 1e-4f, 2);
  TestDevice<Cuda> device;
  const std::size_t bytes = row_amaxes_workspace(rows, columns);
  device.context().bind_workspace(
      {device.make_poisoned<std::byte>(static_cast<Index>(bytes)), bytes});
  for (const auto& values : {large, small}) {
    const TestOperand<P, OperandKind::input, Cuda> memory(device, values, columns, 1.0f);
    quantize(memory.operand(), device.context());
    expect_same(quantized_on<P, OperandKind::input, Cpu>(values, columns, 1.0f, {}, true),
                memory.read());
  }
}

TEST_F(BlockScalesOnCuda, RowBlocksAreBitwiseEqualToCpu) {
  compare_quantized<Fp8Recipe<Blockwise>, OperandKind::input>();
  compare_quantized<Fp8Recipe<Blockwise, Hybrid>, OperandKind::output_gradient>();
}

TEST_F(BlockScalesOnCuda, RowBlocksWithExactScalesAreBitwiseEqualToCpu) {
  compare_quantized<Fp8Recipe<BlockwiseScaling<ScaleRounding::exact>>, OperandKind::input>();
}

/// A row for each finite magnitude of BF16, which is its largest.
std::vector<Bf16> every_amax(Index columns) {
  constexpr Index magnitudes = 0x7f80;
  std::vector<Bf16> values(static_cast<std::size_t>(magnitudes * columns));
  for (Index r = 0; r < magnitudes; ++r) {
    values[static_cast<std::size_t>(r * columns)].bits = static_cast<std::uint16_t>(r);
  }
  return values;
}

template <class P, OperandKind Kind>
void compare_every_amax() {
  constexpr Index columns = 8;
  const std::vector<Bf16> values = every_amax(columns);
  expect_same(quantized_on<P, Kind, Cpu>(values, columns, 1.0f, {}, true),
              quantized_on<P, Kind, Cuda>(values, columns, 1.0f, {}, true));
}

TEST_F(RowScalesOnCuda, MatchCpuForEveryAmax) {
  compare_every_amax<Fp8Recipe<Rowwise>, OperandKind::input>();
  compare_every_amax<Fp8Recipe<Rowwise>, OperandKind::output_gradient>();
  compare_every_amax<PowerRows, OperandKind::input>();
}

TEST_F(BlockScalesOnCuda, MatchCpuForEveryAmax) {
  compare_every_amax<Fp8Recipe<Blockwise>, OperandKind::input>();
  compare_every_amax<Fp8Recipe<Blockwise, Hybrid>, OperandKind::output_gradient>();
  compare_every_amax<Fp8Recipe<BlockwiseScaling<ScaleRounding::exact>>, OperandKind::input>();
  compare_every_amax<Mxfp8, OperandKind::input>();
}

TEST_F(BlockScalesOnCuda, SquareBlocksAreBitwiseEqualToCpu) {
  compare_quantized<Fp8Recipe<Blockwise>, OperandKind::weight>();
}

TEST_F(BlockScalesOnCuda, MxBlocksAreBitwiseEqualToCpu) {
  compare_quantized<Mxfp8, OperandKind::input>();
  compare_quantized<Mxfp8, OperandKind::output_gradient>();
}

// ---- scales of the past -------------------------------------------------------------------------

/// Scaling states and histories after each of some updates.
template <Device D>
auto updated_scales() {
  constexpr Index longest = 1100;
  std::vector<ScalingRule> rules;
  for (const std::int32_t length : {1024, 100, 33, 32, 1, 0}) {
    for (const std::int32_t most_recent : {0, 1}) {
      rules.push_back({448.0f, length, most_recent, length % 2});
    }
  }
  const auto count = static_cast<Index>(rules.size());
  TestDevice<D> device;
  const auto device_rules = support::constant(device.vector(rules));
  std::vector<float> past = normal_values<float>(count * longest, 3.0f, 1);
  for (float& amax : past) amax = std::abs(amax);
  const auto history = device.matrix(past, longest);
  std::vector<OperandScale> scales(rules.size());
  for (std::size_t i = 0; i < rules.size(); ++i) {
    scales[i].scale = 3.0f;
    // The largest entry of some histories is the one that the first update replaces.
    const auto entries = static_cast<std::uint32_t>(std::max(rules[i].history_length, 1));
    scales[i].position = static_cast<std::uint32_t>(7 * i) % entries;
    past[i * longest + scales[i].position] = 100.0f;
  }
  copy_to_device_sync(history.data(), past.data(), past.size() * sizeof(float), device.context());
  const ScalingArrays<D> operands{device.vector(std::vector<std::uint32_t>(rules.size())),
                                  device.vector(scales),
                                  device.vector(std::vector<OperandStatistics>(rules.size()))};
  std::vector<std::vector<decltype(support::members(OperandScaling{}))>> all;
  std::vector<std::vector<float>> histories;
  for (const float amax : {0.5f, 200.0f, 0.0f, INFINITY, NAN, 1e-3f, 1e-30f}) {
    const std::vector<std::uint32_t> amaxes(rules.size(), float_bits(amax));
    copy_to_device_sync(operands.amax_bits.data(), amaxes.data(), operands.amax_bits.bytes(),
                        device.context());
    update_delayed_scales(operands, device_rules, history, device.context());
    const auto read_scales = device.read(operands.scales);
    const auto read_statistics = device.read(operands.statistics);
    const auto read_amaxes = device.read(operands.amax_bits);
    all.emplace_back();
    for (std::size_t i = 0; i < rules.size(); ++i) {
      all.back().push_back(support::members({read_scales[i], read_statistics[i], read_amaxes[i]}));
    }
    histories.push_back(device.read(history));
  }
  return std::pair(all, histories);
}

TEST_F(ScalesOnCuda, UpdatesWithLongHistoriesMatchCpu) {
  EXPECT_TRUE(updated_scales<Cpu>() == updated_scales<Cuda>());
}

// ---- producers ----------------------------------------------------------------------------------

/// Runs `producer(operand, place)` on the GPU for a dense operand, quantises its values on the CPU,
/// and compares with what the producer makes of a quantised operand.
template <class P, OperandKind Kind, class Producer>
void compare_produced(Index rows, Index columns, const Producer& producer,
                      OperandCopies copies = {}, bool record = true, bool scale_is_found = false) {
  SCOPED_TRACE(message(PrecisionTraits<P>::name(), ", ", rows, " x ", columns, ", row-major ",
                       copies.row_major, ", transposed ", copies.transposed, ", record ", record,
                       ", scale is found ", scale_is_found));
  constexpr float scale = 37.0f;
  TestDevice<Cuda> device(detail::kernel_workspace_bytes);
  const std::vector<Bf16> garbage(static_cast<std::size_t>(rows * columns),
                                  Bf16::from_bits(0xffff));
  const Operand<Bf16, Kind, Cuda> dense{device.matrix(garbage, columns)};
  producer(dense, device);
  const std::vector<Bf16> values = device.read(dense.values);
  const TestOperand<P, Kind, Cuda> fused(device, garbage, columns, scale);
  auto operand = fused.operand(copies, record);
  operand.scale_is_found = scale_is_found;
  producer(operand, device);
  expect_same(quantized_on<P, Kind, Cpu>(values, columns, scale, copies, record, scale_is_found),
              fused.read());
}

template <OperandKind Kind, class Producer>
void compare_all_recipes(Index rows, Index columns, const Producer& producer) {
  compare_produced<Fp8Recipe<Delayed>, Kind>(rows, columns, producer);
  compare_produced<Fp8Recipe<Tensorwise>, Kind>(rows, columns, producer);
  compare_produced<Fp8Recipe<Tensorwise>, Kind>(rows, columns, producer, {}, false, true);
  compare_produced<Fp8Recipe<Rowwise>, Kind>(rows, columns, producer);
  compare_produced<Fp8Recipe<Blockwise>, Kind>(rows, columns, producer);
  compare_produced<Mxfp8, Kind>(rows, columns, producer);
  if (rows % 16 == 0 && columns % 16 == 0) compare_produced<Nvfp4, Kind>(rows, columns, producer);
}

constexpr std::pair<Index, Index> shapes[] = {{1, 8},     {17, 37},   {130, 136}, {257, 264},
                                              {144, 512}, {256, 384}, {272, 4104}};

/// A producer that normalises rows, and remembers the inverse root mean squares it found.
class RmsNormProducer {
 public:
  RmsNormProducer(Index rows, Index columns)
      : rows_(rows),
        columns_(columns),
        x_(normal_values<Bf16>(rows * columns, 2.0f, 1)),
        weight_(normal_values<Bf16>(columns, 1.0f, 2)) {}

  /// Makes rows with an Inf and with a NaN.
  void spoil() {
    x_[static_cast<std::size_t>(rows_ / 2 * columns_)].bits = 0xff80u;
    x_[x_.size() - 1].bits = 0x7fc1u;
  }

  template <class Y>
  void operator()(const Y& y, TestDevice<Cuda>& device) const {
    const TensorView<float, 1, Cuda> inverse_rms{device.make_poisoned<float>(rows_), {rows_}};
    rms_norm_forward(support::constant(device.matrix(x_, columns_)),
                     support::constant(device.vector(weight_)), 1e-5f, y, inverse_rms,
                     device.context());
    found_.push_back(device.read(inverse_rms));
  }

  /// Expects that every call found the same, to the bit: a backward may follow any of them.
  void expect_equal_roots() const {
    for (const std::vector<float>& found : found_) EXPECT_TRUE(found == found_.front());
  }

 private:
  Index rows_;
  Index columns_;
  std::vector<Bf16> x_;
  std::vector<Bf16> weight_;
  mutable std::vector<std::vector<float>> found_;
};

TEST_F(ProducersOnCuda, FusedRmsNormMatchesSeparateCast) {
  for (const auto& [rows, columns] : shapes) {
    const RmsNormProducer producer(rows, columns);
    compare_all_recipes<OperandKind::input>(rows, columns, producer);
    producer.expect_equal_roots();
  }
}

TEST_F(ProducersOnCuda, FusedRmsNormOfInfAndNanMatchesSeparateCast) {
  for (const auto& [rows, columns] : shapes) {
    RmsNormProducer producer(rows, columns);
    producer.spoil();
    compare_all_recipes<OperandKind::input>(rows, columns, producer);
  }
}

// Blocks find the roots of some bands of 128 rows before others cast the first band; with more
// bands they take turns.
TEST_F(ProducersOnCuda, FusedRmsNormOfManyBandsMatchesSeparateCast) {
  constexpr std::pair<Index, Index> band_shapes[] = {
      {16, 512},   {64, 4096}, {80, 1536},  {208, 3584}, {272, 4096}, {256, 4096},
      {8208, 512}, {72, 4096}, {8200, 512}, {8192, 512}, {64, 4608},  {64, 4088}};
  for (const auto& [rows, columns] : band_shapes) {
    const RmsNormProducer producer(rows, columns);
    compare_produced<Fp8Recipe<Delayed>, OperandKind::input>(rows, columns, producer);
    compare_produced<Fp8Recipe<Tensorwise>, OperandKind::input>(rows, columns, producer);
    compare_produced<Fp8Recipe<Rowwise>, OperandKind::input>(rows, columns, producer);
    producer.expect_equal_roots();
  }
}

TEST_F(ProducersOnCuda, FusedRmsNormWritesOnlyRequestedCopies) {
  constexpr OperandCopies copies[] = {{true, true}, {true, false}, {false, true}, {false, false}};
  for (const OperandCopies wanted : copies) {
    for (const bool record : {true, false}) {
      // Rows of the row-major copy alone need not come in multiples of 16.
      for (const Index rows : {1, 72, 144, 256}) {
        const RmsNormProducer producer(rows, 1024);
        compare_produced<Fp8Recipe<Delayed>, OperandKind::input>(rows, 1024, producer, wanted,
                                                                 record);
        compare_produced<Fp8Recipe<Rowwise>, OperandKind::input>(rows, 1024, producer, wanted,
                                                                 record);
        producer.expect_equal_roots();
      }
    }
  }
}

TEST_F(ProducersOnCuda, FusedSwigluMatchesSeparateCast) {
  for (const auto& [rows, ffn] : shapes) {
    const auto gate_up = normal_values<Bf16>(rows * 2 * ffn, 2.0f, 3);
    const auto producer = [&, ffn = ffn](const auto& y, TestDevice<Cuda>& device) {
      swiglu_forward(support::constant(device.matrix(gate_up, 2 * ffn)), y, device.context());
    };
    compare_all_recipes<OperandKind::input>(rows, ffn, producer);
  }
}

// Also by recipes that compute the values in two passes. Each value is counted once, as is a NaN;
// without any that saturated, no block adds to the counter.
TEST_F(ProducersOnCuda, SwigluOfE4M3CountsSaturatedValues) {
  for (const float deviation : {2.0f, 200.0f}) {
    for (const auto& [rows, ffn] : shapes) {
      auto gate_up = normal_values<E4M3>(rows * 2 * ffn, deviation, 3);
      if (deviation == 200.0f) gate_up.back() = E4M3(NAN);
      const auto saturated =
          static_cast<std::uint64_t>(std::count_if(gate_up.begin(), gate_up.end(), [](E4M3 code) {
            return !(std::abs(static_cast<float>(code)) < 448);
          }));
      if (rows > 1) EXPECT_EQ(saturated > 0, deviation == 200.0f);
      const auto producer = [&, ffn = ffn](const auto& y, TestDevice<Cuda>& device) {
        OperandStatistics* statistics = device.make(std::vector<OperandStatistics>(1));
        const auto input = support::constant(device.matrix(gate_up, 2 * ffn));
        swiglu_forward(input, y, statistics, device.context());
        const OperandStatistics found = device.read(statistics, 1)[0];
        EXPECT_EQ(found.elements, gate_up.size());
        EXPECT_EQ(found.saturated, saturated);
      };
      compare_all_recipes<OperandKind::input>(rows, ffn, producer);
    }
  }
}

TEST_F(ProducersOnCuda, FusedSwigluGradientMatchesSeparateCast) {
  for (const auto& [rows, ffn] : shapes) {
    const auto gate_up = normal_values<Bf16>(rows * 2 * ffn, 2.0f, 4);
    const auto gradient = normal_values<Bf16>(rows * ffn, 0.1f, 5);
    const auto producer = [&, ffn = ffn](const auto& y, TestDevice<Cuda>& device) {
      swiglu_backward(support::constant(device.matrix(gradient, ffn)),
                      support::constant(device.matrix(gate_up, 2 * ffn)), y, device.context());
    };
    compare_all_recipes<OperandKind::output_gradient>(rows, 2 * ffn, producer);
  }
}

TEST_F(ProducersOnCuda, FusedLayerNormMatchesSeparateCast) {
  for (const bool spoilt : {false, true}) {
    for (const auto& [rows, columns] : shapes) {
      auto x = normal_values<Bf16>(rows * columns, 2.0f, 1);
      if (spoilt) x[static_cast<std::size_t>(rows / 2 * columns)].bits = 0xff80u;
      const auto weight = normal_values<Bf16>(columns, 1.0f, 2);
      const auto bias = normal_values<Bf16>(columns, 1.0f, 3);
      std::vector<std::vector<float>> found;
      const auto producer = [&, rows = rows, columns = columns](const auto& y,
                                                                TestDevice<Cuda>& device) {
        const TensorView<float, 1, Cuda> statistics{device.make_poisoned<float>(2 * rows),
                                                    {2 * rows}};
        layer_norm_forward(
            support::constant(device.matrix(x, columns)), support::constant(device.vector(weight)),
            support::constant(device.vector(bias)), 1e-5f, y, statistics, device.context());
        found.push_back(device.read(statistics));
      };
      compare_all_recipes<OperandKind::input>(rows, columns, producer);
      if (spoilt) continue;
      for (const std::vector<float>& one : found) EXPECT_TRUE(one == found.front());
    }
  }
}

TEST_F(ProducersOnCuda, FusedGeluMatchesSeparateCast) {
  for (const auto& [rows, columns] : shapes) {
    const auto x = normal_values<Bf16>(rows * columns, 2.0f, 3);
    const auto producer = [&, columns = columns](const auto& y, TestDevice<Cuda>& device) {
      gelu_forward(support::constant(device.matrix(x, columns)), y, device.context());
    };
    compare_all_recipes<OperandKind::input>(rows, columns, producer);
  }
}

/// Expects sums of columns that were made in another order.
void expect_sums(const std::vector<std::vector<float>>& all) {
  for (const std::vector<float>& sums : all) {
    ASSERT_EQ(sums.size(), all.front().size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(sums[i], all.front()[i], 1e-4 * (1.0 + std::abs(all.front()[i]))) << i;
    }
  }
}

TEST_F(ProducersOnCuda, FusedGeluGradientMatchesSeparateCastAndSum) {
  for (const bool biased : {false, true}) {
    for (const auto& [rows, columns] : shapes) {
      const auto x = normal_values<Bf16>(rows * columns, 2.0f, 4);
      const auto gradient = normal_values<Bf16>(rows * columns, 0.1f, 5);
      std::vector<std::vector<float>> found;
      const auto producer = [&, columns = columns](const auto& y, TestDevice<Cuda>& device) {
        const auto sums =
            device.vector(std::vector<float>(static_cast<std::size_t>(columns), 0.5f));
        gelu_backward(support::constant(device.matrix(gradient, columns)),
                      support::constant(device.matrix(x, columns)), y,
                      biased ? sums : TensorView<float, 1, Cuda>{}, device.context());
        found.push_back(device.read(sums));
      };
      compare_all_recipes<OperandKind::output_gradient>(rows, columns, producer);
      expect_sums(found);
    }
  }
}

TEST_F(ProducersOnCuda, FusedBiasGradientMatchesSeparateCastAndSum) {
  for (const auto& [rows, columns] : shapes) {
    const auto values = normal_values<Bf16>(rows * columns, 1.0f, 6);
    std::vector<std::vector<float>> found;
    const auto producer = [&, columns = columns](const auto& y, TestDevice<Cuda>& device) {
      const auto sums = device.vector(std::vector<float>(static_cast<std::size_t>(columns), 0.5f));
      copy_to_device_sync(y.values.data(), values.data(), y.values.bytes(), device.context());
      bias_backward(y, sums, device.context());
      found.push_back(device.read(sums));
    };
    compare_all_recipes<OperandKind::output_gradient>(rows, columns, producer);
    expect_sums(found);
    for (Index c = 0; c < columns; ++c) {
      double expected = 0.5;
      for (Index r = 0; r < rows; ++r) {
        expected += static_cast<float>(values[static_cast<std::size_t>(r * columns + c)]);
      }
      ASSERT_NEAR(found.front()[static_cast<std::size_t>(c)], expected,
                  1e-4 * (1.0 + std::abs(expected)));
    }
  }
}

TEST_F(ProducersOnCuda, FusedRopeGradientMatchesSeparateCast) {
  for (const HeadLayout layout :
       {HeadLayout{4, 2, 32}, HeadLayout{3, 1, 10}, HeadLayout{6, 2, 128}}) {
    for (const Index rows : {1, 34, 256, 272}) {
      const Index sequence = (rows + 1) / 2;
      const auto gradient = normal_values<Bf16>(rows * layout.columns(), 1.0f, 6);
      const auto rotation = normal_values<float>(sequence * layout.head_dim, 0.7f, 7);
      const auto producer = [&](const auto& y, TestDevice<Cuda>& device) {
        rope_backward(device.matrix(gradient, layout.columns()), layout,
                      TensorView<const Bf16, 2, Cuda>{}, QkNorm<const Bf16, Cuda>{},
                      QkNorm<float, Cuda>{},
                      support::constant(device.matrix(rotation, layout.head_dim)), sequence, y,
                      device.context());
      };
      compare_all_recipes<OperandKind::output_gradient>(rows, layout.columns(), producer);
    }
  }
}

}  // namespace quantize_cuda_test
}  // namespace octavo
