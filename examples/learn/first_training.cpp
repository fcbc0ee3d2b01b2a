#include <octavo/data/data.hpp>
#include <octavo/octavo.hpp>

#include <cstdio>

using namespace octavo;

using Model = Llama<llama_tiny, Bf16, Cpu>;

int main(int argc, char** argv) try {
  if (argc != 2) return std::puts("usage: first_training TEXT"), 2;
  const std::vector<std::uint8_t> text = read_text({argv[1]});
  TokenStream stream(text, {.sequences = 4, .sequence_length = 64, .seed = 1});
  std::vector<std::int32_t> tokens(4 * 64), targets(4 * 64);

  Context<Cpu> context;
  ModelSession<Model> session({.batch = {.sequences = 4, .tokens = 64}}, context);
  std::fputs(session.manifest().text().c_str(), stdout);  // every GEMM with its formats

  for (int step = 1; step <= 50; ++step) {
    stream.next(tokens, targets);
    const StepResult result = session.step({tokens, targets}, /*learning_rate=*/3e-3);
    std::printf("step %2d | loss %.4f\n", step, result.loss);
  }
} catch (const Error& error) {
  return std::fprintf(stderr, "first_training: %s\n", error.what()), 1;
}
