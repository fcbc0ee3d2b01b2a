// A mixture of experts on the Cuda device, and an MLP with the same number of active parameters:
// the forward and the backward of the whole part, timed by CUDA events over recordings. Counter:
// TFLOP/s of the active parameters' products, without padding.
//
//     experts_benchmark --benchmark_counters_tabular=true --benchmark_filter=small
#include <support/gpu.cuh>
#include <support/machine.hpp>

#include <benchmark/benchmark.h>

#include <cstdio>
#include <memory>

using namespace benchmarks;

namespace {

constexpr Index tokens = 8192;

/// A block's experts.
struct ExpertsConfig {
  BlockShape shape;
  ExpertShape experts;
};
constexpr ExpertsConfig small{{.hidden = 2048, .ffn = 2816}, {8, 2, true}};
constexpr ExpertsConfig qwen3{{.hidden = 2048, .ffn = 768}, {128, 8, true}};
constexpr ExpertsConfig mixtral{{.hidden = 4096, .ffn = 14336}, {8, 2, true}};

template <ExpertsConfig Config, class P>
using Experts = ExpertsMLP<Config.shape, Config.experts, Bf16, P, P, Bf16, Cuda>;
template <ExpertsConfig Config, class P>
using Dense =
    MLP<BlockShape{.hidden = Config.shape.hidden, .ffn = Config.shape.ffn* Config.experts.choices},
        SwiGlu, Bf16, P, P, Bf16, Cuda>;

/// A part of a block with its memory.
template <class Part>
class PartBench {
 public:
  PartBench(Gpu& gpu, Index hidden) : context_(gpu.context()), hidden_(hidden) {
    Arena<Cuda> measured;
    allocate(measured);
    arena_ = std::make_unique<Arena<Cuda>>(measured.plan(), context_);
    layer_ = std::make_unique<Layer>();
    allocate(*arena_);
    std::size_t workspace = 0;
    for (const GemmEntry& gemm : layer_->manifest.entries()) {
      if (gemm.experts == 0) continue;
      workspace = std::max(workspace, experts_workspace<Cuda>(gemm, tokens, context_));
    }
    gpu.need_workspace(workspace);
    layer_->scaling.reset_sync(context_);
    fill(layer_->saved.input.values, tokens * hidden, 1.0f);
    fill(x_, tokens * hidden, 1.0f);
    fill(y_gradient_, tokens * hidden, 1.0f);
    layer_->part.visit([&](auto& parameter) {
      initialize(parameter, {1, static_cast<std::uint64_t>(parameter.offset)}, context_);
    });
    layer_->part.template quantize_weights<Mode::train>(context_);
    quantize(input(), context_);
  }

  void forward() {
    layer_->part.template forward<Mode::train>(input(), TensorView<const Bf16, 2, Cuda>(view(x_)),
                                               view(y_), batch(), 0, layer_->saved, context_);
  }
  void backward() {
    layer_->part.backward(view(y_gradient_), input(), view(x_gradient_), batch(), 0, layer_->saved,
                          layer_->scratch, false, context_);
  }

 private:
  struct Layer {
    Manifest manifest;
    ScalingTable<Cuda> scaling;
    Part part;
    FlatParameters<Bf16, Bf16, Cuda> run;
    typename Part::Saved saved;
    typename Part::Scratch scratch;
  };

  void allocate(Arena<Cuda>& arena) {
    auto& [manifest, scaling, part, run, saved, scratch] = *layer_;
    const Initial initial = Initial::normal(0.02f);
    part.declare("block", {&scaling, &manifest, nullptr}, {initial, initial}, {});
    const auto each = [&part = part](const auto& visitor) { part.visit(visitor); };
    run.allocate_weights(arena, each);
    part.allocate_weight_copies(arena);
    run.allocate_gradients(arena, each);
    scaling.allocate(arena);
    Part::allocate_shared_buffers(arena, saved, tokens);
    Part::allocate_saved(arena, saved, tokens, [](Recompute) { return true; });
    Part::allocate_scratch(arena, scratch, tokens);
    for (Bf16** memory : {&x_, &y_, &y_gradient_, &x_gradient_}) {
      *memory = arena.allocate<Bf16>(MemoryKind::activations, tokens * hidden_);
    }
  }
  void fill(Bf16* values, Index count, float deviation) {
    initialize_values(TensorView<Bf16, 1, Cuda>{values, {count}},
                      {Initial::normal(deviation), count, {1, 1000 + seed_++}}, context_);
  }
  [[nodiscard]] auto input() const {
    return layer_->part.template input<Mode::train>(layer_->saved, tokens, {});
  }
  [[nodiscard]] TensorView<Bf16, 2, Cuda> view(Bf16* data) const {
    return {data, {tokens, hidden_}};
  }
  static BatchShape batch() { return {1, tokens, 0}; }

  const Context<Cuda>& context_;
  Index hidden_;
  std::unique_ptr<Arena<Cuda>> arena_;
  std::unique_ptr<Layer> layer_ = std::make_unique<Layer>();
  Bf16 *x_ = nullptr, *y_ = nullptr, *y_gradient_ = nullptr, *x_gradient_ = nullptr;
  std::uint64_t seed_ = 0;
};

/// Runs the forward or the backward; one iteration is the median of many.
template <ExpertsConfig Config, class Part>
void run(benchmark::State& state, Gpu& gpu, bool is_backward) {
  try {
    gpu.free_arrays();
    PartBench<Part> bench(gpu, Config.shape.hidden);
    bench.forward();
    double seconds = 0;
    for ([[maybe_unused]] auto _ : state) {
      seconds = gpu.seconds([&](int) { is_backward ? bench.backward() : bench.forward(); });
      state.SetIterationTime(seconds);
    }
    const double operations = 6.0 * static_cast<double>(tokens * Config.experts.choices) *
                              static_cast<double>(Config.shape.hidden) *
                              static_cast<double>(Config.shape.ffn) * (is_backward ? 2 : 1);
    state.counters["TFLOP/s"] = operations / seconds * 1e-12;
  } catch (const octavo::Error& error) {
    state.SkipWithError(error.what());
  }
}

template <ExpertsConfig Config, class P>
void add(Gpu& gpu, const char* config) {
  const auto add_part = [&]<class Part>(std::type_identity<Part>, const char* part) {
    for (const bool is_backward : {false, true}) {
      const std::string name = std::string(config) + '/' + PrecisionTraits<P>::name() + '/' + part +
                               (is_backward ? "/backward" : "/forward");
      benchmark::RegisterBenchmark(
          name.c_str(),
          [=, &gpu](benchmark::State& state) { run<Config, Part>(state, gpu, is_backward); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  };
  add_part(std::type_identity<Dense<Config, P>>{}, "dense");
  add_part(std::type_identity<Experts<Config, P>>{}, "experts");
}

template <class P>
void add_all(Gpu& gpu) {
  add<small, P>(gpu, "small");
  add<qwen3, P>(gpu, "qwen3_30b");
  add<mixtral, P>(gpu, "mixtral_8x7b");
}

}  // namespace

int main(int count, char** words) {
  benchmark::Initialize(&count, words);
  if (benchmark::ReportUnrecognizedArguments(count, words)) return 2;
  try {
    Gpu gpu;
    add_all<Bf16>(gpu);
    add_all<Fp8Recipe<Tensorwise>>(gpu);
    add_all<Fp8Recipe<Blockwise>>(gpu);
    const Machine machine = describe_machine();
    benchmark::AddCustomContext("card", machine.card);
    benchmark::AddCustomContext("cuBLASLt", machine.cublaslt);
    benchmark::AddCustomContext("CUDA", machine.cuda);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const octavo::Error& error) {
    std::fprintf(stderr, "experts_benchmark: %s\n", error.what());
    return 1;
  }
}
