// Time of training steps on one GPU, or on several that ranks have: random tokens of the whole
// vocabulary, the same in every step; BF16 weights and gradients; gradients clipped to 1.
// Each step is timed by the host, from the call to its result, so with everything.
//
//     train_step --model llama3_8b --precision fp8-tensorwise --micro-batches 4 --json run.json
//
//     mpirun -n 2 train_step --model llama3_8b --precision fp8-delayed --micro-batches 4 --zero 1
//
// Each rank has micro-batches of its own; the first one prints. Prints one line, and with --json
// appends it to a file as one JSON object; benchmarks/peers/ torch_llama.py prints the same of
// PyTorch. Exit codes: 0 done, 1 an error while running, 2 bad input.
#include <octavo/comm/launch.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/core/timeline_figures.hpp>
#include <octavo/io/trace_file.hpp>
#include <octavo/run/gemm_plan_file.hpp>

#include <support/machine.hpp>
#include <train_step/registry.hpp>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace benchmarks {
namespace {

struct Options {
  std::string model = "llama3_8b";
  std::string precision = "bf16";
  octavo::Index batch = 1;
  octavo::Index sequence_length = 8192;
  octavo::Index micro_batches = 1;
  int steps = 6;
  int warmup = 3;
  std::string optimizer = "adamw";
  std::string recompute = "none";
  std::string weight_copies = "kept";
  std::string offload = "none";
  octavo::Index head_chunk = 0;
  octavo::Index documents = 0;
  bool deterministic = false;
  bool masked_targets = false;
  std::string gemm_plans;
  std::string json;
  int zero = 1;
  std::string reduce = "bf16";
  std::string gather = "stored";
  bool only_nccl = false;
  int comm_timeout = 120;
  std::string timeline;

  [[nodiscard]] octavo::Index tokens() const { return batch * sequence_length; }
};

constexpr std::array recompute_names{"none", "norms", "swiglu", "ffn", "block"};
constexpr std::array optimizers{"adamw", "adamw-8bit", "muon"};  // in the order of OptimizerKind
constexpr double learning_rate = 3e-4;

/// What a run measured.
struct Measurement {
  std::vector<double> seconds;  ///< of each step
  double timed_begin = 0;       ///< Unix time at which the first timed step began
  double timed_end = 0;         ///< Unix time at which the last timed step ended
  double setup_seconds = 0;     ///< of the making of the session, the choice of algorithms included
  double warmup_seconds = 0;    ///< from the making of the session to the first timed step
  std::vector<double> losses;   ///< of every step, from the first, which is not timed
  double peak_gib = 0;          ///< allocated by the session, at once
  double card_gib = 0;          ///< taken on the card
  double flops_per_token = 0;
  std::string attention;            ///< what ran attention's backward
  std::string gemm_plans;           ///< how the algorithms of GEMMs were chosen
  std::string transport;            ///< by which way ranks exchange
  octavo::TimelineFigures figures;  ///< of rank 0's further steps, if there is to be a timeline

  /// Median milliseconds of a micro-batch: its share of the optimizer included.
  [[nodiscard]] double milliseconds(octavo::Index micro_batches) const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t half = sorted.size() / 2;
    const double median =
        sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    return 1e3 * median / static_cast<double>(micro_batches);
  }
};

std::vector<std::string> compiled(std::string Instance::* field) {
  std::vector<std::string> values;
  for (const Instance& instance : instances()) {
    if (std::find(values.begin(), values.end(), instance.*field) == values.end()) {
      values.push_back(instance.*field);
    }
  }
  return values;
}

void declare(CLI::App& app, Options& options) {
  const auto add = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->capture_default_str();
  };
  const CLI::Range count(1, 1 << 30);
  const std::vector<std::string> recompute(recompute_names.begin(), recompute_names.end());
  add("--model", options.model, "model preset")->check(CLI::IsMember(compiled(&Instance::model)));
  add("--precision", options.precision, "precision of the linear layers")
      ->check(CLI::IsMember(compiled(&Instance::precision)));
  add("--batch", options.batch, "sequences per micro-batch")->check(count);
  add("--seq-len", options.sequence_length, "tokens per sequence")->check(count);
  add("--micro-batches", options.micro_batches, "micro-batches per step")->check(count);
  add("--steps", options.steps, "timed steps")->check(count);
  add("--warmup", options.warmup, "untimed steps before the timed ones")->check(count);
  add("--optimizer", options.optimizer,
      "adamw, adamw-8bit or muon, with BF16 weights and BF16 or 8-bit moments")
      ->check(CLI::IsMember(std::vector<std::string>(optimizers.begin(), optimizers.end())));
  add("--recompute", options.recompute, "activations that the backward recomputes")
      ->check(CLI::IsMember(recompute));
  add("--weight-copies", options.weight_copies,
      "quantised copies of weights: kept, or remade in each micro-batch")
      ->check(CLI::IsMember(std::vector<std::string>{"kept", "remade"}));
  add("--offload", options.offload,
      "data kept in host memory: none, optimizer, activations or both")
      ->check(CLI::IsMember(std::vector<std::string>{"none", "optimizer", "activations", "both"}));
  add("--head-chunk", options.head_chunk, "tokens per chunk of logits; 0 chooses automatically");
  add("--documents", options.documents,
      "documents per sequence, of equal length except the last; 0 disables document masks")
      ->check(CLI::Range(0, 1 << 30));
  app.add_flag("--deterministic", options.deterministic, "make every run bitwise identical");
  app.add_flag("--masked-targets", options.masked_targets,
               "ignore some targets in each step, a different number each time");
  add("--gemm-plans", options.gemm_plans,
      "file of GEMM algorithms; missing ones are timed before the first step and added; without a "
      "file, cuBLASLt's heuristics choose");
  add("--json", options.json, "append the result to this file");
  add("--zero", options.zero, "ZeRO stage, 1 to 3")->check(CLI::Range(1, 3));
  add("--reduce", options.reduce, "format of the gradients' reduction: bf16, fp32 or e4m3")
      ->check(CLI::IsMember({"bf16", "fp32", "e4m3"}));
  add("--gather", options.gather, "format of the weights' all-gather: stored or fp8")
      ->check(CLI::IsMember({"stored", "fp8"}));
  app.add_flag("--only-nccl", options.only_nccl,
               "communicate through NCCL only, without copy engines");
  add("--comm-timeout", options.comm_timeout, "seconds until a silent rank counts as lost")
      ->check(count);
  add("--timeline", options.timeline, "write a trace of two further steps of rank 0 to this file");
}

Request request_of(const Options& options) {
  Request request;
  request.deterministic = options.deterministic;
  const auto* optimizer = std::find(optimizers.begin(), optimizers.end(), options.optimizer);
  request.optimizer = static_cast<OptimizerKind>(optimizer - optimizers.begin());
  if (!options.gemm_plans.empty()) {
    request.gemm_plans = octavo::load_gemm_plans(options.gemm_plans);
    request.options.gemm_choice = octavo::GemmChoice::rehearsed;
  }
  octavo::SessionOptions& session = request.options;
  session.batch = {options.batch, options.sequence_length, options.batch * options.documents};
  session.micro_batches = options.micro_batches;
  const auto* policy = std::find(recompute_names.begin(), recompute_names.end(), options.recompute);
  session.model.recompute = static_cast<octavo::Recompute>(policy - recompute_names.begin());
  session.model.weight_copies =
      options.weight_copies == "remade" ? octavo::WeightCopies::remade : octavo::WeightCopies::kept;
  session.model.head_chunk = options.head_chunk;
  const bool both = options.offload == "both";
  session.offload.optimizer = both || options.offload == "optimizer";
  session.offload.activations = both || options.offload == "activations";
  session.sharding.zero = static_cast<octavo::Zero>(options.zero);
  request.only_nccl = options.only_nccl;
  return request;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::int32_t> random_tokens(std::size_t count, octavo::Index vocabulary,
                                        std::uint64_t stream) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = octavo::random_word({1, stream}, i);
    tokens[i] = static_cast<std::int32_t>(word * static_cast<std::uint64_t>(vocabulary) >> 32);
  }
  return tokens;
}

/// Where documents begin in all sequences of a step.
std::vector<octavo::Index> document_begins(const Options& options) {
  std::vector<octavo::Index> begins;
  for (octavo::Index i = 0; i < options.batch * options.micro_batches * options.documents; ++i) {
    const octavo::Index place = i % options.documents;
    begins.push_back(i / options.documents * options.sequence_length +
                     place * (options.sequence_length / options.documents));
  }
  return begins;
}

void write_timeline(const std::string& path, std::span<const octavo::TimelineSpan> spans) {
  std::ofstream file(path);
  file << octavo::trace_text(std::vector{octavo::trace_events(0, spans)});
  octavo::require<octavo::IoError>(file.flush().good(), "cannot write ", path);
}

Measurement measure(const Instance& instance, const Options& options, const octavo::Launch& launch,
                    octavo::Rendezvous* rendezvous) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  Measurement result;
  const auto start = Clock::now();
  Request request = request_of(options);
  if (rendezvous != nullptr) {
    request.rendezvous = rendezvous;
    request.local_rank = launch.local_rank.value_or(launch.rank);
  }
  const auto session = instance.make(request);
  result.transport = session->facts().transport;
  result.setup_seconds = seconds_since(start);
  if (!options.gemm_plans.empty() && launch.rank == 0) {
    octavo::store_gemm_plans(options.gemm_plans, session->gemm_plans());
  }
  result.attention = session->manifest().attentions().back().expected;
  result.gemm_plans = session->gemm_plan_summary().text();
  result.flops_per_token = session->facts().training_flops_per_token(options.sequence_length);
  const auto count = static_cast<std::size_t>(options.tokens() * options.micro_batches);
  const auto stream = 2 * static_cast<std::uint64_t>(launch.rank);
  const auto tokens = random_tokens(count, session->facts().vocabulary, stream + 1);
  const auto all_targets = random_tokens(count, session->facts().vocabulary, stream + 2);
  const auto begins = document_begins(options);
  const int further = options.timeline.empty() ? 0 : 2;
  for (int step = 1; step <= options.warmup + options.steps + further; ++step) {
    if (step == options.warmup + options.steps + 1) session->begin_timeline_sync();
    if (step == options.warmup + 1) {
      result.warmup_seconds = seconds_since(start);
      result.timed_begin = unix_time();
    }
    auto targets = all_targets;
    if (options.masked_targets) {
      const auto stride = static_cast<std::size_t>(step) + 2;
      for (std::size_t i = 0; i < count; i += stride) targets[i] = -1;
    }
    const auto begin = Clock::now();
    const octavo::StepResult done = session->step({tokens, targets, begins}, learning_rate);
    if (step > options.warmup && step <= options.warmup + options.steps) {
      result.seconds.push_back(seconds_since(begin));
      result.timed_end = unix_time();
    }
    result.losses.push_back(done.loss);
    octavo::require<octavo::ConfigError>(!done.skipped, "step ", step,
                                         " was not finite; its time says nothing");
  }
  if (further != 0) {
    const std::vector<octavo::TimelineSpan> spans = session->end_timeline();
    result.figures = octavo::figures_of(spans);
    if (launch.rank == 0) write_timeline(options.timeline, spans);
  }
  result.peak_gib = static_cast<double>(session->facts().allocated_bytes) * 0x1p-30;
  result.card_gib = card_gib_used();
  return result;
}

octavo::JsonLine json_of(const Options& options, const Measurement& measured, int ranks,
                         double tokens_per_second, double tflops) {
  const Machine machine = describe_machine();
  const auto [fastest, slowest] =
      std::minmax_element(measured.seconds.begin(), measured.seconds.end());
  const double batches = static_cast<double>(options.micro_batches);
  octavo::JsonLine line;
  line.add("who", "octavo").add("model", options.model).add("precision", options.precision);
  line.add("batch", options.batch).add("sequence_length", options.sequence_length);
  line.add("micro_batches", options.micro_batches).add("steps", options.steps);
  line.add("ranks", ranks);
  if (ranks > 1) {
    line.add("zero", options.zero).add("reduce", options.reduce).add("gather", options.gather);
    line.add("transport", measured.transport);
  }
  line.add("optimizer", options.optimizer).add("recompute", options.recompute);
  line.add("weight_copies", options.weight_copies).add("offload", options.offload);
  line.add("masked_targets", options.masked_targets).add("documents", options.documents);
  line.add("milliseconds", measured.milliseconds(options.micro_batches));
  line.add("fastest_milliseconds", 1e3 * *fastest / batches);
  line.add("slowest_milliseconds", 1e3 * *slowest / batches);
  line.add("tokens_per_second", tokens_per_second).add("tflops", tflops);
  line.add("peak_gib", measured.peak_gib).add("card_gib", measured.card_gib);
  line.add("loss", measured.losses.back()).add("losses", measured.losses);
  line.add("timed_begin", measured.timed_begin).add("timed_end", measured.timed_end);
  line.add("setup_seconds", measured.setup_seconds);
  line.add("warmup_seconds", measured.warmup_seconds).add("deterministic", options.deterministic);
  line.add("gemm_plans", measured.gemm_plans);
  line.add("attention", measured.attention).add("card", machine.card).add("cuda", machine.cuda);
  line.add("cublaslt", machine.cublaslt).add("cudnn", machine.cudnn);
  return line;
}

void run(const Options& options) {
  const octavo::Launch launch = octavo::read_launch();
  const int ranks = launch.size;
  std::optional<octavo::Rendezvous> rendezvous;
  const std::string reduce = ranks == 1 ? "" : options.reduce;
  const std::string gather = ranks == 1 ? "" : options.gather;
  const auto found = std::find_if(instances().begin(), instances().end(), [&](const Instance& i) {
    return i.model == options.model && i.precision == options.precision && i.reduce == reduce &&
           i.gather == gather;
  });
  octavo::require<octavo::ConfigError>(
      found != instances().end(), options.model, " in ", options.precision,
      ranks == 1 ? "" : octavo::message(" of ranks, with ", reduce, ':', gather, ','),
      " is not compiled in; name it in OCTAVO_TRAIN_STEP_PRESETS, _PRECISIONS and _RANKS");
  if (ranks > 1) rendezvous.emplace(launch, std::chrono::seconds(options.comm_timeout));
  const Measurement measured =
      measure(*found, options, launch, rendezvous.has_value() ? &*rendezvous : nullptr);
  if (launch.rank != 0) return;
  const double milliseconds = measured.milliseconds(options.micro_batches);
  const double of_one = 1e3 * static_cast<double>(options.tokens()) / milliseconds;
  const double tokens_per_second = of_one * ranks;
  const double tflops = of_one * measured.flops_per_token * 1e-12;
  if (ranks > 1) {
    fmt::print("{} ranks, ZeRO-{}, gradients in {}, weights {}, through {}\n", ranks, options.zero,
               options.reduce, options.gather, measured.transport);
  }
  fmt::print(
      "gemm plans: {}\n{:<8}{:<13}{:<15}{:<20}B={} S={} micro={} | {:9.2f} ms per micro-batch | "
      "{:8.0f} tok/s | {:6.1f} TFLOP/s per GPU | peak {:6.2f} GiB | loss {:7.4f}\n",
      measured.gemm_plans, "octavo", options.model, options.precision, measured.attention,
      options.batch, options.sequence_length, options.micro_batches, milliseconds,
      tokens_per_second, tflops, measured.peak_gib, measured.losses.back());
  if (!options.timeline.empty()) {
    fmt::print("timeline: {:.2f} ms per step, of which {:.2f} ms communicate and compute nothing\n",
               measured.figures.step_milliseconds, measured.figures.exposed_milliseconds);
  }
  std::fflush(stdout);
  if (options.json.empty()) return;
  std::ofstream file(options.json, std::ios::app);
  file << json_of(options, measured, ranks, tokens_per_second, tflops).str() << '\n' << std::flush;
  octavo::require<octavo::IoError>(file.good(), "cannot write ", options.json);
}

}  // namespace
}  // namespace benchmarks

int main(int count, char** words) {
  CLI::App app("Time of training steps on one GPU, or on one for each rank.");
  benchmarks::Options options;
  benchmarks::declare(app, options);
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    benchmarks::run(options);
    return 0;
  } catch (const octavo::ConfigError& error) {
    fmt::print(stderr, "train_step: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_step: {}\n", error.what());
    return 1;
  }
}
