// expect LORA: Lora: it must be the outermost template of a model's precision
// expect LORA_IN_BASE: Lora: it must be the outermost template of a model's precision
// expect LORA_IN_PART: Lora: it must be the outermost template of a model's precision
// expect LORA_IN_LORA_OF_PARTS: Lora: it must be the outermost template of a model's precision
// expect LORA_IN_FALLBACK: Lora: it must be the outermost template of a model's precision
// expect INFERENCE: Inference: it is the precision of an InferenceModel, which adds it itself
// expect INFERENCE_IN_PART: Inference: it is the precision of an InferenceModel
// expect INFERENCE_IN_LORA: Inference: it is the precision of an InferenceModel
// expect HEAD_IN_HEAD: a precision must be Fp32, Bf16, Fp8Recipe<...>
// expect FIRST_IN_FIRST: a precision must be Fp32, Bf16, Fp8Recipe<...>
// expect HEAD_IN_ROLE: a precision must be Fp32, Bf16, Fp8Recipe<...>
// expect ATTENTION_IN_FIRST: a precision must be Fp32, Bf16, Fp8Recipe<...>
#include <octavo/octavo.hpp>

using namespace octavo;

using Fp8 = Fp8Recipe<Delayed>;

#if defined(OCTAVO_COMPILE_FAIL_LORA)
using Precision = Lora<Lora<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_LORA_IN_BASE)
using Precision = Layerwise<First<1, Bf16>, Lora<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_LORA_IN_PART)
using Precision = Layerwise<Head<Lora<Fp8>>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_LORA_IN_LORA_OF_PARTS)
using Precision = Lora<Layerwise<First<1, Bf16>, Lora<Fp8>>>;
#elif defined(OCTAVO_COMPILE_FAIL_LORA_IN_FALLBACK)
using Precision = AllowFallback<Lora<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_INFERENCE)
using Precision = Inference<Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_INFERENCE_IN_PART)
using Precision = Layerwise<First<1, Inference<Bf16>>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_INFERENCE_IN_LORA)
using Precision = Lora<Inference<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_HEAD_IN_HEAD)
using Precision = Layerwise<Head<Head<Bf16>>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_FIRST_IN_FIRST)
using Precision = Layerwise<First<1, First<2, Bf16>>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_HEAD_IN_ROLE)
using Precision = Layerwise<For<LinearRole::down, Head<Bf16>>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ATTENTION_IN_FIRST)
using Precision = Layerwise<First<1, ForAttention<EightBitForward>>, Fp8>;
#else
using Precision = Lora<Layerwise<First<1, Bf16>, AllowFallback<Emulated<Fp8>>, Head<Fp8>>>;
#endif

MemoryPlan plan(const Context<Cpu>& context) {
  return plan_memory<Llama<llama_tiny, Precision, Cpu>, AdamW<>>(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}
