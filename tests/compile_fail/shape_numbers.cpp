// expect EPSILON: LlamaConfig: norm_epsilon and rope_theta must be positive and finite
// expect NAN: LlamaConfig: norm_epsilon and rope_theta must be positive and finite
// expect VOCABULARY: LlamaConfig: layers, hidden, ffn, heads, kv_heads, head_dim and vocabulary
// expect FACTOR: LlamaConfig: parameters of rope_scaling must be positive and finite
// expect LENGTH: LlamaConfig: parameters of rope_scaling must be positive and finite
// expect BANDS: low_frequency_factor below high_frequency_factor
// expect ATTENTION_FACTOR: LlamaConfig: parameters of rope_scaling must be positive and finite
// expect EXPERTS: LlamaConfig: experts and balance_coefficient of experts must be at least 0
// expect BALANCE: LlamaConfig: experts and balance_coefficient of experts must be at least 0
// expect CHOICES: LlamaConfig: without experts, choices and balance_coefficient have no effect
// expect GPT2: Gpt2Config: norm_epsilon must be positive and finite
// expect GEMMA3: Gemma3Config: norm_epsilon, rope_theta, local_rope_theta and query_scalar
// expect SCALAR: Gemma3Config: norm_epsilon, rope_theta, local_rope_theta and query_scalar
// expect WINDOW: Gemma3Config: all sizes must be positive
#include <octavo/octavo.hpp>

#include <limits>

using namespace octavo;

constexpr LlamaConfig llama = [] {
  LlamaConfig shape = llama_tiny;
#if defined(OCTAVO_COMPILE_FAIL_EPSILON)
  shape.norm_epsilon = -1e-5f;
#elif defined(OCTAVO_COMPILE_FAIL_NAN)
  shape.norm_epsilon = std::numeric_limits<float>::quiet_NaN();
#elif defined(OCTAVO_COMPILE_FAIL_VOCABULARY)
  shape.vocabulary = -1;
#elif defined(OCTAVO_COMPILE_FAIL_FACTOR)
  shape.rope_scaling = {.kind = RopeKind::linear, .factor = 0.0f};
#elif defined(OCTAVO_COMPILE_FAIL_LENGTH)
  shape.rope_scaling = {.kind = RopeKind::dynamic, .factor = 2.0f, .original_length = 0};
#elif defined(OCTAVO_COMPILE_FAIL_BANDS)
  shape.rope_scaling = {
      .kind = RopeKind::llama3, .low_frequency_factor = 4.0f, .high_frequency_factor = 4.0f};
#elif defined(OCTAVO_COMPILE_FAIL_ATTENTION_FACTOR)
  shape.rope_scaling = {.kind = RopeKind::yarn, .attention_factor = -1.0f};
#elif defined(OCTAVO_COMPILE_FAIL_EXPERTS)
  shape.experts = {.experts = -4};
#elif defined(OCTAVO_COMPILE_FAIL_BALANCE)
  shape.experts = {.experts = 4, .choices = 2, .balance_coefficient = -0.01f};
#elif defined(OCTAVO_COMPILE_FAIL_CHOICES)
  shape.experts = {.choices = 2};
#else
  shape.rope_scaling = {.kind = RopeKind::yarn, .factor = 2.0f};
  shape.experts = {.experts = 4, .choices = 2, .balance_coefficient = 0.01f};
#endif
  return shape;
}();

constexpr Gpt2Config gpt2 = [] {
  Gpt2Config shape = gpt2_tiny;
#if defined(OCTAVO_COMPILE_FAIL_GPT2)
  shape.norm_epsilon = 0;
#endif
  return shape;
}();

constexpr Gemma3Config gemma3 = [] {
  Gemma3Config shape = gemma3_270m;
#if defined(OCTAVO_COMPILE_FAIL_GEMMA3)
  shape.norm_epsilon = -1e-6f;
#elif defined(OCTAVO_COMPILE_FAIL_SCALAR)
  shape.query_scalar = std::numeric_limits<float>::infinity();
#elif defined(OCTAVO_COMPILE_FAIL_WINDOW)
  shape.window = -1;
#endif
  return shape;
}();

template <class Model>
MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Model, AdamW<>>({.batch = {.sequences = 1, .tokens = 16}}, context);
}

MemoryPlan plan_llama(const Context<Cpu>& context) {
  return plan<Llama<llama, Bf16, Cpu>>(context);
}
MemoryPlan plan_gpt2(const Context<Cpu>& context) { return plan<Gpt2<gpt2, Bf16, Cpu>>(context); }
MemoryPlan plan_gemma3(const Context<Cpu>& context) {
  return plan<Gemma3<gemma3, Bf16, Cpu>>(context);
}
