// expect MODEL: InferenceModel: the first argument must be a family, such as PresetFamily<preset>
// expect NESTED: Inference: it is the precision of an InferenceModel, which adds it itself
// expect LORA: InferenceModel: Lora is only for training; choose its base precision
#include <octavo/octavo.hpp>

#include <octavo/inference/session.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_MODEL)
using Session = InferenceSession<Llama<llama_tiny, Bf16, Cpu>, Bf16, Cpu>;
#elif defined(OCTAVO_COMPILE_FAIL_LORA)
using Session = InferenceSession<PresetFamily<llama_tiny>, Lora<Bf16>, Cpu>;
#elif defined(OCTAVO_COMPILE_FAIL_NESTED)
using Session = InferenceSession<PresetFamily<llama_tiny>, Inference<Bf16>, Cpu>;
#else
using Session = InferenceSession<PresetFamily<llama_tiny>, Bf16, Cpu>;
#endif

Index longest(Context<Cpu>& context) {
  const Session session({.longest = 16}, context);
  return session.longest();
}
