// Each kernel of the Cuda device against its Cpu body, on odd shapes and whole vectors. Sums differ
// in order, so BF16 results may differ in their last place.
#include "kernels/cuda_support.cuh"

#include <cfloat>
#include <optional>

namespace octavo {
namespace kernels_cuda_test {

using support::column_counts;
using support::constant;
using support::expect_close;
using support::normal_values;
using support::row_counts;
using support::TestDevice;

constexpr std::size_t workspace = detail::kernel_workspace_bytes;

class KernelsOnCuda : public support::OnGpu {};

// ---- normalisation ------------------------------------------------------------------------------

template <class T>
struct NormResult {
  std::vector<T> y, x_gradient;
  std::vector<float> inverse_rms, weight_gradient;
};

template <class P, Device D>
auto rms_norm_on(Index rows, Index columns) {
  using T = typename PrecisionTraits<P>::Storage;
  TestDevice<D> device(workspace);
  const auto x = constant(device.matrix(normal_values<T>(rows * columns, 2.0f, 1), columns));
  const auto weight = constant(device.vector(normal_values<T>(columns, 1.0f, 2)));
  const auto dy = constant(device.matrix(normal_values<T>(rows * columns, 1.0f, 3), columns));
  const auto dx = device.matrix(normal_values<T>(rows * columns, 1.0f, 4), columns);
  const auto dw = device.vector(normal_values<float>(columns, 1.0f, 5));
  const Operand<P, OperandKind::input, D> y{
      {device.template make<T>(rows * columns), {rows, columns}}};
  const TensorView<float, 1, D> inverse_rms{device.template make<float>(rows), {rows}};
  rms_norm_forward(x, weight, 1e-5f, y, inverse_rms, device.context());
  rms_norm_backward(dy, x, weight, constant(inverse_rms), dx, dw, device.context());
  return NormResult<T>{device.read(y.values), device.read(dx), device.read(inverse_rms),
                       device.read(dw)};
}

template <class P>
void compare_rms_norm() {
  for (const Index rows : row_counts) {
    for (const Index columns : column_counts) {
      SCOPED_TRACE(message(rows, " x ", columns));
      const auto cpu = rms_norm_on<P, Cpu>(rows, columns);
      const auto cuda = rms_norm_on<P, Cuda>(rows, columns);
      expect_close(cpu.y, cuda.y, 0.0);
      expect_close(cpu.inverse_rms, cuda.inverse_rms, 0.0);
      expect_close(cpu.x_gradient, cuda.x_gradient, 1e-5);
      expect_close(cpu.weight_gradient, cuda.weight_gradient, 1e-4);
    }
  }
}

TEST_F(KernelsOnCuda, RmsNormMatchesCpu) {
  compare_rms_norm<Bf16>();
  compare_rms_norm<Fp32>();
}

TEST_F(KernelsOnCuda, RmsNormOfManyRowsAndColumnsMatchesCpu) {
  // Registers hold rows of up to 8192 columns: one run for a thread, or two.
  for (const auto& [rows, columns] :
       {std::pair<Index, Index>{600, 4096}, {33, 4104}, {300, 8192}, {33, 8200}, {33, 16392}}) {
    const auto cpu = rms_norm_on<Bf16, Cpu>(rows, columns);
    const auto cuda = rms_norm_on<Bf16, Cuda>(rows, columns);
    expect_close(cpu.y, cuda.y, 0.0);
    expect_close(cpu.x_gradient, cuda.x_gradient, 1e-5);
    expect_close(cpu.weight_gradient, cuda.weight_gradient, 1e-3);
    EXPECT_EQ(cuda.weight_gradient, (rms_norm_on<Bf16, Cuda>(rows, columns).weight_gradient));
  }
}

template <class T>
struct LayerNormResult {
  std::vector<T> y, x_gradient;
  std::vector<float> statistics, weight_gradient, bias_gradient;
};

template <class P, Device D>
auto layer_norm_on(Index rows, Index columns) {
  using T = typename PrecisionTraits<P>::Storage;
  TestDevice<D> device(workspace);
  std::vector<T> shifted = normal_values<T>(rows * columns, 2.0f, 1);
  for (T& value : shifted) value = T(static_cast<float>(value) + 3.0f);
  const auto x = constant(device.matrix(shifted, columns));
  const auto weight = constant(device.vector(normal_values<T>(columns, 1.0f, 2)));
  const auto bias = constant(device.vector(normal_values<T>(columns, 1.0f, 6)));
  const auto dy = constant(device.matrix(normal_values<T>(rows * columns, 1.0f, 3), columns));
  const auto dx = device.matrix(normal_values<T>(rows * columns, 1.0f, 4), columns);
  const auto dw = device.vector(normal_values<float>(columns, 1.0f, 5));
  const auto db = device.vector(normal_values<float>(columns, 1.0f, 7));
  const Operand<P, OperandKind::input, D> y{
      {device.template make<T>(rows * columns), {rows, columns}}};
  const TensorView<float, 1, D> statistics{device.template make<float>(2 * rows), {2 * rows}};
  layer_norm_forward(x, weight, bias, 1e-5f, y, statistics, device.context());
  layer_norm_backward(dy, x, weight, constant(statistics), dx, dw, db, device.context());
  return LayerNormResult<T>{device.read(y.values), device.read(dx), device.read(statistics),
                            device.read(dw), device.read(db)};
}

template <class P>
void compare_layer_norm(Index rows, Index columns) {
  SCOPED_TRACE(message(rows, " x ", columns));
  const auto cpu = layer_norm_on<P, Cpu>(rows, columns);
  const auto cuda = layer_norm_on<P, Cuda>(rows, columns);
  expect_close(cpu.y, cuda.y, 1e-5);  // where the bias takes all away
  expect_close(cpu.statistics, cuda.statistics, 1e-6);
  expect_close(cpu.x_gradient, cuda.x_gradient, 1e-5);
  expect_close(cpu.weight_gradient, cuda.weight_gradient, 1e-3);
  expect_close(cpu.bias_gradient, cuda.bias_gradient, 1e-3);
  EXPECT_EQ(cuda.weight_gradient, (layer_norm_on<P, Cuda>(rows, columns).weight_gradient));
}

TEST_F(KernelsOnCuda, LayerNormMatchesCpu) {
  for (const Index rows : row_counts) {
    for (const Index columns : column_counts) {
      compare_layer_norm<Bf16>(rows, columns);
      compare_layer_norm<Fp32>(rows, columns);
    }
  }
}

TEST_F(KernelsOnCuda, LayerNormOfManyRowsAndColumnsMatchesCpu) {
  // Registers of a warp hold 3, 4 or 7 runs of 256 columns; other rows are a block's.
  for (const auto& [rows, columns] : {std::pair<Index, Index>{5000, 768},
                                      {700, 1024},
                                      {3000, 1600},
                                      {600, 1792},
                                      {300, 2048},
                                      {33, 2056},
                                      {33, 8200}}) {
    compare_layer_norm<Bf16>(rows, columns);
    compare_layer_norm<Fp32>(rows, columns);
  }
}

// ---- activation ---------------------------------------------------------------------------------

template <class P, Device D>
auto gelu_on(Index rows, Index columns) {
  using T = typename PrecisionTraits<P>::Storage;
  TestDevice<D> device(workspace);
  const auto x = constant(device.matrix(normal_values<T>(rows * columns, 3.0f, 1), columns));
  const auto dy = constant(device.matrix(normal_values<T>(rows * columns, 1.0f, 2), columns));
  const auto sums = device.vector(normal_values<float>(columns, 1.0f, 3));
  const Operand<P, OperandKind::input, D> y{
      {device.template make<T>(rows * columns), {rows, columns}}};
  const Operand<P, OperandKind::output_gradient, D> gradient{
      {device.template make<T>(rows * columns), {rows, columns}}};
  gelu_forward(x, y, device.context());
  gelu_backward(dy, x, gradient, sums, device.context());
  return std::tuple(device.read(y.values), device.read(gradient.values), device.read(sums));
}

template <class P>
void compare_gelu() {
  for (const Index rows : row_counts) {
    for (const Index columns : column_counts) {
      SCOPED_TRACE(message(rows, " x ", columns));
      const auto [y, gradient, sums] = gelu_on<P, Cpu>(rows, columns);
      const auto [cuda_y, cuda_gradient, cuda_sums] = gelu_on<P, Cuda>(rows, columns);
      // Far below zero, where the gate itself is the rounding of an exponential.
      expect_close(y, cuda_y, 1e-6);
      expect_close(gradient, cuda_gradient, 1e-5);
      expect_close(sums, cuda_sums, std::is_same_v<P, Fp32> ? 1e-3 : 0.05);
      EXPECT_EQ(cuda_sums, std::get<2>(gelu_on<P, Cuda>(rows, columns)));
    }
  }
}

TEST_F(KernelsOnCuda, GeluMatchesCpu) {
  compare_gelu<Bf16>();
  compare_gelu<Fp32>();
}

// ---- learned positions --------------------------------------------------------------------------

template <class T, Device D>
auto positions_on(Index sequences, Index sequence, Index columns) {
  TestDevice<D> device(workspace);
  const Index rows = sequences * sequence;
  std::vector<std::int32_t> tokens;
  for (Index t = 0; t < rows; ++t) tokens.push_back(static_cast<std::int32_t>(t * 7 % 11));
  const auto table = constant(device.matrix(normal_values<T>(11 * columns, 1.0f, 1), columns));
  const auto positions =
      constant(device.matrix(normal_values<T>((sequence + 2) * columns, 1.0f, 2), columns));
  const auto dy = constant(device.matrix(normal_values<T>(rows * columns, 1.0f, 3), columns));
  const auto gradient =
      device.matrix(normal_values<float>((sequence + 2) * columns, 1.0f, 4), columns);
  const TensorView<T, 2, D> y{device.template make<T>(rows * columns), {rows, columns}};
  position_embedding_forward(constant(device.vector(tokens)), table, positions, {nullptr, sequence},
                             y, device.context());
  positions_backward(dy, sequence, gradient, device.context());
  return std::pair(device.read(y), device.read(gradient));
}

TEST_F(KernelsOnCuda, LearnedPositionsAreBitwiseEqualToCpu) {
  for (const Index columns : column_counts) {
    for (const Index sequence : {1, 5, 130}) {
      EXPECT_TRUE((positions_on<Bf16, Cpu>(3, sequence, columns) ==
                   positions_on<Bf16, Cuda>(3, sequence, columns)));
      EXPECT_TRUE((positions_on<float, Cpu>(3, sequence, columns) ==
                   positions_on<float, Cuda>(3, sequence, columns)));
    }
  }
}

/// @tparam W  format of the gates and ups
template <class P, class W, Device D>
auto swiglu_on(Index rows, Index ffn) {
  using T = typename PrecisionTraits<P>::Storage;
  TestDevice<D> device;
  const auto gate_up = constant(device.matrix(normal_values<W>(rows * 2 * ffn, 4.0f, 1), 2 * ffn));
  const auto dy = constant(device.matrix(normal_values<T>(rows * ffn, 1.0f, 2), ffn));
  const Operand<P, OperandKind::input, D> y{{device.template make<T>(rows * ffn), {rows, ffn}}};
  const Operand<P, OperandKind::output_gradient, D> gradient{
      {device.template make<T>(rows * 2 * ffn), {rows, 2 * ffn}}};
  swiglu_forward(gate_up, y, device.context());
  swiglu_backward(dy, gate_up, gradient, device.context());
  return std::pair(device.read(y.values), device.read(gradient.values));
}

template <class P, class W>
void compare_swiglu() {
  for (const Index rows : row_counts) {
    for (const Index ffn : column_counts) {
      SCOPED_TRACE(message(rows, " x ", ffn));
      const auto cpu = swiglu_on<P, W, Cpu>(rows, ffn);
      const auto cuda = swiglu_on<P, W, Cuda>(rows, ffn);
      expect_close(cpu.first, cuda.first, 0.0);
      expect_close(cpu.second, cuda.second, 1e-5);  // near the zero of silu's derivative
    }
  }
}

TEST_F(KernelsOnCuda, SwigluMatchesCpu) {
  compare_swiglu<Bf16, Bf16>();
  compare_swiglu<Fp32, float>();
  compare_swiglu<Bf16, E4M3>();
}

// ---- position -----------------------------------------------------------------------------------

struct RopeCase {
  HeadLayout layout;
  Index rows;
  bool normalised;
  bool in_place;
};

template <class T>
struct RopeResult {
  std::vector<T> rotated, gradient;
  std::vector<float> query_gradient, key_gradient;
};

template <class P, Device D>
auto rope_on(const RopeCase& test) {
  using T = typename PrecisionTraits<P>::Storage;
  TestDevice<D> device(workspace);
  const HeadLayout layout = test.layout;
  const Index columns = layout.columns();
  const Index sequence = (test.rows + 1) / 2;
  std::vector<float> angles = normal_values<float>(sequence * layout.head_dim, 0.7f, 1);
  const auto rotation = constant(device.matrix(angles, layout.head_dim));
  const auto qkv = device.matrix(normal_values<T>(test.rows * columns, 1.0f, 2), columns);
  const auto gradient = device.matrix(normal_values<T>(test.rows * columns, 1.0f, 3), columns);
  QkNorm<const T, D> norm;
  QkNorm<float, D> norm_gradient;
  if (test.normalised) {
    norm = {device.vector(normal_values<T>(layout.head_dim, 1.0f, 4)),
            device.vector(normal_values<T>(layout.head_dim, 1.0f, 5)), 1e-6f};
    norm_gradient = {device.vector(normal_values<float>(layout.head_dim, 1.0f, 6)),
                     device.vector(normal_values<float>(layout.head_dim, 1.0f, 7)), 1e-6f};
  }
  const auto other = [&](auto view) {
    return test.in_place
               ? view
               : device.matrix(std::vector<T>(static_cast<std::size_t>(view.size())), columns);
  };
  const auto rotated = other(qkv);
  const Operand<P, OperandKind::output_gradient, D> result{other(gradient)};
  rope_forward(constant(qkv), layout, norm, rotation, sequence, rotated, device.context());
  rope_backward(gradient, layout, constant(qkv), norm, norm_gradient, rotation, sequence, result,
                device.context());
  RopeResult<T> all{device.read(rotated), device.read(result.values), {}, {}};
  if (test.normalised) {
    all.query_gradient = device.read(norm_gradient.query);
    all.key_gradient = device.read(norm_gradient.key);
  }
  return all;
}

template <class P>
void compare_rope() {
  for (const HeadLayout layout :
       {HeadLayout{4, 2, 32}, HeadLayout{3, 1, 10}, HeadLayout{6, 2, 128}, HeadLayout{1, 1, 16}}) {
    for (const Index rows : row_counts) {
      for (const auto& [normalised, in_place] :
           {std::pair{false, true}, {false, false}, {true, false}}) {
        SCOPED_TRACE(message(layout.heads, " heads of ", layout.head_dim, ", ", rows,
                             " rows, normalised ", normalised, ", in place ", in_place));
        const RopeCase test{layout, rows, normalised, in_place};
        const auto cpu = rope_on<P, Cpu>(test);
        const auto cuda = rope_on<P, Cuda>(test);
        expect_close(cpu.rotated, cuda.rotated, 2e-6);
        // With a norm, a BF16 place lost while rotating back is carried through it.
        constexpr bool exact = std::is_same_v<P, Fp32>;
        expect_close(cpu.gradient, cuda.gradient, normalised && !exact ? 0.05 : 1e-5);
        expect_close(cpu.query_gradient, cuda.query_gradient, exact ? 1e-3 : 0.1);
        expect_close(cpu.key_gradient, cuda.key_gradient, exact ? 1e-3 : 0.1);
      }
    }
  }
}

TEST_F(KernelsOnCuda, RopeMatchesCpu) { compare_rope<Bf16>(); }

TEST_F(KernelsOnCuda, RopeMatchesCpuInFp32) { compare_rope<Fp32>(); }

// ---- loss ---------------------------------------------------------------------------------------

std::vector<std::int32_t> some_tokens(Index count, std::int32_t vocabulary) {
  std::mt19937 random(11);
  std::vector<std::int32_t> tokens;
  for (Index i = 0; i < count; ++i) {
    // Every other token is one of the first three.
    const std::uint32_t range = i % 2 == 0 ? 3 : static_cast<std::uint32_t>(vocabulary);
    tokens.push_back(static_cast<std::int32_t>(random() % range));
  }
  tokens.back() = vocabulary - 1;
  return tokens;
}

struct CrossEntropyCase {
  Index rows;
  Index vocabulary;
  Index padded;
  std::optional<float> gradient_scale;
  Index masked = 0;  ///< the last so many columns of the vocabulary hold −Inf, and are no target
  Index counted_every = 0;  ///< of so many rows the targets of all but one are ignored; 0: of all
};

template <class T, Device D>
auto cross_entropy_on(const CrossEntropyCase& test) {
  TestDevice<D> device;
  std::vector<T> values = normal_values<T>(test.rows * test.padded, 5.0f, 1);
  const Index unmasked = test.vocabulary - test.masked;
  for (Index row = 0; row < test.rows; ++row) {
    std::fill_n(values.begin() + row * test.padded + unmasked, test.masked, T(-INFINITY));
  }
  const auto logits = device.matrix(values, test.padded);
  std::vector<std::int32_t> targets = some_tokens(test.rows, static_cast<std::int32_t>(unmasked));
  if (test.rows > 4) targets[4] = -1;
  for (Index row = 0; row < test.rows && test.counted_every != 0; ++row) {
    if (row % test.counted_every != 1) targets[static_cast<std::size_t>(row)] = -1;
  }
  const TensorView<float, 1, D> losses{device.template make<float>(test.rows), {test.rows}};
  TensorView<const float, 1, D> gradient_scale;
  if (test.gradient_scale) gradient_scale = device.vector(std::vector{*test.gradient_scale});
  cross_entropy(logits, constant(device.vector(targets)), losses, test.vocabulary, gradient_scale,
                device.context());
  return std::pair(device.read(losses), device.read(logits));
}

template <class T>
void compare_cross_entropy(const CrossEntropyCase& test) {
  SCOPED_TRACE(message(test.rows, " rows of ", test.vocabulary, " in ", test.padded, ", ",
                       test.masked, " masked, targets of all but one in ", test.counted_every,
                       " ignored, gradient times ", test.gradient_scale.value_or(0.0f)));
  const auto cpu = cross_entropy_on<T, Cpu>(test);
  const auto cuda = cross_entropy_on<T, Cuda>(test);
  expect_close(cpu.first, cuda.first, 2e-5);
  expect_close(cpu.second, cuda.second, 1e-8);
}

template <class T>
void compare_cross_entropies() {
  for (const auto& [vocabulary, padded] : {std::pair<Index, Index>{3, 3},
                                           {5, 8},
                                           {257, 384},
                                           {1000, 1000},
                                           {1003, 1003},
                                           {33000, 33024}}) {
    for (const Index rows : {1, 17, 130}) {
      for (const std::optional<float> gradient_scale : {std::optional<float>(), {1.0f / 130.0f}}) {
        compare_cross_entropy<T>({rows, vocabulary, padded, gradient_scale});
      }
    }
  }
  // Llama's and GPT-2's vocabularies, and rows too long for a cluster in either format.
  for (const auto& [vocabulary, padded] : {std::pair<Index, Index>{128256, 128256},
                                           {50257, 50304},
                                           {50257, 50257},
                                           {400000, 400000},
                                           {800000, 800016}}) {
    compare_cross_entropy<T>({6, vocabulary, padded, 1.0f / 130.0f});
  }
}

TEST_F(KernelsOnCuda, CrossEntropyMatchesCpu) {
  compare_cross_entropies<Bf16>();
  compare_cross_entropies<Fp32>();
}

TEST_F(KernelsOnCuda, CrossEntropyWithMaskedColumnsMatchesCpu) {
  for (const Index masked : {1, 7, 30000}) {  // some threads, and some blocks, hold nothing else
    compare_cross_entropy<Bf16>({6, 33000, 33024, 1.0f / 130.0f, masked});
    compare_cross_entropy<Fp32>({6, 33001, 33001, 1.0f / 130.0f, masked});
  }
}

TEST_F(KernelsOnCuda, CrossEntropyWithIgnoredTargetsMatchesCpu) {
  constexpr Index none = 1000;  // more than rows: all targets but the second are ignored
  for (const auto& [vocabulary, padded] :
       {std::pair<Index, Index>{257, 384}, {1003, 1003}, {33000, 33024}, {400000, 400000}}) {
    for (const Index every : {Index{2}, Index{5}, none}) {
      compare_cross_entropy<Bf16>({6, vocabulary, padded, 1.0f / 8.0f, 0, every});
      compare_cross_entropy<Fp32>({6, vocabulary, padded, 1.0f / 8.0f, 0, every});
    }
    compare_cross_entropy<Bf16>({1, vocabulary, padded, 1.0f, 0, none});  // nothing counts
  }
}

TEST_F(KernelsOnCuda, CrossEntropyIsDeterministic) {
  const CrossEntropyCase test{130, 33000, 33024, 1.0f / 130.0f};
  const auto first = cross_entropy_on<Bf16, Cuda>(test);
  for (int repetition = 0; repetition < 3; ++repetition) {
    EXPECT_TRUE((cross_entropy_on<Bf16, Cuda>(test) == first));
  }
}

// ---- optimizer ----------------------------------------------------------------------------------

template <class W, class M>
struct UpdateResult {
  std::vector<W> weight;
  std::vector<float> master;
  std::vector<M> first, second;
};

constexpr AdamWStep update_step{1e-2f, 0.19f, 0.0975f, 2};
constexpr float update_clip = 0.7f;
constexpr float update_decay = 0.1f;

/// What one update starts from.
template <class W, class G, class M>
struct UpdateInputs {
  std::vector<W> weight;
  std::vector<G> gradient;
  std::vector<float> master;  ///< or empty
  std::vector<M> first, second;

  UpdateInputs(Index count, bool has_master)
      : weight(normal_values<W>(count, 0.02f, 1)),
        gradient(normal_values<G>(count, 1e-2f, 2)),
        first(normal_values<M>(count, 1e-2f, 3)) {
    if (has_master) master = normal_values<float>(count, 0.02f, 1);
    for (const float root : normal_values<float>(count, 1e-2f, 4)) {
      second.push_back(M(root * root));
    }
  }

  /// How far two FP32 updates of each weight may lie apart. Compilers contract products and sums
  /// differently, so each update rounds in its own way: ten times at most, by 2^-24 each, relative
  /// to the terms before any of them cancel, |w| and the learning rate times an update whose
  /// moments do not cancel. The result itself may be much smaller.
  [[nodiscard]] std::vector<double> tolerances() const {
    const AdamWSettings settings;
    std::vector<double> result;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double w = master.empty() ? static_cast<float>(weight[i]) : master[i];
      const double g = static_cast<double>(static_cast<float>(gradient[i])) * update_clip;
      const double m = static_cast<float>(first[i]);
      const double v = static_cast<float>(second[i]);
      const double new_v = settings.beta2 * v + (1.0 - settings.beta2) * g * g;
      const double denominator =
          std::sqrt(new_v / update_step.second_correction) + settings.epsilon;
      const double terms = settings.beta1 * std::abs(m) + (1.0 - settings.beta1) * std::abs(g);
      const double update = terms / update_step.first_correction / denominator;
      result.push_back(2 * 10 * 0x1p-24 * (std::abs(w) + update_step.learning_rate * update));
    }
    return result;
  }
};

template <class W, class G, class M, Device D>
UpdateResult<W, M> update_on(const UpdateInputs<W, G, M>& inputs, bool skip, Index cut = 0) {
  TestDevice<D> device;
  AdamWParameter<W, G, M, D> parameter;
  parameter.weight = device.vector(inputs.weight);
  parameter.gradient = device.vector(inputs.gradient);
  if (!inputs.master.empty()) parameter.master = device.vector(inputs.master);
  parameter.first_moment = device.vector(inputs.first);
  parameter.second_moment = device.vector(inputs.second);
  parameter.weight_decay = update_decay;
  parameter.random_stream = 5;
  StepStatus status{};
  status.clip_coefficient = update_clip;
  status.skip = skip ? 1 : 0;
  const auto step = device.vector(std::vector<AdamWStep>{update_step});
  const auto now = constant(device.vector(std::vector<StepStatus>{status}));
  for (const auto [begin, end] : {std::array{Index{0}, cut}, {cut, parameter.weight.size()}}) {
    adamw_update(part_of(parameter, begin, end - begin), AdamWSettings{}, constant(step), now,
                 device.context());
  }
  UpdateResult<W, M> result{device.read(parameter.weight),
                            {},
                            device.read(parameter.first_moment),
                            device.read(parameter.second_moment)};
  if (!inputs.master.empty()) result.master = device.read(parameter.master);
  return result;
}

/// Rounding is stochastic, but by the same random numbers: nearly all results must be equal.
template <class T>
void expect_mostly_equal(const std::vector<T>& expected, const std::vector<T>& actual) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) different += expected[i] == actual[i] ? 0 : 1;
  EXPECT_LE(different, expected.size() / 100) << "of " << expected.size();
}

template <class W, class G, class M>
void compare_update(bool has_master) {
  for (const Index count : {1, 8, 37, 100'003}) {
    SCOPED_TRACE(message(count, " elements, master ", has_master));
    const UpdateInputs<W, G, M> inputs(count, has_master);
    const std::vector<double> tolerances = inputs.tolerances();
    const auto cpu = update_on<W, G, M, Cpu>(inputs, false);
    const auto cuda = update_on<W, G, M, Cuda>(inputs, false);
    expect_close(cpu.weight, cuda.weight, tolerances);
    if (has_master) expect_close(cpu.master, cuda.master, tolerances);
    expect_close(cpu.first, cuda.first, 1e-9);
    expect_close(cpu.second, cuda.second, 1e-12);
    if constexpr (!std::is_same_v<M, float>) {
      expect_mostly_equal(cpu.first, cuda.first);
      expect_mostly_equal(cpu.second, cuda.second);
      expect_mostly_equal(cpu.weight, cuda.weight);
    }
    const Index cut = count / 16 * 8;
    const auto parts = update_on<W, G, M, Cuda>(inputs, false, cut);
    EXPECT_TRUE(parts.weight == cuda.weight && parts.first == cuda.first &&
                parts.second == cuda.second && parts.master == cuda.master);
    const auto before = update_on<W, G, M, Cpu>(inputs, true);
    const auto skipped = update_on<W, G, M, Cuda>(inputs, true);
    EXPECT_TRUE(before.weight == skipped.weight && before.first == skipped.first &&
                before.second == skipped.second && before.master == skipped.master);
  }
}

TEST_F(KernelsOnCuda, AdamWMatchesCpu) {
  compare_update<Bf16, Bf16, Bf16>(false);
  compare_update<Bf16, float, float>(true);
  compare_update<Bf16, float, Bf16>(true);
  compare_update<Fp32, float, float>(false);
}

// ---- status -------------------------------------------------------------------------------------

template <class G, Device D>
auto status_on(Index count, float max_gradient_norm, std::uint32_t nonfinite, float first) {
  TestDevice<D> device(workspace);
  std::vector<float> losses = normal_values<float>(count, 1.0f, 1);
  losses[0] = first;
  std::vector<OperandStatistics> counts(static_cast<std::size_t>(count) % 300 + 1);
  for (OperandStatistics& operand : counts) operand.nonfinite = 3;
  const auto before = constant(device.vector(counts));
  counts.back().nonfinite += nonfinite;
  const auto status = device.vector(std::vector<StepStatus>(1));
  add_losses(constant(device.vector(losses)), status, device.context());
  for (unsigned seed = 2; seed < 4; ++seed) {
    add_squared_norm(constant(device.vector(normal_values<G>(count, 1.0f, seed))), status,
                     device.context());
  }
  add_nonfinite(constant(device.vector(counts)), before, status, device.context());
  const StepLimits limits{.loss_sum = 1e9, .gradient_norm = 1.0};
  decide_step(max_gradient_norm, constant(device.vector(std::vector{limits})), status,
              device.context());
  const auto saved = constant(device.vector(normal_values<Bf16>(count, 1.0f, 5)));
  const auto target = device.vector(normal_values<Bf16>(count, 1.0f, 6));
  const auto bytes = [&](auto view) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data())>>,
                                    const std::byte, std::byte>;
    return TensorView<Byte, 1, D>{reinterpret_cast<Byte*>(view.data()), {2 * count}};
  };
  restore_if_skipped(bytes(target), bytes(saved), constant(status), device.context());
  return std::pair(device.read(status)[0], device.read(target));
}

template <class G>
void compare_status(Index count, float max_gradient_norm, std::uint32_t nonfinite, float first) {
  SCOPED_TRACE(message(count, " elements, largest norm ", max_gradient_norm, ", ", nonfinite,
                       " not finite, first loss ", first));
  const auto cpu = status_on<G, Cpu>(count, max_gradient_norm, nonfinite, first);
  const auto cuda = status_on<G, Cuda>(count, max_gradient_norm, nonfinite, first);
  EXPECT_NEAR(cuda.first.squared_norm, cpu.first.squared_norm, 1e-6 * cpu.first.squared_norm);
  if (std::isfinite(first)) {
    EXPECT_NEAR(cuda.first.loss_sum, cpu.first.loss_sum, 1e-9 * static_cast<double>(count));
  } else {
    EXPECT_FALSE(std::isfinite(cuda.first.loss_sum));
  }
  EXPECT_NEAR(cuda.first.gradient_norm, cpu.first.gradient_norm, 1e-6f * cpu.first.gradient_norm);
  EXPECT_NEAR(cuda.first.clip_coefficient, cpu.first.clip_coefficient, 1e-6f);
  EXPECT_EQ(cuda.first.nonfinite, nonfinite);
  EXPECT_EQ(cuda.first.skip, cpu.first.skip);
  EXPECT_TRUE(cpu.second == cuda.second);
}

TEST_F(KernelsOnCuda, SquaredNormIsDeterministic) {
  const auto first = status_on<Bf16, Cuda>(2'000'000, 1.0f, 0, 2.0f).first;
  EXPECT_EQ(first.arrivals, 0u);
  for (int repetition = 0; repetition < 3; ++repetition) {
    EXPECT_EQ((status_on<Bf16, Cuda>(2'000'000, 1.0f, 0, 2.0f).first.squared_norm),
              first.squared_norm);
  }
}

TEST_F(KernelsOnCuda, StepStatusMatchesCpu) {
  for (const Index count : {1, 8, 37, 3001, 16384, 40'003, 2'000'000}) {
    compare_status<Bf16>(count, 1.0f, 0, 2.0f);
    compare_status<float>(count, 1e9f, 0, 2.0f);
    compare_status<float>(count, 0.0f, 2, 2.0f);
    compare_status<Bf16>(count, 1.0f, 0, NAN);
  }
}

// ---- graphs -------------------------------------------------------------------------------------

TEST_F(KernelsOnCuda, GraphReplayMatchesDirectRun) {
  constexpr Index rows = 144;
  constexpr Index columns = 256;
  using P = Fp8Recipe<Tensorwise>;
  TestDevice<Cuda> device(workspace);
  const auto& context = device.context();
  const auto x = constant(device.matrix(normal_values<Bf16>(rows * columns, 1.0f, 1), columns));
  const auto weight = constant(device.vector(normal_values<Bf16>(columns, 1.0f, 2)));
  const auto tokens = constant(device.vector(some_tokens(rows, 100)));
  const support::TestOperand<P, OperandKind::input, Cuda> y(
      device, std::vector<Bf16>(static_cast<std::size_t>(rows * columns)), columns, 1.0f);
  const TensorView<float, 1, Cuda> inverse_rms{device.make<float>(rows), {rows}};
  const auto gradient = device.matrix(std::vector<float>(100 * columns), columns);
  const auto weight_gradient = device.vector(std::vector<float>(columns));
  const auto x_gradient =
      device.matrix(std::vector<Bf16>(static_cast<std::size_t>(rows * columns)), columns);
  const auto status = device.vector(std::vector<StepStatus>(1));
  const auto enqueue = [&] {
    fill_zero(gradient.data(), gradient.bytes(), context);
    fill_zero(weight_gradient.data(), weight_gradient.bytes(), context);
    fill_zero(x_gradient.data(), x_gradient.bytes(), context);
    fill_zero(status.data(), status.bytes(), context);
    rms_norm_forward(x, weight, 1e-5f, y.operand(), inverse_rms, context);
    rms_norm_backward(x, x, weight, constant(inverse_rms), x_gradient, weight_gradient, context);
    embedding_backward(tokens, constant(x_gradient), gradient, context);
    add_squared_norm(TensorView<const float, 1, Cuda>{gradient.data(), {gradient.size()}}, status,
                     context);
  };
  const auto results = [&] {
    return std::tuple(device.read(gradient), device.read(weight_gradient), y.read().row_major,
                      y.read().transposed, device.read(status)[0].squared_norm);
  };
  enqueue();
  const auto direct = results();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal), "capture");
  enqueue();
  check(cudaStreamEndCapture(context.stream(), &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int repetition = 0; repetition < 2; ++repetition) {
    check(cudaGraphLaunch(executable, context.stream()), "cudaGraphLaunch");
    EXPECT_TRUE(results() == direct);
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

}  // namespace kernels_cuda_test
}  // namespace octavo
