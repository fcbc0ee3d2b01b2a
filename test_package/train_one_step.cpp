// Trains in FP8 on two threads; exit code 1 if the loss does not decrease.

#include <octavo/octavo.hpp>

#include <cmath>
#include <cstdio>
#include <numeric>

using namespace octavo;

int main() {
  Context<Cpu> context(2);
  ModelSession<Llama<llama_tiny, Fp8Recipe<Tensorwise>, Cpu>> session(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
  std::vector<std::int32_t> tokens(16), targets(16);
  std::iota(tokens.begin(), tokens.end(), 32);
  std::iota(targets.begin(), targets.end(), 33);
  const double first = session.step({tokens, targets}, 1e-3).loss;
  const double second = session.step({tokens, targets}, 1e-3).loss;
  std::printf("octavo %s: loss %.4f, after one step %.4f; %d threads\n", version_string, first,
              second, context.threads());
  return std::isfinite(first) && second < first && context.threads() == 2 ? 0 : 1;
}
