// What a cached text says is what the whole text says: every family, every way to keep weights.
#include <gtest/gtest.h>
#include <octavo/inference/inference.hpp>
#include <octavo/models/models.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/test_types.hpp"

namespace inference_session_test {

using namespace octavo;

constexpr Index longest = 48;

constexpr LlamaConfig llama{.name = "llama",
                            .layers = 2,
                            .hidden = 128,
                            .ffn = 256,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .vocabulary = 100,
                            .rope_theta = 10000.0f};
constexpr LlamaConfig qwen3 = [] {
  LlamaConfig config = llama;
  config.name = "qwen3";
  config.tied_embeddings = true;
  config.qk_norm = true;
  return config;
}();
constexpr LlamaConfig mixtral = [] {
  LlamaConfig config = llama;
  config.name = "mixtral";
  config.experts = {.experts = 4, .choices = 2};
  return config;
}();
constexpr Gpt2Config gpt2{.name = "gpt2",
                          .layers = 2,
                          .hidden = 128,
                          .heads = 2,
                          .vocabulary = 100,
                          .positions = longest};

/// The largest element of every matrix: the largest number of E4M3 times a power of two, so that
/// scales of tensors are powers of two, and what is kept in FP8 times its scale is a BF16 number.
constexpr float largest = 448.0f / 4096;

using Weights = std::map<std::string, std::vector<float>>;

/// Numbers that BF16 holds, and that make the logits differ.
std::vector<float> telling_values(const WeightInfo& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.columns));
  const RandomStream stream{11, std::hash<std::string>()(weight.name)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float random = uniform(random_word(stream, i)) - 0.5f;
    const bool is_gain = weight.name.ends_with("norm.weight");
    const float value = is_gain ? 1 + random : 2 * largest * random;
    values[i] = static_cast<float>(Bf16(value));
  }
  if (weight.rows > 1) values[0] = largest;
  return values;
}

/// The nearest number of E4M3, ties to even, by the definition of the format.
double nearest_e4m3(double value) {
  static const std::vector<double> numbers = [] {
    std::vector<double> all;
    for (int bits = 0; bits < 127; ++bits) {
      const int exponent = bits / 8;
      const double mantissa = bits % 8 / 8.0 + (exponent == 0 ? 0 : 1);
      all.push_back(std::ldexp(mantissa, std::max(exponent, 1) - 7));
    }
    return all;
  }();
  const double magnitude = std::min(std::abs(value), 448.0);
  std::size_t above = 0;
  while (numbers[above] < magnitude) ++above;
  std::size_t nearest = above;
  if (above > 0) {
    const double up = numbers[above] - magnitude;
    const double down = magnitude - numbers[above - 1];
    if (down < up || (down == up && above % 2 == 1)) nearest = above - 1;
  }
  return std::copysign(numbers[nearest], value);
}

/// A matrix as it is after a cast to E4M3 by scales, each of a block.
void round_blocks(std::vector<float>& values, Index rows, Index columns, Index block_rows,
                  Index block_columns, ScaleRounding rounding) {
  for (Index top = 0; top < rows; top += block_rows) {
    for (Index left = 0; left < columns; left += block_columns) {
      const auto for_each = [&](const auto& body) {
        for (Index r = top; r < std::min(top + block_rows, rows); ++r) {
          for (Index c = left; c < std::min(left + block_columns, columns); ++c) {
            body(values[static_cast<std::size_t>(r * columns + c)]);
          }
        }
      };
      double amax = 0;
      for_each([&](float value) { amax = std::max(amax, std::abs(static_cast<double>(value))); });
      double scale = 448.0 / amax;
      if (rounding == ScaleRounding::power_of_two) scale = std::exp2(std::floor(std::log2(scale)));
      for_each([&](float& value) {
        value = static_cast<float>(nearest_e4m3(static_cast<double>(value) * scale) / scale);
      });
    }
  }
}

/// What one scale covers.
enum class Kept { as_stored, tensor, row, row_as_computed, block };

/// A model, how its weights are kept, and which of them: those of block 0, of block 1, the head.
template <auto ConfigOf, class P, class StoredIn, Kept Block0, Kept Block1, Kept OfHead>
struct Case {
  static constexpr auto config = ConfigOf;
  using Session = InferenceSession<PresetFamily<ConfigOf>, P, Cpu>;
  /// The whole text's, which knows nothing of FP8.
  using Whole = PresetModel<ConfigOf, StoredIn, Cpu>;

  static Kept kept(const std::string& name) {
    const bool is_of_block = name.starts_with("blocks.") && name.ends_with(".weight") &&
                             name.find("norm") == std::string::npos &&
                             name.find("router") == std::string::npos;
    if (is_of_block && name.starts_with("blocks.0.")) return Block0;
    if (is_of_block) return Block1;
    if (name == "head.weight") return OfHead;
    return Kept::as_stored;
  }
};

/// A Decoder of the training layout.
template <class Model>
class WholeText {
 public:
  /// Of the weights that training begins with.
  explicit WholeText(std::uint64_t seed)
      : arena_(plan(), context_), model_(arena_, shape, options, context_) {
    StageHooks<typename Model::T, typename Model::G, Cpu> hooks;
    model_.initialize_sync(seed, hooks, context_);
  }
  explicit WholeText(const Weights& weights) : WholeText(1) {
    model_.visit([&](auto& parameter) {
      const std::vector<float>& values = weights.at(parameter.name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        parameter.weight.data()[i] = typename Model::T(values[i]);
      }
    });
  }

  /// The logits after each token of a text.
  std::vector<std::vector<float>> logits(std::vector<std::int32_t> tokens) {
    const std::size_t count = tokens.size();
    tokens.resize(static_cast<std::size_t>(longest));
    StageHooks<typename Model::T, typename Model::G, Cpu> hooks;
    model_.bind(context_);
    model_.template invalidate_weight_copies<Mode::evaluate>(hooks, context_);
    const auto all = model_.logits({tokens.data(), {longest}}, shape, 0, longest, hooks, context_);
    std::vector<std::vector<float>> rows(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto* row = all.row(static_cast<Index>(i));
      for (int j = 0; j < Model::config.vocabulary; ++j) {
        rows[i].push_back(static_cast<float>(row[j]));
      }
    }
    return rows;
  }

 private:
  static constexpr BatchShape shape{1, longest};
  static constexpr ModelOptions options{.head_chunk = longest};

  static MemoryPlan plan() {
    Arena<Cpu> arena;
    const Model model(arena, shape, options, DeviceLimits<Cpu>{});
    return arena.plan();
  }

  Context<Cpu> context_{1};
  Arena<Cpu> arena_;
  Model model_;
};

/// Weights that tell, as a case keeps them.
template <class Of>
Weights kept_weights(const std::vector<WeightInfo>& all) {
  Weights weights;
  for (const WeightInfo& weight : all) {
    std::vector<float>& values = weights[weight.name] = telling_values(weight);
    const auto round = [&](Index rows, Index columns,
                           ScaleRounding rounding = ScaleRounding::power_of_two) {
      round_blocks(values, weight.rows, weight.columns, rows, columns, rounding);
    };
    switch (Of::kept(weight.name)) {
      case Kept::as_stored:
        break;
      case Kept::tensor:
        round(weight.rows, weight.columns);
        break;
      case Kept::row:
        round(1, weight.columns);
        break;
      case Kept::row_as_computed:
        round(1, weight.columns, ScaleRounding::exact);
        break;
      case Kept::block:
        round(128, 128);
        break;
    }
  }
  return weights;
}

template <class Of>
class InferenceVariants : public testing::Test {
 protected:
  using Session = typename Of::Session;

  InferenceVariants() {
    for (int i = 0; i < longest; ++i) {
      text_.push_back(static_cast<std::int32_t>(random_word({5, 1}, static_cast<std::uint64_t>(i)) %
                                                Of::config.vocabulary));
    }
  }

  Session make(Index piece) { return Session({longest, piece}, context_); }

  /// Weights that tell, times a power of two.
  static void load(Session& session, float factor = 1) {
    session.load_sync([&](const WeightInfo& weight, Index begin, std::span<float> values) {
      const std::vector<float> all = telling_values(weight);
      std::transform(all.begin() + begin, all.begin() + begin + std::ssize(values), values.begin(),
                     [&](float value) { return factor * value; });
    });
  }

  std::vector<float> append(Session& session, std::size_t count) {
    std::vector<float> logits(static_cast<std::size_t>(Of::config.vocabulary));
    const auto begin = static_cast<std::size_t>(session.length());
    session.append(std::span(text_).subspan(begin, count), logits);
    return logits;
  }

  Context<Cpu> context_{2};
  std::vector<std::int32_t> text_;
};

// What is kept in FP8 times its scale has to be a BF16 number, see `largest`.
using PowerRows = Fp8Recipe<RowwiseScaling<ScaleRounding::power_of_two>>;
using InRows = Layerwise<First<1, Bf16>, PowerRows, Head<Fp8Recipe<Tensorwise>>>;
using WithFp8Head = Layerwise<Fp8Recipe<Delayed>, Head<PowerRows>>;
using Stored = Kept;
using Cases = support::TestTypes<
    Case<llama, InRows, Bf16, Kept::as_stored, Kept::row, Kept::tensor>,
    Case<llama, Fp32, Fp32, Kept::as_stored, Kept::as_stored, Kept::as_stored>,
    Case<qwen3, Bf16, Bf16, Kept::as_stored, Kept::as_stored, Kept::as_stored>,
    Case<mixtral, Fp32, Fp32, Kept::as_stored, Kept::as_stored, Kept::as_stored>,
    Case<mixtral, InRows, Bf16, Kept::as_stored, Kept::row, Kept::tensor>,
    Case<gpt2, Bf16, Bf16, Kept::as_stored, Kept::as_stored, Kept::as_stored>,
    Case<gpt2, Fp8Recipe<Blockwise>, Bf16, Kept::block, Kept::block, Kept::as_stored>>;
TYPED_TEST_SUITE(InferenceVariants, Cases);

// A prompt in pieces, then few tokens at a time, then single ones: each row of each product, and
// each token of attention, has the bits that it has among all others.
TYPED_TEST(InferenceVariants, LogitsOfPiecesMatchWholeText) {
  auto session = this->make(16);
  this->load(session, 4);  // of which nothing may stay
  this->load(session);
  const auto expected =
      WholeText<typename TypeParam::Whole>(kept_weights<TypeParam>(session.weights()))
          .logits(this->text_);
  std::size_t length = 0;
  for (const std::size_t count : {37u, 3u, 1u, 1u, 1u, 1u, 1u, 2u, 1u}) {
    length += count;
    EXPECT_EQ(this->append(session, count), expected[length - 1]) << "after " << length;
  }
  EXPECT_EQ(session.length(), longest);
  session.truncate(0);
  EXPECT_EQ(this->append(session, 32), expected[31]) << "two whole pieces";
  session.truncate(0);
  session.append(std::span(this->text_).first(20), {});
  EXPECT_EQ(this->append(session, 12), expected[31]) << "after tokens without logits";
}

/// The largest difference, of the largest.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double largest_of_b = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference =
        std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest_of_b = std::max(largest_of_b, std::abs(static_cast<double>(b[i])));
  }
  return difference / largest_of_b;
}

// Scales as they are computed are no powers of two, so the bits are not those of BF16 weights.
template <Kept OfBlocks>
using RowsKept = Case<llama, Fp8Recipe<Rowwise>, Fp32, OfBlocks, OfBlocks, Kept::as_stored>;
using RowwiseInference = InferenceVariants<RowsKept<Kept::row_as_computed>>;

TEST_F(RowwiseInference, UsesComputedScalesOfRows) {
  auto session = make(16);
  load(session);
  const std::vector<float> found = append(session, longest);
  const auto far = [&]<Kept kept>() {
    const Weights weights = kept_weights<RowsKept<kept>>(session.weights());
    return distance(found, WholeText<PresetModel<llama, Fp32, Cpu>>(weights).logits(text_).back());
  };
  const double far_from_these = far.template operator()<Kept::row_as_computed>();
  EXPECT_LT(far_from_these, 0.02);  // what activations in BF16 cost
  EXPECT_GT(far.template operator()<Kept::as_stored>(), 2 * far_from_these);
  EXPECT_GT(far.template operator()<Kept::row>(), 2 * far_from_these);
  EXPECT_GT(far.template operator()<Kept::tensor>(), 2 * far_from_these);
}

TYPED_TEST(InferenceVariants, BytesOfStepCountWeightsAndCache) {
  constexpr auto config = TypeParam::config;
  const auto session = this->make(16);
  const std::size_t stored = session.precision() == "fp32" ? sizeof(float) : sizeof(Bf16);
  std::size_t bytes = 0;
  for (const WeightInfo& weight : session.weights()) {
    const bool is_table = weight.name == "embedding.weight";
    if (is_table ? !config.tied_embeddings : weight.name == "positions.weight") continue;
    const std::string name = is_table ? "head.weight" : weight.name;
    Index rows = name == "head.weight" ? config.padded_vocabulary() : weight.rows;
    if (name.find(".experts.") != std::string::npos) rows /= 2;  // 2 of 4 experts
    bytes += static_cast<std::size_t>(rows * weight.columns) *
             (TypeParam::kept(name) == Kept::as_stored ? stored : 1);
  }
  EXPECT_EQ(session.bytes_of_step(0), bytes);
  constexpr HeadLayout heads = PresetFamily<config>::block_shapes[0].head_layout();
  const Index of_token = 2 * config.layers * heads.kv_heads * heads.head_dim;
  EXPECT_EQ(session.bytes_of_step(10), bytes + static_cast<std::size_t>(10 * of_token) * stored);
}

TYPED_TEST(InferenceVariants, ContinuesAfterTruncation) {
  auto session = this->make(64);
  this->load(session);
  const std::vector<float> expected = this->append(session, 20);
  (void)this->append(session, 5);
  session.truncate(17);
  EXPECT_EQ(this->append(session, 3), expected);
  session.truncate(0);
  EXPECT_EQ(this->append(session, 20), expected);
  this->load(session);
  EXPECT_EQ(session.length(), 0) << "what is cached is of other weights";
}

class LlamaInference : public testing::Test {
 protected:
  using Session = InferenceSession<LlamaFamily<llama>, Fp32, Cpu>;

  Context<Cpu> context_{1};
  Session session_{{longest}, context_};
  std::vector<float> logits_ = std::vector<float>(static_cast<std::size_t>(llama.vocabulary));
};

// The bytes of weights, and nothing of gradients or an optimizer.
TEST_F(LlamaInference, MemoryCoversWeightsAndOneText) {
  const MemoryPlan& plan = session_.memory();
  EXPECT_EQ(plan.bytes(MemoryKind::gradients), 0U);
  EXPECT_EQ(plan.bytes(MemoryKind::optimizer), 0U);
  Index padded = 0;
  for (const WeightInfo& weight : session_.weights()) {
    const Index rows = weight.rows == llama.vocabulary ? llama.padded_vocabulary() : weight.rows;
    padded += rows * weight.columns;
  }
  EXPECT_GE(plan.bytes(MemoryKind::weights), static_cast<std::size_t>(padded) * sizeof(float));
  EXPECT_LE(plan.bytes(MemoryKind::weights),
            static_cast<std::size_t>(padded) * sizeof(float) * 101 / 100);
  const auto longer =
      plan_inference<LlamaFamily<llama>, Fp32, Cpu>({2 * longest, longest}, DeviceLimits<Cpu>{});
  // Keys and values of each token, and its rotation.
  const Index of_token = 2 * llama.layers * llama.kv_heads * llama.head_dim + llama.head_dim;
  EXPECT_EQ(longer.bytes(MemoryKind::activations) - plan.bytes(MemoryKind::activations),
            static_cast<std::size_t>(longest * of_token) * sizeof(float));
}

TEST_F(LlamaInference, Fp8WeightsTakeQuarterOfFp32) {
  using InFp8 = Layerwise<Fp8Recipe<Tensorwise>, Head<Fp8Recipe<Tensorwise>>>;
  // Keys and values of a long text take more than what weights pass through.
  constexpr InferenceShape shape{100 * longest};
  const auto fp32 = plan_inference<LlamaFamily<llama>, Fp32, Cpu>(shape, DeviceLimits<Cpu>{});
  const auto fp8 = plan_inference<LlamaFamily<llama>, InFp8, Cpu>(shape, DeviceLimits<Cpu>{});
  Index linear = 0;
  for (const WeightInfo& weight : session_.weights()) {
    if (weight.rows == 1 || weight.name == "embedding.weight") continue;
    linear +=
        (weight.name == "head.weight" ? llama.padded_vocabulary() : weight.rows) * weight.columns;
  }
  EXPECT_EQ(fp8.bytes(MemoryKind::quantized_weights), static_cast<std::size_t>(linear));
  EXPECT_EQ(fp32.bytes(MemoryKind::quantized_weights), 0U);
  const Index table = Index{llama.padded_vocabulary()} * llama.hidden;
  const Index norms = (2 * llama.layers + 1) * llama.hidden;
  EXPECT_LT(fp8.bytes(MemoryKind::weights), static_cast<std::size_t>(table + 4 * norms) * 2);
}

TEST_F(LlamaInference, InitialWeightsMatchTraining) {
  const std::vector<std::int32_t> text{1, 2, 3};
  session_.initialize_sync(9);
  session_.append(text, logits_);
  EXPECT_EQ(logits_, (WholeText<Llama<llama, Fp32, Cpu>>(9).logits(text).back()));
}

// Of which one matrix has more elements than are loaded at once.
TEST(WideInference, LoadsMatricesLargerThanOnePiece) {
  constexpr LlamaConfig wide{.name = "wide",
                             .layers = 1,
                             .hidden = 64,
                             .ffn = 64,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_dim = 64,
                             .vocabulary = 16400,
                             .rope_theta = 10000.0f,
                             .tied_embeddings = true};
  Context<Cpu> context(3);
  InferenceSession<LlamaFamily<wide>, Fp32, Cpu> session({8}, context);
  // Blocks that add nothing, and tokens that are a multiple of a unit vector each.
  const auto size_of = [](Index token) { return 1 + static_cast<float>(token) / 16384; };
  session.load_sync([&](const WeightInfo& weight, Index begin, std::span<float> values) {
    const bool is_table = weight.name == "embedding.weight";
    std::ranges::fill(values, weight.name.ends_with("norm.weight") ? 1.0f : 0.0f);
    for (std::size_t i = 0; is_table && i < values.size(); ++i) {
      const Index token = (begin + static_cast<Index>(i)) / wide.hidden;
      const Index column = (begin + static_cast<Index>(i)) % wide.hidden;
      if (column == token % wide.hidden) values[i] = size_of(token);
    }
  });
  std::vector<float> logits(wide.vocabulary);
  for (const Index token : {Index{5}, Index{wide.vocabulary} - 1}) {
    session.append(std::vector{static_cast<std::int32_t>(token)}, logits);
    const float own = size_of(token);
    const float normalised = own / std::sqrt(own * own / wide.hidden + wide.norm_epsilon);
    for (Index i = 0; i < wide.vocabulary; ++i) {
      const bool is_along = i % wide.hidden == token % wide.hidden;
      const float expected = is_along ? normalised * size_of(i) : 0.0f;
      ASSERT_NEAR(logits[static_cast<std::size_t>(i)], expected, 1e-3) << token << ' ' << i;
    }
  }
  const Index last = Index{wide.vocabulary} * wide.hidden - 1;
  try {
    session.load_sync([&](const WeightInfo& weight, Index begin, std::span<float> values) {
      if (weight.name == "embedding.weight" && begin + std::ssize(values) == last + 1)
        values.back() = std::numeric_limits<float>::infinity();
    });
    ADD_FAILURE() << "a weight is infinite";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(message("element ", last, " must be finite")),
              std::string::npos)
        << error.what();
  }
}

TEST_F(LlamaInference, RejectsBadInputWithoutAppending) {
  const auto append = [&](std::vector<std::int32_t> tokens) { session_.append(tokens, logits_); };
  session_.initialize_sync(1);
  append({1, 2});
  EXPECT_THROW(append({}), ConfigError);
  EXPECT_THROW(append({3, llama.vocabulary}), ConfigError);
  EXPECT_THROW(append({-1}), ConfigError);
  EXPECT_THROW(append(std::vector<std::int32_t>(longest - 1, 4)), ConfigError);
  EXPECT_EQ(session_.length(), 2);
  append(std::vector<std::int32_t>(longest - 2, 4));
  EXPECT_EQ(session_.length(), longest);
  EXPECT_THROW(append({1}), ConfigError);
  EXPECT_THROW(session_.truncate(longest + 1), UsageError);
  EXPECT_THROW(session_.truncate(-1), UsageError);
  logits_.pop_back();
  session_.truncate(1);
  EXPECT_THROW(append({1}), ShapeError);
}

TEST_F(LlamaInference, ThrowsWithoutWeights) {
  Session session({longest}, context_);
  const std::vector<std::int32_t> token{1};
  EXPECT_THROW(session.append(token, logits_), UsageError);
  session.initialize_sync(1);
  session.append(token, logits_);
  EXPECT_EQ(session.length(), 1);
}

TEST_F(LlamaInference, RejectsBadShapesAndWeights) {
  EXPECT_THROW(Session({0}, context_), ConfigError);
  EXPECT_THROW(Session({longest, 0}, context_), ConfigError);
  using OfGpt2 = InferenceSession<Gpt2Family<gpt2>, Bf16, Cpu>;
  EXPECT_THROW(OfGpt2({longest + 1}, context_), ConfigError);
  EXPECT_THROW(session_.load_sync([](const WeightInfo&, Index, std::span<float> values) {
    values.back() = std::numeric_limits<float>::infinity();
  }),
               ConfigError);
}

TEST_F(LlamaInference, GreedyTokensMatchWholeText) {
  Weights weights;
  for (const WeightInfo& weight : session_.weights()) weights[weight.name] = telling_values(weight);
  session_.load_sync([&](const WeightInfo& weight, Index begin, std::span<float> values) {
    std::copy_n(weights.at(weight.name).begin() + begin, values.size(), values.begin());
  });
  WholeText<Llama<llama, Fp32, Cpu>> whole(weights);
  std::vector<std::int32_t> text{7, 3};
  const std::size_t prompt = text.size();
  while (text.size() < static_cast<std::size_t>(longest)) {
    const std::vector<float> row = whole.logits(text).back();
    text.push_back(static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin()));
  }
  const std::vector<std::int32_t> expected(text.begin() + static_cast<std::ptrdiff_t>(prompt),
                                           text.end());
  EXPECT_EQ(
      generate(session_, std::span(text).first(prompt),
               {.tokens = static_cast<Index>(expected.size()), .sampling = {.temperature = 0}}),
      expected);
  EXPECT_EQ(session_.length(), longest - 1) << "the last token is drawn and not read";
}

}  // namespace inference_session_test
