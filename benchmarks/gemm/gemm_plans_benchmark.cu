// What the choice of algorithms brings: every matrix product of a training step of Llama-3-8B with
// the heuristics' first algorithm, with one that was chosen quickly, and with two that were chosen
// under load, the second in another context: how far the two differ is how far the choice can be
// trusted. All four take turns on one busy GPU; a row is the median of the turns, the last row the
// sum of all products of one precision.
//
//     gemm_plans_benchmark                     BF16, FP8 with a scale a tensor, with block scales
#include <octavo/cuda.cuh>
#include <octavo/models/models.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace {

using namespace octavo;

constexpr Index tokens = 8192;
constexpr std::array choices{GemmChoice::heuristic, GemmChoice::quick, GemmChoice::sustained,
                             GemmChoice::sustained};
using Milliseconds = std::array<double, choices.size()>;

/// The products of a step of several micro-batches.
template <class Precision>
std::vector<GemmKey> step_keys() {
  Arena<Cuda> arena;
  const Llama<llama3_8b, Precision, Cuda> model(arena, {1, tokens}, {}, DeviceLimits<Cuda>{});
  return gemm_keys(model.manifest(), {tokens, model.logits_rows(), 2});
}

class Pair {
 public:
  Pair() {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  /// Milliseconds that what `work` enqueues takes.
  template <class Work>
  double time(const Context<Cuda>& context, const Work& work) {
    check(cudaEventRecord(events_[0], context.stream()), "cudaEventRecord");
    work();
    check(cudaEventRecord(events_[1], context.stream()), "cudaEventRecord");
    context.synchronize();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds);
  }

 private:
  std::array<cudaEvent_t, 2> events_{};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Times a product with each context's algorithm, by turns.
Milliseconds measure(const GemmKey& key, std::span<const std::unique_ptr<Context<Cuda>>> contexts,
                     std::span<std::byte> memory) {
  constexpr double turn_milliseconds = 8;
  constexpr int rounds = 15;
  Pair pair;
  detail::GemmSamples samples(key, memory);
  samples.fill(*contexts[0]);
  contexts[0]->synchronize();
  const auto run = [&](const Context<Cuda>& context, int times) {
    return pair.time(context, [&] {
      for (int i = 0; i < times; ++i) {
        context.state<detail::GemmPlans>().run(key, samples.scales(), samples.next(), context);
      }
    }) / times;
  };
  double longest = 0;
  for (const auto& context : contexts) longest = std::max(longest, run(*context, 2));
  const int times = std::max(2, static_cast<int>(turn_milliseconds / longest));
  std::array<std::vector<double>, choices.size()> turns;
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const std::size_t turn = round % 2 == 0 ? i : choices.size() - 1 - i;
      const double time = run(*contexts[turn], times);
      if (round > 0) turns[turn].push_back(time);
    }
  }
  Milliseconds result{};
  for (std::size_t i = 0; i < choices.size(); ++i) result[i] = median(turns[i]);
  return result;
}

void print(const char* name, const Milliseconds& times) {
  std::printf("%9.1f %9.1f %9.1f %9.1f | %7.3f %7.3f %7.3f | %s\n", 1e3 * times[0], 1e3 * times[1],
              1e3 * times[2], 1e3 * times[3], times[2] / times[0], times[2] / times[1],
              times[3] / times[2], name);
  std::fflush(stdout);
}

template <class Precision>
void compare(std::span<std::byte> memory) {
  const std::vector<GemmKey> keys = step_keys<Precision>();
  std::printf("\n%s, %zu products\n", precision_name<Precision>().c_str(), keys.size());
  std::vector<std::unique_ptr<Context<Cuda>>> contexts;
  for (const GemmChoice choice : choices) {
    contexts.push_back(std::make_unique<Context<Cuda>>());
    const GemmPlanSummary summary = prepare_gemms(keys, choice, memory, *contexts.back());
    std::printf("  %s\n", summary.text().c_str());
  }
  std::puts("heuristic     quick sustained     again | to heur. to qu.   again | product");
  std::puts("       us        us        us        us |");
  Milliseconds sum{};
  for (const GemmKey& key : keys) {
    const Milliseconds times = measure(key, contexts, memory);
    for (std::size_t i = 0; i < choices.size(); ++i) sum[i] += times[i];
    print(gemm_text(key).c_str(), times);
  }
  print("the sum", sum);
}

void run() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("gemm_plans_benchmark: no GPU answers on this machine; nothing is measured");
    return;
  }
  const Context<Cuda> context;
  std::printf("%s, cuBLASLt %zu\n", context.card().c_str(), cublasLtGetVersion());
  const Buffer<Cuda> memory(std::size_t{8} << 30, context);
  const std::span<std::byte> bytes{memory.data(), memory.size()};
  compare<Bf16>(bytes);
  compare<Fp8Recipe<Tensorwise>>(bytes);
  compare<Fp8Recipe<Blockwise>>(bytes);
}

}  // namespace

int main() {
  try {
    run();
    return EXIT_SUCCESS;
  } catch (const octavo::Error& error) {
    std::fprintf(stderr, "gemm_plans_benchmark: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
