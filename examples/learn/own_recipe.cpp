// A custom recipe with a block size that the library does not have, compared with BF16 and
// Blockwise.
//
// A type determines how scales are computed and which elements share one. No GPU multiplies blocks
// of 64, so this recipe does not compile for Cuda; the Cpu device emulates it, which shows its
// effect on training.
#include <fmt/format.h>
#include <octavo/data/data.hpp>
#include <octavo/octavo.hpp>

#include <string_view>

using namespace octavo;

struct BlocksOf64 {
  static constexpr const char* name = "blocks-of-64";
  using InputGranularity = PerBlock<1, 64>;    // of inputs and gradients, along k
  using WeightGranularity = PerBlock<64, 64>;  // of weights
  static constexpr int shape_multiple = 64;    // required multiple of a layer's features
  static constexpr auto rounding = ScaleRounding::power_of_two;
};

constexpr LlamaConfig shape{.name = "own",
                            .layers = 2,
                            .hidden = 128,
                            .ffn = 256,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .vocabulary = 256,
                            .rope_theta = 10000.0f};

constexpr std::string_view text =
    "The rain in spring is soft and slow, and makes the early grasses grow. "
    "The rain in summer comes with might, with thunder in the middle night. "
    "The rain in autumn taps the pane, and turns the dusty roads to rain. "
    "The rain in winter falls as snow, and hides the sleeping fields below. "
    "And when the snow has gone its way, the rain in spring begins the day. ";

/// Trains the model in `Precision`; returns the mean loss of the last ten steps.
template <class Precision>
double train() {
  Context<Cpu> context;
  constexpr BatchShape batch{.sequences = 4, .tokens = 64};
  ModelSession<Llama<shape, Precision, Cpu>> session({.batch = batch}, context);
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  TokenStream stream(bytes, {.sequences = batch.sequences, .sequence_length = batch.tokens});
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch.rows()));
  std::vector<std::int32_t> targets(tokens.size());
  constexpr int steps = 60;
  double recent = 0;
  for (int step = 1; step <= steps; ++step) {
    stream.next(tokens, targets);
    const double loss = session.step({tokens, targets}, 1e-3).loss;
    if (step > steps - 10) recent += loss / 10;
  }
  fmt::print("{:<16} | loss {:.4f}", session.facts().precision, recent);
  for (const OperandReport& operand : session.operands()) {  // empty in BF16
    if (!operand.name.starts_with("blocks.0.qkv")) continue;
    fmt::print(" | {} {} by {}", operand.name, operand.format, operand.granularity);
  }
  fmt::print("\n");
  return recent;
}

int main() {
  const double bf16 = train<Bf16>();
  const double blockwise = train<Fp8Recipe<Blockwise>>();
  const double own = train<Fp8Recipe<BlocksOf64>>();
  return std::abs(own - bf16) < 0.05 * bf16 && std::abs(blockwise - bf16) < 0.05 * bf16 ? 0 : 1;
}
