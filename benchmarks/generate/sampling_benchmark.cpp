// Time of drawing a token from the logits of Llama 3's vocabulary, on one core: what generation
// adds to each token beside the model.
#include <octavo/core/random.hpp>
#include <octavo/inference/sampling.hpp>

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

/// As many, of standard deviation 2, of which 40 are larger by 8: most of the probability is
/// theirs.
std::vector<float> some_logits(std::size_t count) {
  const octavo::RandomStream stream{1, 0};
  std::vector<float> logits(count);
  for (std::size_t i = 0; i < count; ++i) {
    logits[i] = 2 * octavo::normal(stream, static_cast<std::uint64_t>(i));
    if (i % 3000 == 0 && i < 120'000) logits[i] += 8;
  }
  return logits;
}

void draw(benchmark::State& state, const octavo::SamplingOptions& options) {
  constexpr std::size_t vocabulary = 128'256;
  const std::vector<float> logits = some_logits(vocabulary);
  octavo::Sampler sampler(options);
  double random = 0;
  for (auto _ : state) {
    random += 0.618;
    random -= std::floor(random);
    benchmark::DoNotOptimize(sampler.draw(logits, random));
  }
}

BENCHMARK_CAPTURE(draw, likeliest, octavo::SamplingOptions{.temperature = 0});
BENCHMARK_CAPTURE(draw, temperature, octavo::SamplingOptions{.temperature = 0.8});
BENCHMARK_CAPTURE(draw, top_k, octavo::SamplingOptions{.temperature = 0.8, .top_k = 50});
BENCHMARK_CAPTURE(draw, top_p, octavo::SamplingOptions{.temperature = 0.8, .top_p = 0.9});

}  // namespace
