// Attention and RoPE on the Cuda device in sequences as long as anyone trains on. A reference in
// double of all rows would take hours: some rows of each kind are compared.
#include <octavo/attention/cuda/attention.cuh>
#include <octavo/layers/rope.hpp>

#include "attention/attention_on_cuda.cuh"
#include "kernels/cuda_support.cuh"

#include <cstdio>
#include <string>

namespace octavo {
namespace long_sequences_cuda_test {

using attention_on_cuda::libraries;
using attention_on_cuda::Library;
using attention_on_cuda::limits_of;
using attention_on_cuda::name_of;
using attention_on_cuda::set_limits;
using support::constant;
using support::OnGpu;
using support::TestDevice;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Numbers from −width to width, of a standard deviation of width / √3.
std::vector<Bf16> spread_values(Index count, float width, std::uint64_t seed) {
  std::vector<Bf16> values(at(count));
  std::uint64_t state = seed;
  for (Bf16& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = Bf16(static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f * width);
  }
  return values;
}

double number(Bf16 value) { return static_cast<double>(static_cast<float>(value)); }

/// What the GPU made, on the host.
struct Results {
  std::vector<Bf16> output, qkv_gradient;
  std::vector<float> log_sum_exp;
};

/// One sequence, and the formula for single rows of it.
class LongSequence {
 public:
  explicit LongSequence(const AttentionShape& shape)
      : shape_(shape),
        qkv_(spread_values(shape.tokens * columns(), 2.5f, 1)),
        output_gradient_(spread_values(shape.tokens * out_columns(), 1.5f, 2)) {}

  [[nodiscard]] Results run(Library through) const {
    TestDevice<Cuda> device(attention_workspace(shape_, DeviceLimits<Cuda>()));
    set_limits(device.context(), limits_of(through));
    const auto qkv = device.matrix(qkv_, columns());
    const auto output_gradient = constant(device.matrix(output_gradient_, out_columns()));
    const auto matrix = [&](Index width) {
      return TensorView<Bf16, 2, Cuda>{device.make_poisoned<Bf16>(shape_.tokens * width),
                                       {shape_.tokens, width}};
    };
    const auto output = matrix(out_columns());
    const auto gradient = matrix(columns());
    const Index statistics = shape_.tokens * shape_.heads.heads;
    const TensorView<float, 1, Cuda> log_sum_exp{device.make_poisoned<float>(statistics),
                                                 {statistics}};
    const char* library = through == Library::cudnn ? "cudnn" : "octavo";
    EXPECT_STREQ(attention_forward(shape_, qkv, {}, output, log_sum_exp, device.context()),
                 library);
    EXPECT_STREQ(attention_backward(shape_, constant(qkv), {}, constant(output), output_gradient,
                                    constant(log_sum_exp), gradient, device.context()),
                 library);
    return {device.read(output), device.read(gradient), device.read(log_sum_exp)};
  }

  /// The query, output, and their like of one row.
  struct Row {
    std::vector<double> values, magnitudes;  ///< results, and the sums of their terms' magnitudes
    double log_sum_exp = 0;
  };

  /// A row of the output.
  [[nodiscard]] Row output(Index token, Index head) const {
    Row row = make_row();
    const std::vector<double> scores = scores_of(token, head);
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - largest);
    row.log_sum_exp = largest + std::log(sum);
    for (Index u = 0; u <= token; ++u) {
      add(row, std::exp(scores[at(u)] - row.log_sum_exp), qkv_.data() + value_place(u, kv(head)));
    }
    return row;
  }

  /// A row of the queries' gradient.
  /// @param output  of the same row
  [[nodiscard]] Row query_gradient(Index token, Index head, const Row& output) const {
    Row row = make_row();
    const std::vector<double> scores = scores_of(token, head);
    const Bf16* gradient = output_gradient_.data() + out_place(token, head);
    double delta = 0;
    double delta_magnitude = 0;
    for (Index c = 0; c < dim(); ++c) {
      delta += output.values[at(c)] * number(gradient[c]);
      delta_magnitude += output.magnitudes[at(c)] * std::abs(number(gradient[c]));
    }
    for (Index u = 0; u <= token; ++u) {
      const double p = std::exp(scores[at(u)] - output.log_sum_exp) * scale();
      const double dp = dot(gradient, qkv_.data() + value_place(u, kv(head)));
      add(row, p * (dp - delta), qkv_.data() + key_place(u, kv(head)),
          p * (std::abs(dp) + delta_magnitude));
    }
    return row;
  }

  /// A row of the gradients of keys and values, of the outputs and statistics that the GPU made:
  /// those of all rows that see this one are needed.
  [[nodiscard]] std::pair<Row, Row> key_gradients(Index token, Index kv_head,
                                                  const Results& results) const {
    Row of_key = make_row();
    Row of_value = make_row();
    const Index group = shape_.heads.heads / shape_.heads.kv_heads;
    const Bf16* key = qkv_.data() + key_place(token, kv_head);
    const Bf16* value = qkv_.data() + value_place(token, kv_head);
    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (Index t = token; t < shape_.tokens; ++t) {
        const Bf16* query = qkv_.data() + query_place(t, head);
        const Bf16* gradient = output_gradient_.data() + out_place(t, head);
        const Bf16* output = results.output.data() + out_place(t, head);
        const double log_sum = results.log_sum_exp[at(head * shape_.tokens + t)];
        const double p = std::exp(dot(query, key) * scale() - log_sum);
        const double dp = dot(gradient, value);
        double delta_magnitude = 0;
        for (Index c = 0; c < dim(); ++c) {
          delta_magnitude += std::abs(number(output[c]) * number(gradient[c]));
        }
        add(of_value, p, gradient);
        add(of_key, p * (dp - dot(gradient, output)) * scale(), query,
            p * (std::abs(dp) + delta_magnitude) * scale());
      }
    }
    return {of_key, of_value};
  }

  [[nodiscard]] Index dim() const { return shape_.heads.head_dim; }
  [[nodiscard]] Index query_place(Index token, Index head) const {
    return token * columns() + head * dim();
  }
  [[nodiscard]] Index key_place(Index token, Index kv_head) const {
    return query_place(token, shape_.heads.heads + kv_head);
  }
  [[nodiscard]] Index value_place(Index token, Index kv_head) const {
    return query_place(token, shape_.heads.heads + shape_.heads.kv_heads + kv_head);
  }
  [[nodiscard]] Index out_place(Index token, Index head) const {
    return token * out_columns() + head * dim();
  }

 private:
  [[nodiscard]] Index columns() const { return shape_.heads.columns(); }
  [[nodiscard]] Index out_columns() const { return shape_.heads.heads * dim(); }
  [[nodiscard]] double scale() const { return 1.0 / std::sqrt(static_cast<double>(dim())); }
  [[nodiscard]] Index kv(Index head) const {
    return head / (shape_.heads.heads / shape_.heads.kv_heads);
  }
  [[nodiscard]] Row make_row() const {
    return {std::vector<double>(at(dim())), std::vector<double>(at(dim()))};
  }
  [[nodiscard]] double dot(const Bf16* a, const Bf16* b) const {
    double sum = 0;
    for (Index c = 0; c < dim(); ++c) sum += number(a[c]) * number(b[c]);
    return sum;
  }
  [[nodiscard]] std::vector<double> scores_of(Index token, Index head) const {
    std::vector<double> scores;
    const Bf16* query = qkv_.data() + query_place(token, head);
    for (Index u = 0; u <= token; ++u) {
      scores.push_back(dot(query, qkv_.data() + key_place(u, kv(head))) * scale());
    }
    return scores;
  }
  /// Adds factor · x.
  /// @param magnitude  of the factor's own terms, if it has several
  void add(Row& row, double factor, const Bf16* x, double magnitude = 0) const {
    for (Index c = 0; c < dim(); ++c) {
      row.values[at(c)] += factor * number(x[c]);
      row.magnitudes[at(c)] += std::max(std::abs(factor), magnitude) * std::abs(number(x[c]));
    }
  }

  AttentionShape shape_;
  std::vector<Bf16> qkv_, output_gradient_;
};

/// Compares rows, each with bounds of its own, and all of one kind by the norm of their errors.
class Comparison {
 public:
  explicit Comparison(const char* name) : name_(name) {}

  /// See bf16_tolerance in attention_cuda_test.cu: results are rounded once, and each term is a
  /// product of rounded factors.
  void row(const std::string& place, const Bf16* actual, const LongSequence::Row& expected) {
    for (std::size_t c = 0; c < expected.values.size(); ++c) {
      const double error = std::abs(number(actual[c]) - expected.values[c]);
      const double allowed =
          0x1.04p-8 * std::abs(expected.values[c]) + 0x1.84p-7 * expected.magnitudes[c];
      ASSERT_LE(error, allowed) << name_ << ", " << place << ", column " << c << ": "
                                << number(actual[c]) << " in place of " << expected.values[c];
      worst_ = std::max(worst_, allowed > 0 ? error / allowed : 0.0);
      errors_ += error * error;
      squares_ += expected.values[c] * expected.values[c];
    }
  }
  /// The terms' roundings are independent, so that of thousands most cancels: what is left is as
  /// small, relative to all, as one rounding.
  void finish() const {
    const double relative = std::sqrt(errors_ / squares_);
    std::printf("    %-14s worst %.3f of what is allowed, relative norm of errors %.2e\n", name_,
                worst_, relative);
    EXPECT_LE(relative, 0x1p-7) << name_;
  }

 private:
  const char* name_;
  double worst_ = 0, errors_ = 0, squares_ = 0;
};

/// Rows at the ends, at edges of tiles, and between. In the first row terms cancel; it is not
/// among them.
std::vector<Index> some_rows(Index tokens) {
  return {3, 127, 128, 1000, tokens / 2 - 1, tokens / 2 + 5, tokens - 129, tokens - 64, tokens - 1};
}

/// The parameter: what attention runs through.
class LongSequencesOnCuda : public OnGpu, public testing::WithParamInterface<Library> {};

void compare(const AttentionShape& shape, Library through) {
  const LongSequence sequence(shape);
  std::printf("  %d tokens, %d/%d heads of %d\n", static_cast<int>(shape.tokens),
              static_cast<int>(shape.heads.heads), static_cast<int>(shape.heads.kv_heads),
              static_cast<int>(shape.heads.head_dim));
  std::fflush(stdout);
  const Results results = sequence.run(through);
  Comparison outputs("output");
  Comparison queries("dq");
  Comparison keys("dk");
  Comparison values("dv");
  for (const Index token : some_rows(shape.tokens)) {
    for (const Index head : {Index{0}, shape.heads.heads - 1}) {
      const std::string place = message("row ", token, ", head ", head);
      const LongSequence::Row output = sequence.output(token, head);
      const auto log_sum =
          static_cast<double>(results.log_sum_exp[at(head * shape.tokens + token)]);
      ASSERT_NEAR(log_sum, output.log_sum_exp, 0x1p-15 * (1 + std::abs(output.log_sum_exp)))
          << place;
      outputs.row(place, results.output.data() + sequence.out_place(token, head), output);
      queries.row(place, results.qkv_gradient.data() + sequence.query_place(token, head),
                  sequence.query_gradient(token, head, output));
    }
    const auto [of_key, of_value] = sequence.key_gradients(token, 0, results);
    const std::string place = message("row ", token);
    keys.row(place, results.qkv_gradient.data() + sequence.key_place(token, 0), of_key);
    values.row(place, results.qkv_gradient.data() + sequence.value_place(token, 0), of_value);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (const Comparison* all : {&outputs, &queries, &keys, &values}) all->finish();
}

TEST_P(LongSequencesOnCuda, RowsMatchFormula) {
  compare({1, 32'768, {4, 2, 128}}, GetParam());
  compare({1, 131'072, {2, 1, 64}}, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Libraries, LongSequencesOnCuda, libraries,
                         [](const auto& test) { return std::string(name_of(test.param)); });

// ---- workspace ----------------------------------------------------------------------------------

/// Runs forward and backward in a workspace of just `bytes`, and looks at what lies behind it.
void expect_workspace_suffices(const AttentionShape& shape, std::size_t bytes, Library through) {
  constexpr Index guard = 4096;
  const Index columns = shape.heads.columns();
  const Index out_columns = shape.heads.heads * shape.heads.head_dim;
  TestDevice<Cuda> device;
  Context<Cuda>& context = device.context();
  std::byte* memory = device.make_poisoned<std::byte>(static_cast<Index>(bytes) + guard);
  context.bind_workspace({memory, bytes});
  set_limits(context, limits_of(through));
  const auto matrix = [&](Index width) {
    TensorView<Bf16, 2, Cuda> view{device.make<Bf16>(shape.rows() * width), {shape.rows(), width}};
    fill_zero(view.data(), view.bytes(), context);
    return view;
  };
  const auto qkv = matrix(columns);
  const auto output = matrix(out_columns);
  const auto output_gradient = matrix(out_columns);
  const auto gradient = matrix(columns);
  const Index statistics = shape.rows() * shape.heads.heads;
  const TensorView<float, 1, Cuda> log_sum_exp{device.make<float>(statistics), {statistics}};
  (void)attention_forward(shape, qkv, {}, output, log_sum_exp, context);
  (void)attention_backward(shape, constant(qkv), {}, constant(output), constant(output_gradient),
                           constant(log_sum_exp), gradient, context);
  EXPECT_TRUE(device.read(memory + bytes, guard) == std::vector<std::byte>(guard, std::byte{0xff}));
}

TEST_P(LongSequencesOnCuda, WorkspaceSuffices) {
  const AttentionShape shapes[] = {
      {1, 64, {1, 1, 64}},      {2, 64, {8, 2, 128}},     {3, 192, {6, 6, 64}},
      {5, 320, {12, 4, 96}},    {1, 1024, {8, 1, 128}},   {7, 576, {4, 4, 128}},
      {2, 4096, {32, 8, 128}},  {16, 512, {16, 16, 64}},  {1, 8192, {64, 8, 128}},
      {1, 32'768, {8, 2, 128}}, {1, 131'072, {4, 4, 64}}, {1, 131'072, {8, 1, 128}}};
  const bool own = GetParam() != Library::cudnn;
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(message(shape.sequences, " x ", shape.tokens, " tokens, ", shape.heads.heads, "/",
                         shape.heads.kv_heads, " heads of ", shape.heads.head_dim));
    const std::size_t bytes = own ? detail::own_attention_workspace(shape)
                                  : detail::cudnn_attention_workspace(shape, false);
    try {
      expect_workspace_suffices(shape, bytes, GetParam());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    if (!own) continue;
    EXPECT_THROW(expect_workspace_suffices(shape, bytes - 1, GetParam()), UsageError);
  }
}

// ---- positions ----------------------------------------------------------------------------------

class LongSequencesOfRopeOnCuda : public OnGpu {};

TEST_F(LongSequencesOfRopeOnCuda, RotateByPositionAngle) {
  constexpr Index tokens = 131'072;
  constexpr HeadLayout layout{2, 1, 64};
  constexpr Index half = layout.head_dim / 2;
  const auto frequency = [](Index j) {
    return std::pow(500'000.0, -static_cast<double>(j) / static_cast<double>(half));
  };
  TestDevice<Cuda> device;
  const Context<Cuda>& context = device.context();
  RoPE<Cuda> rope;
  Arena<Cuda> measuring;
  rope.allocate(measuring, {1, tokens}, layout.head_dim);
  Arena<Cuda> arena(measuring.plan(), context);
  rope.allocate(arena, {1, tokens}, layout.head_dim);
  rope.fill_sync(frequency, context);
  const auto table = rope.rotations(BatchShape{1, tokens}).table;
  const std::vector<Bf16> before = spread_values(tokens * layout.columns(), 2.0f, 3);
  const auto qkv = device.matrix(before, layout.columns());
  rope_forward(constant(qkv), layout, QkNorm<const Bf16, Cuda>{}, table, tokens, qkv, context);
  const std::vector<Bf16> rotated = device.read(qkv);
  const Operand<Bf16, OperandKind::output_gradient, Cuda> back{qkv};
  rope_backward(qkv, layout, TensorView<const Bf16, 2, Cuda>{}, QkNorm<const Bf16, Cuda>{},
                QkNorm<float, Cuda>{}, table, tokens, back, context);
  const std::vector<Bf16> returned = device.read(qkv);
  for (const Index token : some_rows(tokens)) {
    for (Index head = 0; head < layout.heads + layout.kv_heads; ++head) {
      for (Index j = 0; j < half; ++j) {
        const Index first = token * layout.columns() + head * layout.head_dim + j;
        const double angle = static_cast<double>(token) * frequency(j);
        const double a = number(before[at(first)]);
        const double b = number(before[at(first + half)]);
        // Half a unit of BF16's last place, and FP32 arithmetic.
        const auto near = [&](Index i, const std::vector<Bf16>& actual, double expected,
                              double rounding) {
          ASSERT_NEAR(number(actual[at(i)]), expected,
                      0x1.02p-8 * std::abs(expected) + rounding * (std::abs(a) + std::abs(b)))
              << "token " << token << ", element " << i % layout.columns();
        };
        near(first, rotated, a * std::cos(angle) - b * std::sin(angle), 0x1p-22);
        near(first + half, rotated, b * std::cos(angle) + a * std::sin(angle), 0x1p-22);
        near(first, returned, a, 0x1p-8);  // what is rotated back was rounded
        near(first + half, returned, b, 0x1p-8);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace long_sequences_cuda_test
}  // namespace octavo
