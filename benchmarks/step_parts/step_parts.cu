// Where the time of a training step of Llama-3-8B goes: every part of one micro-batch of 8192
// tokens through the library's public functions, how often it runs, and its floor: bytes over the
// copy rate, or operations over the rate of the best square product, both measured in the run.
// AdamW and the weights' quantisation run once per step; each micro-batch counts its share of them.
//
//     step_parts --precision fp8-delayed --steps train_step-8b.jsonl
//
// --steps names what train_step wrote with --json; the sum is compared with the whole step there.
#include <support/gemm_parts.cuh>
#include <support/machine.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <octavo/models/llama_config.hpp>

#include <cstdio>
#include <fstream>
#include <optional>

using namespace benchmarks;

namespace {

struct Options {
  std::string precision;
  std::string steps;
  int micro_batches = 4;
};

constexpr LlamaConfig model = llama3_8b;
static_assert(model.hidden == hidden && model.ffn == ffn && model.vocabulary == vocabulary);
constexpr AttentionShape attention_shape{1, tokens, heads};

/// What floors are made from.
struct Rates {
  double copy = 0;     ///< bytes per second
  double bf16 = 0;     ///< operations a second
  double linears = 0;  ///< the same in the linear layers' precision
};

/// The parts of one micro-batch.
class Budget {
 public:
  Budget(Gpu& gpu, Rates rates) : gpu_(gpu), rates_(rates) {
    std::printf("%-34s %8s %10s %9s %9s %7s\n", "part", "count", "us each", "ms", "floor",
                "reached");
  }

  /// Measures a part and prints its line.
  /// @param count  times that it runs in a micro-batch
  /// @param rate   of its operations, if it is a product
  void add(const std::string& name, double count, const Part& part, double rate = 0) {
    const double each = gpu_.seconds(part.run);
    gpu_.free_arrays();
    const double floor = std::max(part.bytes / rates_.copy, rate > 0 ? part.operations / rate : 0);
    seconds_ += count * each;
    floor_ += count * floor;
    std::printf("%-34s %8.1f %10.1f %9.2f %9.2f %6.1f%%\n", name.c_str(), count, each * 1e6,
                count * each * 1e3, count * floor * 1e3, 100.0 * floor / each);
    std::fflush(stdout);
  }

  /// Prints the sum and, if it is known, what the whole step takes.
  void finish(std::optional<double> milliseconds) const {
    std::printf("%-34s %8s %10s %9.2f %9.2f %6.1f%%\n", "sum", "", "", seconds_ * 1e3, floor_ * 1e3,
                100.0 * floor_ / seconds_);
    if (!milliseconds) return;
    std::printf("%-34s %8s %10s %9.2f %9.2f %6.1f%%\n", "whole step, by train_step", "", "",
                *milliseconds, floor_ * 1e3, 1e5 * floor_ / *milliseconds);
    std::printf("%-34s %8s %10s %9.2f\n", "not in the parts", "", "",
                *milliseconds - seconds_ * 1e3);
  }

  [[nodiscard]] Gpu& gpu() { return gpu_; }
  [[nodiscard]] const Rates& rates() const { return rates_; }

 private:
  Gpu& gpu_;
  Rates rates_;
  double seconds_ = 0;
  double floor_ = 0;
};

Part attention_part(Gpu& gpu, bool backward) {
  gpu.need_workspace(attention_workspace(attention_shape, gpu.context()));
  constexpr Index columns = heads.heads * heads.head_dim;
  const auto qkv = gpu.make<Bf16>(tokens * heads.columns());
  const auto gradient = gpu.make<Bf16>(tokens * heads.columns());
  const auto output = gpu.make<Bf16>(tokens * columns);
  const auto output_gradient = gpu.make<Bf16>(tokens * columns);
  const auto sums = gpu.make<float>(tokens * heads.heads);
  Part part{"attention", tokens, columns};
  // Two products forward, five backward, each of half of all pairs of tokens.
  part.operations = (backward ? 5.0 : 2.0) * static_cast<double>(tokens * tokens * columns);
  const auto forward = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    (void)attention_forward(attention_shape, matrix(qkv[i], tokens, heads.columns()), {},
                            matrix(output[i], tokens, columns),
                            vector(sums[i], tokens * heads.heads), gpu.context());
  };
  part.run = forward;
  if (!backward) return part;
  for (int turn = 0; turn < turns; ++turn) forward(turn);
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    (void)attention_backward(attention_shape, input(qkv[i], tokens, heads.columns()), {},
                             input(output[i], tokens, columns),
                             input(output_gradient[i], tokens, columns),
                             input(sums[i], tokens * heads.heads),
                             matrix(gradient[i], tokens, heads.columns()), gpu.context());
  };
  return part;
}

Part zero_part(Gpu& gpu) {
  const auto gradient = gpu.make<Bf16>(vocabulary * hidden);
  Part part{"zero", vocabulary, hidden, static_cast<double>(vocabulary * hidden * 2)};
  part.run = [=, &gpu](int turn) {
    fill_zero(gradient[at(turn)], static_cast<std::size_t>(vocabulary * hidden) * sizeof(Bf16),
              gpu.context());
  };
  return part;
}

/// The products, in the precision of the linear layers; the head's in BF16.
template <class P>
void add_products(Budget& budget) {
  for (const GemmPass pass : gemm_passes) {
    for (const LinearShape& shape : linear_shapes) {
      const bool is_head = shape.rows != tokens;
      const std::string name = std::string(shape.name) + ' ' + name_of(pass) + ", " +
                               (is_head ? formats_of<Bf16>(pass) : formats_of<P>(pass));
      if (is_head) {
        budget.add(name, static_cast<double>(tokens / logit_rows),
                   gemm_part<Bf16>(budget.gpu(), shape, pass), budget.rates().bf16);
      } else {
        budget.add(name, model.layers, gemm_part<P>(budget.gpu(), shape, pass),
                   budget.rates().linears);
      }
    }
  }
}

/// What quantises where no producer does it.
template <class P>
void add_quantisation(Budget& budget, int micro_batches) {
  Gpu& gpu = budget.gpu();
  budget.add("quantise attended", model.layers,
             quantize_part<P, OperandKind::input>(gpu, tokens, hidden));
  budget.add("quantise gradients of output, down", 2 * model.layers,
             quantize_part<P, OperandKind::output_gradient>(gpu, tokens, hidden));
  constexpr double gate_up = 2.0 * ffn * hidden;
  constexpr double weights = static_cast<double>(hidden) * heads.columns() +
                             static_cast<double>(hidden) * hidden + 1.5 * gate_up;
  budget.add("quantise weights", model.layers * weights / gate_up / micro_batches,
             quantize_part<P, OperandKind::weight>(gpu, 2 * ffn, hidden));
}

template <class P>
void add_kernels(Budget& budget, int micro_batches) {
  Gpu& gpu = budget.gpu();
  constexpr double chunks = static_cast<double>(tokens / logit_rows);
  budget.add("attention forward", model.layers, attention_part(gpu, false), budget.rates().bf16);
  budget.add("attention backward", model.layers, attention_part(gpu, true), budget.rates().bf16);
  budget.add("rms_norm forward", 2 * model.layers, rms_norm_forward_part<P>(gpu));
  budget.add("rms_norm backward", 2 * model.layers, rms_norm_backward_part<Bf16>(gpu));
  budget.add("final norm forward", chunks, rms_norm_forward_part<Bf16>(gpu, logit_rows));
  budget.add("final norm backward", chunks, rms_norm_backward_part<Bf16>(gpu, logit_rows));
  budget.add("rope forward", model.layers, rope_forward_part(gpu));
  budget.add("rope backward", model.layers, rope_backward_part<P, Bf16>(gpu));
  budget.add("swiglu forward", model.layers, swiglu_forward_part<P>(gpu));
  budget.add("swiglu backward", model.layers, swiglu_backward_part<P>(gpu));
  if constexpr (QuantizedPrecision<P>) add_quantisation<P>(budget, micro_batches);
  budget.add("embedding forward", 1, embedding_forward_part(gpu));
  budget.add("embedding backward", 1, embedding_backward_part(gpu));
  budget.add("cross-entropy", chunks, cross_entropy_part(gpu));
  const double blocks = static_cast<double>(model.parameters()) / (hidden * ffn) / micro_batches;
  budget.add("zero the embedding's gradient", 1.0 / micro_batches, zero_part(gpu));
  budget.add("gradient norm", blocks, squared_norm_part<Bf16>(gpu, "gradient norm"));
  budget.add("AdamW", blocks, adamw_part<Bf16, Bf16>(gpu, "AdamW", false));
}

/// Milliseconds of a micro-batch that train_step measured in this precision, the latest.
std::optional<double> whole_step(const Options& options, const std::string& precision) {
  if (options.steps.empty()) return std::nullopt;
  std::ifstream file(options.steps);
  require<IoError>(file.good(), "cannot read ", options.steps, "; pass a file of train_step");
  std::optional<double> found;
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line.at("who") == "octavo" && line.at("model") == "llama3_8b" &&
        line.at("precision") == precision && line.at("micro_batches") == options.micro_batches &&
        line.at("batch") == 1 && line.at("sequence_length") == tokens &&
        line.at("recompute") == "none") {
      found = line.at("milliseconds").get<double>();
    }
  }
  return found;
}

template <class P>
void measure(Gpu& gpu, Rates rates, const Options& options) {
  std::string name = PrecisionTraits<P>::name();
  std::replace(name.begin(), name.end(), ' ', '-');
  if (!options.precision.empty() && options.precision != name) return;
  rates.linears = best_square_rate<P>(gpu);
  std::printf("\n%s: 1 micro-batch of %d tokens, %d a step; best square product %.0f TFLOP/s\n\n",
              name.c_str(), static_cast<int>(tokens), options.micro_batches, rates.linears * 1e-12);
  Budget budget(gpu, rates);
  add_products<P>(budget);
  add_kernels<P>(budget, options.micro_batches);
  budget.finish(whole_step(options, name));
}

void run(const Options& options) {
  Gpu gpu;
  Rates rates;
  rates.copy = gpu.copy_rate();
  rates.bf16 = best_square_rate<Bf16>(gpu);
  const Machine machine = describe_machine();
  std::printf("%s, copy %.0f GB/s, cuBLASLt %s, attention through %s, cuDNN %s\n",
              machine.card.c_str(), rates.copy * 1e-9, machine.cublaslt.c_str(),
              attention_implementation<Bf16>(AttentionPass::forward, attention_shape,
                                             gpu.context().limits()),
              machine.cudnn.c_str());
  measure<Bf16>(gpu, rates, options);
  measure<Fp8Recipe<Delayed>>(gpu, rates, options);
  measure<Fp8Recipe<Tensorwise>>(gpu, rates, options);
  measure<Fp8Recipe<Rowwise>>(gpu, rates, options);
  measure<Fp8Recipe<Blockwise>>(gpu, rates, options);
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Where the time of a training step goes.");
  Options options;
  app.add_option("--precision", options.precision, "only this one")
      ->check(CLI::IsMember(std::vector<std::string>{"bf16", "fp8-delayed", "fp8-tensorwise",
                                                     "fp8-rowwise", "fp8-blockwise"}));
  app.add_option("--steps", options.steps, "what train_step wrote with --json");
  app.add_option("--micro-batches", options.micro_batches, "micro-batches in a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_parts: %s\n", error.what());
    return 1;
  }
}
