// The Cuda device against the Cpu device: quantisation to the bit, and a linear layer's three
// GEMMs, launched directly and from a CUDA graph, against FP64 products of the same FP8 operands.
#include <octavo/cuda.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <random>
#include <tuple>
#include <vector>

#include "support/on_gpu.cuh"

namespace octavo {
namespace linear_cuda_test {

using support::OnGpu;

void poison(void* memory, std::size_t bytes, const Context<Cpu>&) {
  std::memset(memory, 0xff, bytes);
}
void poison(void* memory, std::size_t bytes, const Context<Cuda>& context) {
  check(cudaMemsetAsync(memory, 0xff, bytes, context.stream()), "cudaMemsetAsync");
}

/// Where the arena's next piece will begin.
template <Device D>
std::byte* mark(Arena<D>& arena) {
  return arena.template allocate<std::byte>(MemoryKind::activations, 0);
}

/// Runs `layout` on a measuring arena, then on one with memory.
template <Device D, class Layout>
Arena<D> make_arena(const Context<D>& context, const Layout& layout) {
  Arena<D> measuring;
  layout(measuring);
  Arena<D> arena(measuring.plan(), context);
  poison(mark(arena), arena.allocated(), context);
  layout(arena);
  return arena;
}

template <class T, Device D>
std::vector<T> download(const T* source, Index count, const Context<D>& context) {
  std::vector<T> result(static_cast<std::size_t>(count));
  copy_to_host_sync(result.data(), source, result.size() * sizeof(T), context);
  return result;
}

template <class T, Device D>
void upload(T* target, const std::vector<T>& source, const Context<D>& context) {
  copy_to_device_sync(target, source.data(), source.size() * sizeof(T), context);
}

/// What a slot points to.
template <Device D>
OperandScaling download(const ScalingSlot& slot, const Context<D>& context) {
  return {download(slot.scaling, 1, context)[0], download(slot.statistics, 1, context)[0],
          download(slot.amax_bits, 1, context)[0]};
}

auto members(const OperandScaling& slot) {
  return std::tuple(float_bits(slot.scale), float_bits(slot.scale_inverse), slot.amax_bits,
                    slot.last_amax_bits, slot.position, slot.nonfinite, slot.elements,
                    slot.saturated, slot.flushed);
}

std::vector<float> normal_values(Index count, double deviation, std::mt19937& random) {
  std::normal_distribution<double> distribution(0.0, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(distribution(random));
  return values;
}

template <class T>
std::vector<T> converted(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(T(value));
  return result;
}

// ---- quantisation -------------------------------------------------------------------------------

enum class Pattern { normal, zeros, every_bit_pattern, subnormal, huge, with_infinity, with_nan };
constexpr Pattern patterns[] = {Pattern::normal,    Pattern::zeros, Pattern::every_bit_pattern,
                                Pattern::subnormal, Pattern::huge,  Pattern::with_infinity,
                                Pattern::with_nan};

std::vector<Bf16> make_pattern(Pattern pattern, Index count, std::mt19937& random) {
  std::vector<Bf16> values = converted<Bf16>(normal_values(count, 3.0, random));
  std::uint32_t number = 0;
  for (Bf16& value : values) {
    // An odd factor: 65536 values in a row hold every pattern once.
    const auto bits = static_cast<std::uint16_t>(40503u * number++);
    if (pattern == Pattern::zeros) value.bits = static_cast<std::uint16_t>(bits & 0x8000u);
    if (pattern == Pattern::every_bit_pattern) value.bits = bits;
    if (pattern == Pattern::subnormal) value.bits = static_cast<std::uint16_t>(bits & 0x807fu);
    if (pattern == Pattern::huge)
      value.bits = static_cast<std::uint16_t>((bits & 0x80ffu) | 0x7e00u);
  }
  const auto middle = static_cast<std::size_t>(count / 2);
  if (pattern == Pattern::with_infinity) values[middle].bits = 0xff80u;
  if (pattern == Pattern::with_nan) values[middle].bits = 0x7fc1u;
  return values;
}

struct QuantizeCase {
  Index rows;
  Index columns;
  OperandCopies copies;
  bool record;
  float scale;  ///< in the slot before
};

/// All that quantize may write.
struct Quantized {
  std::vector<std::uint8_t> row_major;
  std::vector<std::uint8_t> transposed;
  OperandScaling slot;
};

template <class P, OperandKind Kind, Device D>
Quantized quantized_on(const QuantizeCase& test, const std::vector<Bf16>& values) {
  const Context<D> context;
  OperandMemory<P, Kind, D> memory;
  OperandScaling* slot = nullptr;
  const auto layout = [&](Arena<D>& arena) {
    memory.allocate_values(arena, MemoryKind::activations, test.rows, test.columns);
    memory.allocate_row_major(arena, MemoryKind::activations, test.rows, test.columns);
    memory.allocate_transposed(arena, MemoryKind::activations, test.rows, test.columns);
    slot = arena.template allocate<OperandScaling>(MemoryKind::scaling, 1);
  };
  const Arena<D> arena = make_arena(context, layout);
  OperandScaling before{};
  before.scale = test.scale;
  before.scale_inverse = 1.0f / test.scale;
  before.last_amax_bits = 7;
  before.saturated = 5;
  upload(memory.values, values, context);
  upload(slot, std::vector<OperandScaling>{before}, context);
  quantize(memory.operand(test.rows, test.columns, slot, test.record, test.copies), context);
  const auto bytes = [&](const auto* copy) {
    return download(reinterpret_cast<const std::uint8_t*>(copy), test.rows * test.columns, context);
  };
  return {bytes(memory.row_major), bytes(memory.transposed), download(slot, 1, context)[0]};
}

/// Copies and recording in turn, so that every shape and pattern meets some of them.
template <class P, OperandKind Kind>
void compare_quantized(const std::vector<float>& scales) {
  constexpr std::pair<Index, Index> shapes[] = {{1, 16},    {16, 1},    {17, 33},  {129, 257},
                                                {128, 128}, {256, 256}, {17, 64},  {16, 384},
                                                {300, 48},  {130, 136}, {272, 520}};
  constexpr OperandCopies copies[] = {{true, true}, {true, false}, {false, true}};
  std::mt19937 random(1);
  std::size_t number = 0;
  for (const auto& [rows, columns] : shapes) {
    for (const Pattern pattern : patterns) {
      const std::vector<Bf16> values = make_pattern(pattern, rows * columns, random);
      for (const float scale : scales) {
        const QuantizeCase test{rows, columns, copies[number % 3], number % 5 != 0, scale};
        SCOPED_TRACE(message(rows, " x ", columns, ", pattern ", static_cast<int>(pattern),
                             ", copies ", number % 3, ", record ", test.record, ", scale ", scale));
        ++number;
        const Quantized cpu = quantized_on<P, Kind, Cpu>(test, values);
        const Quantized cuda = quantized_on<P, Kind, Cuda>(test, values);
        ASSERT_EQ(members(cpu.slot), members(cuda.slot));
        ASSERT_TRUE(cpu.row_major == cuda.row_major);
        ASSERT_TRUE(cpu.transposed == cuda.transposed);
      }
    }
  }
}

class QuantizeOnCuda : public OnGpu {};

TEST_F(QuantizeOnCuda, TensorwiseIsBitwiseEqualToCpu) {
  compare_quantized<Fp8Recipe<Tensorwise>, OperandKind::input>({1.0f});
  compare_quantized<Fp8Recipe<Tensorwise>, OperandKind::output_gradient>({1.0f});
}

TEST_F(QuantizeOnCuda, PowerOfTwoTensorwiseIsBitwiseEqualToCpu) {
  using P = Fp8Recipe<TensorwiseScaling<ScaleRounding::power_of_two>>;
  compare_quantized<P, OperandKind::weight>({1.0f});
}

TEST_F(QuantizeOnCuda, DelayedIsBitwiseEqualToCpu) {
  const std::vector<float> scales{1.0f, 0.37f, 0x1p20f, 1e-30f, FLT_MAX};
  compare_quantized<Fp8Recipe<Delayed>, OperandKind::input>(scales);
  compare_quantized<Fp8Recipe<Delayed>, OperandKind::output_gradient>(scales);
}

/// Scaling states and histories after some steps of quantisation and updates.
struct ScalingState {
  std::vector<OperandScaling> slots;
  std::vector<std::byte> histories;
};

template <class P, OperandKind Kind, Device D>
void quantize_into(ScalingSlot slot, const std::vector<Bf16>& values, const Context<D>& context) {
  const Index rows = static_cast<Index>(values.size()) / 16;
  OperandMemory<P, Kind, D> memory;
  const auto layout = [&](Arena<D>& arena) {
    memory.allocate_values(arena, MemoryKind::activations, rows, 16);
    memory.allocate_row_major(arena, MemoryKind::activations, rows, 16);
  };
  const Arena<D> arena = make_arena(context, layout);
  upload(memory.values, values, context);
  quantize(memory.operand(rows, 16, slot, true, {true, false}), context);
  context.synchronize();
}

using ShortHistory = Fp8Recipe<DelayedScaling<3>>;
using NewestOnly = Fp8Recipe<
    DelayedScaling<5, AmaxReduction::most_recent, Margin{2}, ScaleRounding::power_of_two>>;

template <Device D>
std::vector<ScalingState> scaling_states() {
  const Context<D> context;
  ScalingTable<D> table;
  table.template add<ShortHistory, OperandKind::input>("a");
  table.template add<NewestOnly, OperandKind::input>("b");
  table.template add<Fp8Recipe<Tensorwise>, OperandKind::input>("c");
  table.template add<ShortHistory, OperandKind::output_gradient>("d");
  const Arena<D> arena = make_arena(context, [&](Arena<D>& taken) { table.allocate(taken); });
  table.reset_sync(context);
  std::mt19937 random(2);
  std::vector<ScalingState> states;
  for (int step = 0; step < 12; ++step) {
    const Pattern pattern = step == 4   ? Pattern::with_infinity
                            : step == 6 ? Pattern::zeros
                            : step == 8 ? Pattern::with_nan
                                        : Pattern::normal;
    std::vector<Bf16> values = make_pattern(pattern, 40 * 16, random);
    for (Bf16& value : values) {
      value = Bf16(static_cast<float>(value) * std::ldexp(1.0f, step % 4 * 5));
    }
    quantize_into<ShortHistory, OperandKind::input, D>(table.slot(0), values, context);
    quantize_into<NewestOnly, OperandKind::input, D>(table.slot(1), values, context);
    quantize_into<Fp8Recipe<Tensorwise>, OperandKind::input, D>(table.slot(2), values, context);
    quantize_into<ShortHistory, OperandKind::output_gradient, D>(table.slot(3), values, context);
    if (step % 2 == 1) table.update(context);
    if (step == 9) table.clear_statistics(context);
    ScalingState& state = states.emplace_back();
    for (std::size_t i = 0; i < 4; ++i) state.slots.push_back(download(table.slot(i), context));
    const auto collect = [&](const std::string&, auto view) {
      const auto bytes = download(reinterpret_cast<const std::byte*>(view.data()),
                                  static_cast<Index>(view.bytes()), context);
      state.histories.insert(state.histories.end(), bytes.begin(), bytes.end());
    };
    table.visit_state(collect);
  }
  return states;
}

TEST_F(QuantizeOnCuda, DelayedScaleUpdatesMatchCpu) {
  const std::vector<ScalingState> cpu = scaling_states<Cpu>();
  const std::vector<ScalingState> cuda = scaling_states<Cuda>();
  for (std::size_t step = 0; step < cpu.size(); ++step) {
    SCOPED_TRACE(message("step ", step));
    for (std::size_t i = 0; i < cpu[step].slots.size(); ++i) {
      ASSERT_EQ(members(cpu[step].slots[i]), members(cuda[step].slots[i])) << "slot " << i;
    }
    ASSERT_TRUE(cpu[step].histories == cuda[step].histories);
  }
  EXPECT_NE(cpu.back().slots[0].scale, 1.0f);
  EXPECT_EQ(cpu.back().slots[0].nonfinite, 2u);
}

// ---- a linear layer -----------------------------------------------------------------------------

constexpr int in_features = 256;
constexpr int out_features = 384;

/// What one step of the layer starts from.
template <class G>
struct StepInputs {
  std::vector<Bf16> x, weight, y_gradient, residual;
  std::vector<G> gradient;

  StepInputs(Index tokens, unsigned seed) {
    std::mt19937 random(seed);
    x = converted<Bf16>(normal_values(tokens * in_features, 1.0, random));
    weight = converted<Bf16>(normal_values(out_features * in_features, 0.05, random));
    y_gradient = converted<Bf16>(normal_values(tokens * out_features, 1e-4, random));
    residual = converted<Bf16>(normal_values(tokens * out_features, 1.0, random));
    gradient = converted<G>(normal_values(out_features * in_features, 1e-3, random));
  }
};

/// All that one step of the layer made.
template <class G>
struct StepResult {
  std::vector<std::uint8_t> operands;  ///< values and FP8 copies of weight, x and dy
  std::vector<OperandScaling> slots;
  std::vector<Bf16> y, x_gradient;
  std::vector<G> weight_gradient;
  std::size_t x_copy = 0, y_gradient_copy = 0;  ///< places in `operands`; the weight's is 0

  [[nodiscard]] bool same_operands(const StepResult& other) const {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (members(slots[i]) != members(other.slots[i])) return false;
    }
    return operands == other.operands;
  }
  [[nodiscard]] bool same_bits(const StepResult& other) const {
    return same_operands(other) && y == other.y && x_gradient == other.x_gradient &&
           weight_gradient == other.weight_gradient;
  }
};

/// A linear layer with all its memory, written once for both devices.
template <class G, Device D, class P = Fp8Recipe<Tensorwise>>
class Layer {
 public:
  using L = Linear<P, in_features, out_features, G, D>;

  explicit Layer(Index tokens) : tokens_(tokens) {
    linear_.declare("linear", {&scaling_, &manifest_});
    arena_ = make_arena(context_, [&](Arena<D>& arena) { allocate(arena); });
    context_.bind_workspace({workspace_, workspace_bytes()});
  }

  void start(const StepInputs<G>& inputs) {
    poison(begin_, static_cast<std::size_t>(end_ - begin_), context_);
    scaling_.reset_sync(context_);
    upload(weight_.weight.data(), inputs.weight, context_);
    upload(weight_.gradient.data(), inputs.gradient, context_);
    upload(input_.values, inputs.x, context_);
    upload(y_gradient_.values, inputs.y_gradient, context_);
    upload(residual_.data(), inputs.residual, context_);
  }

  /// y = x · Wᵀ + residual; dx = dy · W; dW += dyᵀ · x.
  void run() {
    linear_.template quantize_weight<Mode::train>(context_);
    const auto x = linear_.template input<Mode::train>(input_, tokens_, {true, true});
    quantize(x, context_);
    const TensorView<const Bf16, 2, D> residual = residual_;
    linear_.forward(x, residual, y_, context_);
    const auto y_gradient = linear_.output_gradient(y_gradient_, tokens_);
    quantize(y_gradient, context_);
    linear_.backward_input(y_gradient, x_gradient_, context_);
    linear_.backward_weight(y_gradient, x, weight_.gradient, true, context_);
  }

  [[nodiscard]] StepResult<G> result() const {
    const auto place = [&](const auto* copy) {
      return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(copy) - operands_begin_);
    };
    StepResult<G> result;
    result.operands = download(reinterpret_cast<const std::uint8_t*>(operands_begin_),
                               operands_end_ - operands_begin_, context_);
    for (std::size_t i = 0; i < 3; ++i) {
      result.slots.push_back(download(scaling_.slot(i), context_));
    }
    result.y = download(y_.data(), y_.size(), context_);
    result.x_gradient = download(x_gradient_.data(), x_gradient_.size(), context_);
    result.weight_gradient = download(weight_.gradient.data(), weight_.gradient.size(), context_);
    result.x_copy = place(input_.row_major);
    result.y_gradient_copy = place(y_gradient_.row_major);
    return result;
  }

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] Context<D>& context() { return context_; }

 private:
  void allocate(Arena<D>& arena) {
    constexpr MemoryKind kind = MemoryKind::activations;
    begin_ = mark(arena);
    weight_.allocate(arena, "linear.weight", out_features, in_features, Initial::normal(0.05f));
    weight_.allocate_gradient(arena);
    operands_begin_ = mark(arena);  // the weight's row-major copy comes first
    linear_.allocate_weight_copies(arena, weight_);
    input_.allocate_values(arena, kind, tokens_, in_features);
    input_.allocate_row_major(arena, kind, tokens_, in_features);
    input_.allocate_transposed(arena, kind, tokens_, in_features);
    y_gradient_.allocate_values(arena, kind, tokens_, out_features);
    y_gradient_.allocate_row_major(arena, kind, tokens_, out_features);
    y_gradient_.allocate_transposed(arena, kind, tokens_, out_features);
    residual_ = take_matrix(arena, out_features);
    operands_end_ = mark(arena);
    y_ = take_matrix(arena, out_features);
    x_gradient_ = take_matrix(arena, in_features);
    scaling_.allocate(arena);
    end_ = mark(arena);
    workspace_ = arena.template allocate<std::byte>(MemoryKind::workspace,
                                                    static_cast<Index>(workspace_bytes()));
  }
  TensorView<Bf16, 2, D> take_matrix(Arena<D>& arena, Index columns) {
    return {arena.template allocate<Bf16>(MemoryKind::activations, tokens_ * columns),
            {tokens_, columns}};
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return std::max({matmul_workspace(tokens_, out_features, in_features, context_),
                     matmul_workspace(tokens_, in_features, out_features, context_),
                     matmul_workspace(out_features, in_features, tokens_, context_)});
  }

  Index tokens_;
  Context<D> context_;
  Manifest manifest_;
  ScalingTable<D> scaling_;
  L linear_;
  typename L::Weight weight_;
  typename L::InputMemory input_;
  typename L::OutputGradientMemory y_gradient_;
  TensorView<Bf16, 2, D> residual_, y_, x_gradient_;
  std::byte* begin_ = nullptr;
  std::byte* operands_begin_ = nullptr;
  std::byte* operands_end_ = nullptr;
  std::byte* end_ = nullptr;
  std::byte* workspace_ = nullptr;
  Arena<D> arena_;
};

/// A value, the product in it before an addend, and the sum of the magnitudes of the product's
/// terms.
struct Expected {
  double value = 0;
  double product = 0;
  double magnitude = 0;
};

/// FP8 bytes as numbers, by the formats' definition.
double decode(std::uint8_t bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7f) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  const double value = std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
  return (bits & 0x80) != 0 ? -value : value;
}

/// A row-major matrix of numbers.
struct Matrix {
  Index rows, columns;
  std::vector<double> values;

  Matrix(Index r, Index c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  double& at(Index r, Index c) { return values[static_cast<std::size_t>(r * columns + c)]; }
  [[nodiscard]] const double* row(Index r) const { return values.data() + r * columns; }
  [[nodiscard]] Matrix transposed() const {
    Matrix result(columns, rows);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c) result.at(c, r) = row(r)[c];
    }
    return result;
  }
};

template <class G>
Matrix decode_matrix(const StepResult<G>& result, std::size_t place, Index rows, Index columns,
                     bool is_e5m2, const OperandScaling& slot) {
  Matrix matrix(rows, columns);
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    matrix.values[i] = decode(result.operands[place + i], is_e5m2 ? 2 : 3, is_e5m2 ? 15 : 7) *
                       static_cast<double>(slot.scale_inverse);
  }
  return matrix;
}

/// a · bᵀ + addend in FP64.
template <class T>
std::vector<Expected> multiply(const Matrix& a, const Matrix& b, const std::vector<T>& addend) {
  std::vector<Expected> result(static_cast<std::size_t>(a.rows * b.rows));
  for (Index r = 0; r < a.rows; ++r) {
    for (Index c = 0; c < b.rows; ++c) {
      const auto i = static_cast<std::size_t>(r * b.rows + c);
      Expected sum;
      for (Index k = 0; k < a.columns; ++k) {
        const double product = a.row(r)[k] * b.row(c)[k];
        sum.value += product;
        sum.magnitude += std::abs(product);
      }
      sum.product = sum.value;
      if (!addend.empty()) sum.value += static_cast<double>(static_cast<float>(addend[i]));
      result[i] = sum;
    }
  }
  return result;
}

/// Each value may differ by one unit of BF16's last place, and by what the 14 bits of the FP8
/// tensor cores' accumulators lose. cuBLASLt rounds an FP8 product to BF16 before it adds a BF16
/// addend, so half a unit of the product's last place comes to it.
template <class T>
void expect_close(const char* name, const std::vector<T>& actual,
                  const std::vector<Expected>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  const double unit = std::is_same_v<T, Bf16> ? 0x1p-7 : 0x1p-20;
  double worst = 0;
  double squared_error = 0;
  double squared_sum = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto value = static_cast<double>(static_cast<float>(actual[i]));
    const double error = std::abs(value - expected[i].value);
    const double allowed = unit * std::abs(expected[i].value) +
                           unit / 2 * std::abs(expected[i].product) +
                           0x1p-12 * expected[i].magnitude;
    ASSERT_LE(error, allowed) << name << " at " << i << ": " << value << " in place of "
                              << expected[i].value;
    worst = std::max(worst, error / allowed);
    squared_error += error * error;
    squared_sum += expected[i].value * expected[i].value;
  }
  const double relative = std::sqrt(squared_error / squared_sum);
  std::printf("  %-14s worst error %.3f of what is allowed, relative norm of errors %.2e\n", name,
              worst, relative);
  EXPECT_LE(relative, 0x1p-8) << name;
}

/// Compares all three products of each result with FP64 products of the row-major FP8 copies, which
/// all results share.
template <class G>
void expect_products(std::initializer_list<const StepResult<G>*> results,
                     const StepInputs<G>& inputs, Index tokens) {
  const StepResult<G>& first = **results.begin();
  const Matrix w = decode_matrix(first, 0, out_features, in_features, false, first.slots[1]);
  const Matrix x = decode_matrix(first, first.x_copy, tokens, in_features, false, first.slots[0]);
  const Matrix y_gradient =
      decode_matrix(first, first.y_gradient_copy, tokens, out_features, true, first.slots[2]);
  const auto y = multiply(x, w, inputs.residual);
  const auto x_gradient = multiply(y_gradient, w.transposed(), std::vector<float>{});
  const auto weight_gradient = multiply(y_gradient.transposed(), x.transposed(), inputs.gradient);
  for (const StepResult<G>* result : results) {
    expect_close("y", result->y, y);
    expect_close("dx", result->x_gradient, x_gradient);
    expect_close("dW", result->weight_gradient, weight_gradient);
  }
}

/// What a stream was given while it was captured.
class Graph {
 public:
  template <class Work>
  Graph(const Context<Cuda>& context, const Work& work) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeGlobal),
          "cudaStreamBeginCapture");
    work();
    check(cudaStreamEndCapture(context.stream(), &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(executable_); }

  void launch(const Context<Cuda>& context) const {
    check(cudaGraphLaunch(executable_, context.stream()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

template <class G>
class LinearOnCuda : public support::OnGpuIn<Fp8Recipe<Tensorwise>> {};
using GradientFormats = testing::Types<Bf16, float>;
TYPED_TEST_SUITE(LinearOnCuda, GradientFormats);

template <class G, Device D, class P>
StepResult<G> step(Layer<G, D, P>& layer, const StepInputs<G>& inputs) {
  layer.start(inputs);
  layer.run();
  return layer.result();
}

TYPED_TEST(LinearOnCuda, MatchesCpuDirectlyAndFromGraph) {
  using G = TypeParam;
  for (const Index tokens : {16, 48, 272, 1024}) {
    SCOPED_TRACE(message(tokens, " tokens"));
    std::printf("%d tokens\n", static_cast<int>(tokens));
    const StepInputs<G> first(tokens, 1);
    const StepInputs<G> second(tokens, 2);
    Layer<G, Cpu> cpu(tokens);
    Layer<G, Cuda> cuda(tokens);
    const StepResult<G> direct[] = {step(cuda, first), step(cuda, second)};
    cuda.start(second);
    const Graph graph(cuda.context(), [&] { cuda.run(); });
    int number = 0;
    for (const StepInputs<G>* inputs : {&first, &second}) {
      const StepResult<G> expected = step(cpu, *inputs);
      const StepResult<G>& actual = direct[number++];
      ASSERT_TRUE(expected.same_operands(actual));
      expect_products({&expected, &actual}, *inputs, tokens);
      cuda.start(*inputs);
      graph.launch(cuda.context());
      EXPECT_TRUE(cuda.result().same_bits(actual));
    }
    EXPECT_FALSE(direct[0].same_bits(direct[1]));
    for (const GemmEntry& entry : cuda.manifest().entries()) {
      EXPECT_STREQ(entry.expected.implementation, "cublasLt");
      EXPECT_TRUE(entry.expected.is_fp8());
      EXPECT_EQ(entry.executed, 3u) << name_of(entry.pass);
    }
  }
}

TYPED_TEST(LinearOnCuda, FastGradientsChangeOnlyTheInputGradient) {
  using G = TypeParam;
  constexpr Index tokens = 1024;
  const StepInputs<G> inputs(tokens, 1);
  Layer<G, Cuda> full(tokens);
  Layer<G, Cuda, Fp8Recipe<Tensorwise, Hybrid, GemmAccumulation::fast>> fast(tokens);
  const StepResult<G> expected = step(full, inputs);
  const StepResult<G> actual = step(fast, inputs);
  ASSERT_TRUE(expected.same_operands(actual));
  EXPECT_EQ(expected.y, actual.y);
  EXPECT_EQ(expected.weight_gradient, actual.weight_gradient);
  expect_products({&actual}, inputs, tokens);
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "cudaGetDeviceProperties");
  if (card.major == 9) {  // whose fast accumulators are shorter
    EXPECT_NE(expected.x_gradient, actual.x_gradient);
  }
}

TYPED_TEST(LinearOnCuda, FastWeightGradientsChangeOnlyTheWeightGradient) {
  using G = TypeParam;
  constexpr Index tokens = 1024;
  const StepInputs<G> inputs(tokens, 1);
  Layer<G, Cuda> full(tokens);
  Layer<G, Cuda, Fp8Recipe<Tensorwise, Hybrid, GemmAccumulation::full, GemmAccumulation::fast>>
      fast(tokens);
  const StepResult<G> expected = step(full, inputs);
  const StepResult<G> actual = step(fast, inputs);
  ASSERT_TRUE(expected.same_operands(actual));
  EXPECT_EQ(expected.y, actual.y);
  EXPECT_EQ(expected.x_gradient, actual.x_gradient);
  expect_products({&actual}, inputs, tokens);
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "cudaGetDeviceProperties");
  if (card.major == 9) {  // whose fast accumulators are shorter
    EXPECT_NE(expected.weight_gradient, actual.weight_gradient);
  }
}

class CudaErrors : public OnGpu {};

TEST_F(CudaErrors, NamesMissingGpu) {
  try {
    const Context<Cuda> context(9999);
    FAIL() << "no exception";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("GPU 9999"), std::string::npos) << error.what();
    EXPECT_EQ(error.status(), cudaErrorInvalidDevice);
  }
}

TEST_F(CudaErrors, MoreMemoryThanTheGpuHasIsAMemoryError) {
  const Context<Cuda> context;
  try {
    const Buffer<Cuda> buffer(std::size_t{1} << 50, context);
    FAIL() << "no exception";
  } catch (const MemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("free; choose a smaller"), std::string::npos)
        << error.what();
  }
}

TEST_F(CudaErrors, RejectsProductWithoutWorkspace) {
  Layer<Bf16, Cuda> layer(16);
  layer.start(StepInputs<Bf16>(16, 1));
  layer.context().bind_workspace({});
  EXPECT_THROW(layer.run(), UsageError);
}

}  // namespace linear_cuda_test
}  // namespace octavo
