// Tokens a second that a model goes on with a text by, one at a time, with random weights; against
// the time that reading its weights and its cache takes at the rate of a copy, which is measured in
// the same run.
//
//     generate_benchmark                every model
//     generate_benchmark llama3_8b      those whose name contains the word
//     generate_benchmark bf16 8192      and texts of this many tokens; 1024 unless said
#include <octavo/inference/inference.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <support/gpu.cuh>
#include <support/machine.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace benchmarks;

namespace {

/// Source: config.json of HuggingFaceTB/SmolLM2-135M.
constexpr LlamaConfig smollm2_135m{.name = "smollm2_135m",
                                   .layers = 30,
                                   .hidden = 576,
                                   .ffn = 1536,
                                   .heads = 9,
                                   .kv_heads = 3,
                                   .head_dim = 64,
                                   .vocabulary = 49152,
                                   .rope_theta = 100000.0f,
                                   .tied_embeddings = true};

constexpr Index measured_tokens = 256;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Measures texts of `length` tokens and those behind them, and prints a line.
template <class Family, class Precision>
void measure(Index length, double copy) {
  Context<Cuda> context;
  InferenceSession<Family, Precision, Cuda> session({length + measured_tokens + 2}, context);
  session.initialize_sync(1);
  const auto vocabulary = static_cast<std::size_t>(session.facts().vocabulary);
  std::vector<float> logits(vocabulary);
  const std::vector<std::int32_t> prompt(static_cast<std::size_t>(length), 1);
  const double begin = now();
  session.append(prompt, logits);
  const double read = now() - begin;
  const std::vector<std::int32_t> one{2};
  session.append(one, logits);  // runs the step, and records it
  session.append(one, logits);
  const double start = now();
  for (Index i = 0; i < measured_tokens / 2; ++i) session.append(one, logits);
  const double steps = (now() - start) / (measured_tokens / 2);
  const double drawn = now();
  (void)generate(session, one, {.tokens = measured_tokens / 2, .sampling = {.temperature = 0}});
  const double token = (now() - drawn) / (measured_tokens / 2);
  const auto bytes = static_cast<double>(session.bytes_of_step(length + measured_tokens / 2));
  std::printf("%-13s %-16s %7td %9.0f %9.4f %9.4f %9.1f %9.1f %9.1f %7.1f\n",
              session.facts().name.c_str(), session.precision().c_str(), length,
              static_cast<double>(length) / read, steps * 1e3, token * 1e3, 1 / token, bytes * 1e-6,
              copy / bytes, 100 * bytes / copy / token);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::string word;
  Index length = 1024;
  for (int i = 1; i < argc; ++i) {
    char* end = nullptr;
    const long number = std::strtol(argv[i], &end, 10);
    if (*end == '\0') {
      length = number;
    } else {
      word = argv[i];
    }
  }
  const double copy = Gpu().copy_rate();
  const Machine machine = describe_machine();
  std::printf("%s, copy %.0f GB/s\n\n", machine.card.c_str(), copy * 1e-9);
  std::printf("%-13s %-16s %7s %9s %9s %9s %9s %9s %9s %7s\n", "model", "weights", "tokens",
              "prompt/s", "step ms", "token ms", "tokens/s", "MB", "bound/s", "%");
  const auto each = [&]<class Family, class P>(std::type_identity<Family>, std::type_identity<P>) {
    const std::string name = Family::config.name.text() + (' ' + precision_name<P>());
    if (name.find(word) != std::string::npos) measure<Family, P>(length, copy);
  };
  const auto of_family = [&](auto family) {
    each(family, std::type_identity<Bf16>{});
    each(family, std::type_identity<PrecisionNamed<"fp8-tensorwise">>{});
    each(family, std::type_identity<PrecisionNamed<"fp8-rowwise-fp8-head">>{});
  };
  of_family(std::type_identity<LlamaFamily<smollm2_135m>>{});
  of_family(std::type_identity<LlamaFamily<llama3_1b>>{});
  of_family(std::type_identity<LlamaFamily<llama3_8b>>{});
}
