// Trains a Llama on text, in the precision that is asked for.
//
//   train_llama --data shakespeare.txt --precision fp8-delayed --steps 500 --out runs/delayed
//
// Exit codes: 0 done, 1 an error while running, 2 bad input, 3 too many non-finite steps in a row,
// 128 + n stopped by signal n after finishing the step.
#include <train_llama/data.hpp>
#include <train_llama/options.hpp>
#include <train_llama/report.hpp>
#include <train_llama/run_folder.hpp>
#include <train_llama/tally.hpp>

#include <chrono>
#include <new>

namespace trainer {
namespace {

enum ExitCode { success = 0, failure = 1, bad_input = 2, too_many_skipped = 3, by_signal = 128 };

/// Prints what is going to run: the memory and every GEMM.
void announce(const octavo::TrainingSession& session) {
  const octavo::MemoryPlan& memory = session.memory();
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    fmt::print("memory | {:<17} | {:>10.2f} MiB\n",
               octavo::name_of(static_cast<octavo::MemoryKind>(kind)),
               static_cast<double>(memory.by_kind[kind]) / (1024.0 * 1024.0));
  }
  fmt::print("memory | {:<17} | {:>10.2f} MiB, allocated once\n", "peak",
             static_cast<double>(memory.peak) / (1024.0 * 1024.0));
  fmt::print("{}", session.manifest().text());
  const std::string plans = session.gemm_plan_summary().text();
  if (!plans.empty()) fmt::print("gemm plans: {}\n", plans);
  programs::flush_output();
}

/// Text from the trained model; a signal ends it early.
std::string sample(octavo::TrainingSession& session, const Options& options) {
  if (options.sample == 0) return {};
  const std::vector<std::int32_t> prompt = octavo::ByteTokenizer::encode("\n");
  return octavo::ByteTokenizer::decode(
      octavo::generate(session, prompt, options.sequence_length,
                       {.tokens = options.sample,
                        .temperature = options.temperature,
                        .seed = options.seed,
                        .vocabulary = octavo::ByteTokenizer::vocabulary,
                        .stop = [] { return octavo::InterruptGuard::received() != 0; }}));
}

/// Says that the rate is still rising when the run ends.
void warn_of_warmup(const Options& options) {
  if (options.warmup <= options.steps) return;
  fmt::print(stderr,
             "train_llama: warning: --warmup {} is beyond --steps {}: the learning rate never "
             "reaches {:g}\n",
             options.warmup, options.steps, options.learning_rate);
}

/// What a signal is answered with; on a terminal below the progress line.
const char* acknowledgement() {
  constexpr const char* text =
      "\ntrain_llama: stopping after this step; another signal, a second later, ends it at once\n";
  return ::isatty(STDERR_FILENO) != 0 ? text : text + 1;
}

/// A run, step by step.
class Training {
 public:
  Training(octavo::TrainingSession& session, Data& data, Report& report, const Options& options)
      : session_(session),
        data_(data),
        report_(report),
        options_(options),
        learning_rate_(schedule(options)),
        tally_(options.max_skipped) {}

  /// Trains until the end, a signal or too many steps that are not finite; returns the exit code.
  int run() {
    const octavo::InterruptGuard interrupt(acknowledgement());
    while (!step()) {
    }
    const Summary result = summary();
    report_.end(result, session_.allocated_bytes());
    if (tally_.gave_up()) {
      fmt::print(stderr, "train_llama: {}\n", why_it_gave_up());
      return too_many_skipped;
    }
    return signal_ == 0 ? success : by_signal + signal_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// One step and what is told of it; true if it is the last.
  bool step() {
    StepRecord record;
    record.step = tally_.steps() + 1;
    record.learning_rate = learning_rate_.at(record.step);
    const auto begin = Clock::now();
    record.result = data_.step(session_, record.learning_rate);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    record.epoch = data_.epoch();
    record.milliseconds = seconds * 1000.0;
    record.tokens_per_second = data_.tokens_in_step() / seconds;
    if (record.step == 1) gemms_ = executed_gemms(session_, options_.micro_batches);
    tally_.add(record);
    // A signal in a run's last step stops nothing.
    if (record.step < options_.steps) signal_ = octavo::InterruptGuard::received();
    record.last = record.step == options_.steps || signal_ != 0 || tally_.gave_up();
    const bool collect = record.step == 1 || record.last || record.result.skipped ||
                         record.step % options_.operands_every == 0;
    if (collect) operands_ = session_.operands();
    report_.step(record, collect ? operands_ : std::vector<octavo::OperandReport>{});
    if (tally_.diverges()) report_.warn_of_divergence(record, tally_.first_loss());
    if (!record.last && options_.evaluate_every != 0 &&
        record.step % options_.evaluate_every == 0) {
      report_.evaluation(record.step, data_.evaluate(session_));
    }
    return record.last;
  }

  Summary summary() {
    const octavo::LossSum validation = data_.evaluate(session_);
    report_.evaluation(tally_.steps(), validation);
    Summary result;
    result.steps = tally_.steps();
    result.skipped = tally_.skipped();
    result.train_loss = tally_.train_loss();
    result.validation_loss = validation.mean();
    result.tokens_per_second = tally_.tokens_per_second(data_.tokens_in_step());
    result.seconds = tally_.seconds();
    result.gemms = gemms_;
    result.end = tally_.gave_up() ? "not finite"
                 : signal_ != 0   ? octavo::message("signal ", signal_)
                                  : "done";
    if (!tally_.gave_up()) result.sample = sample(session_, options_);
    return result;
  }

  /// What to look at and to change, in one line.
  [[nodiscard]] std::string why_it_gave_up() const {
    std::vector<std::string> met;
    for (const octavo::OperandReport& operand : operands_) {
      if (operand.nonfinite > 0) met.push_back(operand.name);
    }
    std::string where;
    if (!met.empty()) {
      where = "; the last met an Inf or NaN in " + met.front();
      if (met.size() > 1) where += octavo::message(" and ", met.size() - 1, " more operands");
    }
    const std::string file = report_.metrics_file();
    return octavo::message(
        tally_.skipped_in_a_row(), " steps in a row were not finite, and changed nothing", where,
        file.empty() ? "" : "; see the skipped steps in " + programs::visible(file),
        ". Lower --learning-rate or raise --warmup");
  }

  octavo::TrainingSession& session_;
  Data& data_;
  Report& report_;
  const Options& options_;
  octavo::Schedule learning_rate_;
  Tally tally_;
  GemmCount gemms_;
  int signal_ = 0;
  std::vector<octavo::OperandReport> operands_;  ///< as they were collected last
};

int run(const CLI::App& app, const Options& options) {
  std::unique_ptr<Data> data;
  std::shared_ptr<octavo::TrainingSession> session;
  const Instance* instance = nullptr;
  std::filesystem::path folder;
  const std::string configuration = app.config_to_str(true, false);
  try {
    require_consistent(app, options);
    instance = &find_instance(app, options);
    // Text and session may take minutes.
    require_free_out(options, detail::flags_file(app).file_with("out", options.out));
    data = std::make_unique<Data>(options);
    session = instance->make(session_request(options));
    folder = make_run_folder(options);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "train_llama: this machine has not the memory for {}\n",
               data == nullptr ? "the text and its batches; give less text, or a smaller --batch, "
                                 "--micro-batches or --seq-len"
                               : "the session; see plan_memory for what it takes");
    return bad_input;
  } catch (const octavo::Error& error) {
    fmt::print(stderr, "train_llama: {}\n", programs::visible(error.what()));
    return bad_input;
  }
  // From here on an error is one of the run: it may have written files.
  Report report(options, folder, configuration, session->precision());
  fmt::print("octavo {} | {} | {} on {} | {} parameters | {}\n{}", octavo::version_string,
             instance->model, session->precision(), instance->device,
             session->config().parameters(), session->optimizer(), configuration);
  fmt::print("run | {}\n", folder.empty() ? "writes no files (--no-out)"
                                          : "kept in " + programs::visible(folder.string()));
  print_text(*data);
  warn_of_warmup(options);
  announce(*session);
  report.begin(*session, *instance, *data);
  if (!options.gemm_plans.empty()) {
    octavo::store_gemm_plans(options.gemm_plans, session->gemm_plans());
  }
  return Training(*session, *data, report, options).run();
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  CLI::App app("Trains a Llama on text, in the precision that is asked for.", "train_llama");
  trainer::Options options;
  trainer::declare(app, options);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
  try {
    return trainer::run(app, options);
  } catch (const std::exception& error) {
    // A terminal shows the progress line there.
    fmt::print(stderr, "{}train_llama: {}\n", ::isatty(STDERR_FILENO) != 0 ? "\n" : "",
               programs::text_of(error));
    return trainer::failure;
  }
}
