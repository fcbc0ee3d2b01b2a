// A model with a custom precision policy: FP8, but BF16 for sensitive layers.
//
// The policy is a type. The manifest that the model prints before training shows where each GEMM
// runs, and every step is checked against it.
#include <fmt/format.h>
#include <octavo/data/data.hpp>
#include <octavo/inference/generate.hpp>
#include <octavo/octavo.hpp>

#include <string_view>

using namespace octavo;

// A short history with the newest amax and one bit of headroom. The first block and all down
// projections, whose inputs have outliers, stay in BF16.
using ShortHistory = DelayedScaling<16, AmaxReduction::most_recent, Margin{1}>;
using Precision =
    Layerwise<First<1, Bf16>, For<LinearRole::down, Bf16>, Fp8Recipe<ShortHistory, Hybrid>>;

constexpr LlamaConfig shape{.name = "own",
                            .layers = 2,
                            .hidden = 64,
                            .ffn = 192,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .vocabulary = 256,
                            .rope_theta = 10000.0f};

constexpr std::string_view text =
    "The rain in spring is soft and slow, and makes the early grasses grow. "
    "The rain in summer comes with might, with thunder in the middle night. "
    "The rain in autumn taps the pane, and turns the dusty roads to rain. "
    "The rain in winter falls as snow, and hides the sleeping fields below. "
    "And when the snow has gone its way, the rain in spring begins the day. ";

int main() {
  Context<Cpu> context(1);  // a model this small is not faster with more threads
  constexpr BatchShape batch{.sequences = 4, .tokens = 64};
  ModelSession<Llama<shape, Precision, Cpu>> session({.batch = batch}, context);
  fmt::print("{}\n{}\n", session.facts().precision, session.manifest().text());

  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  TokenStream stream(bytes, {.sequences = batch.sequences, .sequence_length = batch.tokens});
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch.rows()));
  std::vector<std::int32_t> targets(tokens.size());
  constexpr int steps = 400;
  const Schedule schedule{.learning_rate = 1e-2, .warmup_steps = 10, .steps = steps};
  for (int step = 1; step <= steps; ++step) {
    stream.next(tokens, targets);
    const StepResult result = session.step({tokens, targets}, schedule.at(step));
    if (step == 1 || step % 40 == 0) {
      fmt::print("step {:>3} | loss {:.4f} | norm {:.3f}\n", step, result.loss,
                 result.gradient_norm);
    }
  }
  const auto prompt = ByteTokenizer().encode("The rain in ");
  const auto sample =
      generate(session, prompt, batch.tokens, {.tokens = 60, .sampling = {.temperature = 0.3}});
  fmt::print("\nThe rain in {}\n", ByteTokenizer().decode(sample));
}
