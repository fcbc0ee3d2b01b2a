// Trains a Llama on text, in the precision that is asked for.
//
//   train_llama --data shakespeare.txt --precision fp8-delayed --steps 500 --out runs/delayed
//
// Exit codes: 0 done, 1 an error while running, 2 bad input, 3 too many non-finite steps in a row,
// 128 + n stopped by signal n after finishing the step.
#include <train_llama/options.hpp>
#include <train_llama/report.hpp>

#include <chrono>
#include <cmath>
#include <deque>
#include <numeric>

namespace trainer {
namespace {

enum ExitCode { success = 0, failure = 1, bad_input = 2, too_many_skipped = 3, by_signal = 128 };

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

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
  std::fflush(stdout);
}

/// Text, batches and buffers of a run.
class Data {
 public:
  explicit Data(const Options& options)
      : text_(octavo::read_text({options.data.begin(), options.data.end()})),
        parts_(octavo::split_validation(text_, options.validation_fraction,
                                        options.sequence_length + 1)),
        stream_(parts_.train, {.sequences = options.batch * options.micro_batches,
                               .sequence_length = options.sequence_length,
                               .seed = options.seed}),
        validation_(parts_.validation, {.sequences = options.batch,
                                        .sequence_length = options.sequence_length,
                                        .max_batches = options.validation_batches}),
        rows_(static_cast<std::size_t>(options.batch * options.sequence_length)),
        tokens_(rows_ * static_cast<std::size_t>(options.micro_batches)),
        targets_(tokens_.size()) {}

  octavo::StepResult step(octavo::TrainingSession& session, double learning_rate) {
    stream_.next(tokens_, targets_);
    return session.step(tokens_, targets_, learning_rate);
  }

  octavo::LossSum evaluate(octavo::TrainingSession& session) {
    session.begin_evaluation();
    const auto tokens = std::span(tokens_).first(rows_);
    const auto targets = std::span(targets_).first(rows_);
    octavo::LossSum total;
    for (octavo::Index batch = 0; batch < validation_.batches(); ++batch) {
      validation_.get(batch, tokens, targets);
      const octavo::LossSum loss = session.evaluate(tokens, targets);
      total.sum += loss.sum;
      total.tokens += loss.tokens;
    }
    return total;
  }

  [[nodiscard]] double epoch() const { return stream_.epoch(); }
  [[nodiscard]] std::size_t size() const { return text_.size(); }
  [[nodiscard]] double tokens_in_step() const { return static_cast<double>(tokens_.size()); }

 private:
  std::vector<std::uint8_t> text_;
  octavo::TokenSplit parts_;
  octavo::TokenStream stream_;
  octavo::ValidationSet validation_;
  std::size_t rows_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
};

std::string sample(octavo::TrainingSession& session, const Options& options) {
  if (options.sample == 0) return {};
  const std::vector<std::int32_t> prompt = octavo::ByteTokenizer::encode("\n");
  return octavo::ByteTokenizer::decode(octavo::generate(
      session, prompt, options.sequence_length,
      {.tokens = options.sample, .temperature = options.temperature, .seed = options.seed}));
}

/// Leaves the algorithms of the GEMMs so far to later runs.
void keep_gemm_plans(const octavo::TrainingSession& session, const Options& options) {
  const std::filesystem::path path = gemm_plan_path(options);
  if (!path.empty()) octavo::store_gemm_plans(path, session.gemm_plans());
}

int train(octavo::TrainingSession& session, Data& data, Report& report, const Options& options) {
  const octavo::InterruptGuard interrupt;
  const octavo::Schedule learning_rate = schedule(options);
  std::deque<double> recent;
  octavo::Index skipped_in_a_row = 0;
  double training_seconds = 0;
  Summary summary;
  while (summary.steps < options.steps && octavo::InterruptGuard::received() == 0 &&
         skipped_in_a_row < options.max_skipped) {
    const octavo::Index step = ++summary.steps;
    const auto begin = Clock::now();
    StepRecord record;
    record.step = step;
    record.learning_rate = learning_rate.at(step);
    record.result = data.step(session, record.learning_rate);
    const double seconds = seconds_since(begin);
    training_seconds += seconds;
    record.epoch = data.epoch();
    record.milliseconds = seconds * 1000.0;
    record.tokens_per_second = data.tokens_in_step() / seconds;
    if (step == 1) summary.gemms = executed_gemms(session, options.micro_batches);
    if (record.result.skipped) {
      ++summary.skipped;
      ++skipped_in_a_row;
    } else {
      skipped_in_a_row = 0;
      recent.push_back(record.result.loss);
      if (recent.size() > 20) recent.pop_front();
    }
    const bool collect = step == 1 || step == options.steps || step % options.operands_every == 0;
    report.step(record, collect ? session.operands() : std::vector<octavo::OperandReport>{});
    if (step % options.evaluate_every == 0 && step < options.steps) {
      report.evaluation(step, data.evaluate(session));
    }
  }
  const octavo::LossSum validation = data.evaluate(session);
  report.evaluation(summary.steps, validation);
  summary.validation_loss = validation.mean();
  summary.train_loss = recent.empty() ? std::nan("")
                                      : std::accumulate(recent.begin(), recent.end(), 0.0) /
                                            static_cast<double>(recent.size());
  summary.seconds = training_seconds;
  summary.tokens_per_second =
      data.tokens_in_step() * static_cast<double>(summary.steps) / training_seconds;
  const bool stopped = skipped_in_a_row >= options.max_skipped;
  if (!stopped) summary.sample = sample(session, options);
  report.end(summary, session.allocated_bytes());
  if (stopped) {
    fmt::print(stderr,
               "train_llama: {} steps in a row were not finite; weights are those before them. "
               "Lower --learning-rate or look at the operands in metrics.jsonl\n",
               skipped_in_a_row);
    return too_many_skipped;
  }
  const int signal = octavo::InterruptGuard::received();
  return signal == 0 ? success : by_signal + signal;
}

int run(const CLI::App& app, const Options& options) {
  std::unique_ptr<Data> data;
  std::shared_ptr<octavo::TrainingSession> session;
  std::unique_ptr<Report> report;
  const std::string configuration = app.config_to_str(true, false);
  try {
    const Instance& instance = find_instance(options);
    data = std::make_unique<Data>(options);
    session = instance.make(session_request(options));
    report = std::make_unique<Report>(options, configuration, session->precision());
    fmt::print("octavo {} | {} | {} on {} | {} parameters | {} | {} bytes of text\n{}",
               octavo::version_string, instance.model, session->precision(), instance.device,
               session->config().parameters(), session->optimizer(), data->size(), configuration);
    announce(*session);
    report->begin(*session, instance);
    keep_gemm_plans(*session, options);
  } catch (const octavo::Error& error) {
    fmt::print(stderr, "train_llama: {}\n", error.what());
    return bad_input;
  }
  const int code = train(*session, *data, *report, options);
  keep_gemm_plans(*session, options);  // also of what was met later, such as a sample's lengths
  return code;
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  CLI::App app("Trains a Llama on text, in the precision that is asked for.");
  trainer::Options options;
  trainer::declare(app, options);
  try {
    app.parse(argc, argv);
    trainer::require_no_rest(app);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_llama: {}\n", error.what());
    return trainer::bad_input;
  }
  try {
    return trainer::run(app, options);
  } catch (const std::exception& error) {
    // A terminal shows the progress line there.
    fmt::print(stderr, "{}train_llama: {}\n", ::isatty(STDERR_FILENO) != 0 ? "\n" : "",
               error.what());
    return trainer::failure;
  }
}
