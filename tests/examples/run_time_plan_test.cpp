// Plans of shapes that are known only at run time equal those of compiled models, to the byte.
#include <octavo/precision/named_precisions.hpp>
#include <plan_memory/measure.hpp>
#include <plan_memory/options.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

namespace run_time_plan_test {

using namespace octavo;

/// Tied embeddings, normalised heads, a padded vocabulary, and layers between two edges.
constexpr LlamaConfig tied_qwen{.name = "tied_qwen",
                                .layers = 3,
                                .hidden = 128,
                                .ffn = 256,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .vocabulary = 300,
                                .tied_embeddings = true,
                                .qk_norm = true};

/// Biases, and windows from the second layer on.
constexpr LlamaConfig windowed_qwen2 = [] {
  LlamaConfig config = tied_qwen;
  config.name = "windowed_qwen2";
  config.qk_norm = false;
  config.qkv_bias = true;
  config.window = 8;
  config.first_windowed_layer = 1;
  return config;
}();
/// Norms after each sublayer, and two rotations.
constexpr Gemma3Config small_gemma3{.name = "small_gemma3",
                                    .layers = 3,
                                    .hidden = 128,
                                    .ffn = 256,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 64,
                                    .vocabulary = 300,
                                    .window = 8,
                                    .global_every = 2};

/// Experts, with and without a load-balancing loss.
constexpr LlamaConfig small_mixtral = [] {
  LlamaConfig config = tied_qwen;
  config.name = "small_mixtral";
  config.tied_embeddings = false;
  config.qk_norm = false;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 0.02f;
  return config;
}();
constexpr LlamaConfig small_qwen3_moe = [] {
  LlamaConfig config = tied_qwen;
  config.name = "small_qwen3_moe";
  config.ffn = 128;
  config.experts = {.experts = 6, .choices = 3, .renormalised = false};
  return config;
}();

/// What the compiled model of a request's options takes.
template <auto Config, class P, Device D, int Degree>
struct Compiled {
  using Model = PresetModel<Config, P, D, StorageOf<P>, TensorParallel<Degree>>;
  using Memory = octavo::SessionMemoryOf<Model>;

  static MemoryPlan memory(const planner::Request& request) {
    const Memory taken{planner::detail::ranks_of<Memory>(request),
                       planner::detail::optimizer_of<Memory>(request)};
    return plan_memory<Model>(request.session, planner::detail::limits_of<D>(request), taken);
  }
  static std::vector<GemmEntry> gemms(const planner::Request& request) {
    Arena<D> arena;
    const Model model(arena, Model::run_shape(request.session.batch), request.session.model,
                      planner::detail::limits_of<D>(request));
    return model.manifest().entries();
  }
};

/// Every choice that a plan depends on in addition to the model, the precision and the device.
std::vector<planner::Options> choices(const planner::Options& given) {
  std::vector<planner::Options> all{given};
  const auto vary = [&](const auto& values, const auto& set) {
    std::vector<planner::Options> more;
    for (const planner::Options& options : all) {
      for (const auto& value : values) {
        more.push_back(options);
        set(more.back(), value);
      }
    }
    all = std::move(more);
  };
  vary(programs::recompute_names, [](auto& o, const std::string& name) { o.recompute = name; });
  vary(programs::weight_copies_names,
       [](auto& o, const std::string& name) { o.weight_copies = name; });
  vary(std::vector{0, 1, 2, 3}, [](planner::Options& o, int zero) {
    o.zero = std::max(zero, 1);
    o.world = (zero == 0 ? 1 : 4) * o.tensor_parallel;
  });
  vary(std::vector{1, 3}, [](auto& o, Index count) { o.micro_batches = count; });
  // Other choices are independent of each other, so they vary together.
  std::size_t number = 0;
  for (planner::Options& options : all) {
    ++number;
    if (number % 3 == 0) options.most_documents = 2 * options.batch + 1;
    if (number % 4 == 0) options.offload = "optimizer";
    if (number % 3 == 2 && options.recompute != "block") {
      options.offload = number % 4 == 0 ? "both" : "activations";
    }
    if (number % 5 == 0) options.head_chunk = 16;
    if (number % 7 == 0) options.deterministic = options.device == "cuda";
    options.cudnn = options.device == "cuda" && number % 2 == 0;
    options.master_weights = number % 3 == 1 ? "bf16" : "fp32";
    options.moments = std::vector<std::string>{"fp32", "bf16", "8bit"}[number % 3];
    options.reduce = std::vector<std::string>{"stored", "fp32", "e4m3"}[number % 3];
    if (number % 5 == 1 && options.lora == 0) options.gather = "fp8";
  }
  return all;
}

std::string text_of(const planner::Options& o) {
  return message(o.model, ' ', o.precision, ' ', o.device, " lora ", o.lora, " degree ",
                 o.tensor_parallel, " recompute ", o.recompute, " copies ", o.weight_copies,
                 " world ", o.world, " zero ", o.zero, " micro-batches ", o.micro_batches,
                 " documents ", o.most_documents, " gather ", o.gather);
}

/// The plan, or the message that refuses it.
template <class Make>
std::string outcome(const Make& make) {
  try {
    const MemoryPlan plan = make();
    std::string text = message("peak ", plan.peak, " host ", plan.host);
    for (const std::size_t bytes : plan.by_kind) text += message(' ', bytes);
    return text;
  } catch (const ConfigError& error) {
    return error.what();
  }
}

template <auto Config, class P, Device D, int Degree = 1>
void expect_equal_plans(const char* precision) {
  using Of = Compiled<Config, P, D, Degree>;
  planner::Options options;
  options.model = Config.name.text();
  options.precision = precision;
  options.device = D::name;
  options.threads = std::is_same_v<D, Cpu> ? 2 : 0;
  options.batch = 3;
  options.sequence_length = 24;
  options.tensor_parallel = Degree;
  options.world = Degree;
  options.lora = is_lora<P> ? 5 : 0;
  if (is_lora<P>) options.lora_targets = {"k_proj", "down_proj", "gate_proj"};
  const ModelDescription described = description_of(Config);
  if (is_lora<P> && described.experts != 0) options.lora_targets = {"k_proj", "o_proj"};
  const planner::Plan plan({options.model, described}, precision);
  std::size_t planned = 0;
  for (const planner::Options& choice : choices(options)) {
    const planner::Request request = planner::request_of(choice);
    const std::string expected = outcome([&] { return Of::memory(request); });
    if (expected.starts_with("peak")) ++planned;
    EXPECT_EQ(outcome([&] { return plan.memory(request); }), expected) << text_of(choice);
  }
  EXPECT_GT(planned, 60u) << text_of(options);
  const planner::Request request = planner::request_of(options);
  const std::vector<GemmEntry> gemms = plan.gemms(request);
  const std::vector<GemmEntry> expected = Of::gemms(request);
  ASSERT_EQ(gemms.size(), expected.size()) << text_of(options);
  for (std::size_t i = 0; i < gemms.size(); ++i) {
    const GemmEntry& gemm = gemms[i];
    const GemmEntry& other = expected[i];
    EXPECT_TRUE(gemm.pass == other.pass && gemm.out == other.out && gemm.in == other.in &&
                gemm.expected.is_fp8() == other.expected.is_fp8() &&
                gemm.output_format == other.output_format && gemm.recomputed == other.recomputed &&
                gemm.is_head == other.is_head && gemm.scales_a == other.scales_a &&
                gemm.scales_b == other.scales_b && gemm.bias == other.bias &&
                gemm.adds == other.adds && gemm.experts == other.experts &&
                gemm.choices == other.choices)
        << text_of(options) << ": " << other.layer;
  }
}

/// Whether the device, or an H100, runs a precision.
template <class P, Device D>
constexpr bool runs_here = true;
template <LinearPrecision P>
constexpr bool runs_here<P, Cuda> = gpu_runs<P>(GpuFeatures{});

/// A model that does not compile is refused.
template <auto Config, Device D>
void expect_refusal_of_activation_input(const char* precision, int lora) {
  planner::Options options;
  options.model = Config.name.text();
  options.precision = precision;
  options.device = D::name;
  options.batch = 1;
  options.sequence_length = 16;
  options.lora = lora;
  const planner::Plan plan({options.model, description_of(Config)}, precision);
  const std::string text = outcome([&] { return plan.memory(planner::request_of(options)); });
  EXPECT_NE(text.find("ForActivation<E4M3> does not support"), std::string::npos) << text;
}

/// Compares the plans of a shape in every precision of the device.
template <auto Config, Device D, int Degree = 1, bool WithAdapters = false>
void expect_equal_plans_in_all() {
  named_precisions.for_each([]<class P>(NamedPrecision<P> named) {
    if constexpr (runs_here<P, D>) {
      using Model = std::conditional_t<WithAdapters, Lora<P>, P>;
      constexpr bool has_biases = std::is_same_v<decltype(Config), const Gpt2Config>;
      if constexpr (activation_input_of<P> != ActivationInput::storage &&
                    (WithAdapters || has_biases)) {
        expect_refusal_of_activation_input<Config, D>(named.name, WithAdapters ? 4 : 0);
      } else {
        expect_equal_plans<Config, Model, D, Degree>(named.name);
      }
    }
  });
}

TEST(RunTimePlan, MatchesCompiledLlama) { expect_equal_plans_in_all<llama_tiny, Cuda>(); }
TEST(RunTimePlan, MatchesCompiledQwen) { expect_equal_plans_in_all<tied_qwen, Cpu>(); }
TEST(RunTimePlan, MatchesCompiledGpt2) { expect_equal_plans_in_all<gpt2_tiny, Cuda>(); }
TEST(RunTimePlan, MatchesCompiledQwen2WithWindows) {
  expect_equal_plans<windowed_qwen2, Bf16, Cpu>("bf16");
  expect_equal_plans<windowed_qwen2, PrecisionNamed<"fp8-delayed">, Cuda>("fp8-delayed");
}
TEST(RunTimePlan, MatchesCompiledGemma3) {
  expect_equal_plans<small_gemma3, Bf16, Cpu>("bf16");
  expect_equal_plans<small_gemma3, PrecisionNamed<"fp8-delayed">, Cuda>("fp8-delayed");
  expect_equal_plans<small_gemma3, Lora<PrecisionNamed<"fp8-tensorwise">>, Cuda>("fp8-tensorwise");
}
TEST(RunTimePlan, MatchesCompiledExperts) {
  expect_equal_plans<small_mixtral, Bf16, Cpu>("bf16");
  expect_equal_plans<small_mixtral, PrecisionNamed<"fp8-delayed">, Cuda>("fp8-delayed");
  expect_equal_plans<small_qwen3_moe, PrecisionNamed<"fp8-rowwise">, Cpu>("fp8-rowwise");
  expect_equal_plans<small_qwen3_moe, Lora<PrecisionNamed<"fp8-tensorwise">>, Cuda>(
      "fp8-tensorwise");
}
TEST(RunTimePlan, MatchesCompiledAdapters) {
  expect_equal_plans_in_all<llama_tiny, Cuda, 1, true>();
}
TEST(RunTimePlan, MatchesCompiledTensorParallelModel) {
  expect_equal_plans<llama_tiny, Fp32, Cpu, 2>("fp32");
  expect_equal_plans<tied_qwen, PrecisionNamed<"fp8-delayed">, Cuda, 2>("fp8-delayed");
  expect_equal_plans<llama_tiny, PrecisionNamed<"fp8-tensorwise-fp8-head">, Cuda, 2>(
      "fp8-tensorwise-fp8-head");
}

}  // namespace run_time_plan_test
