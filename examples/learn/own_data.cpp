// A custom data source: sums such as "27+45=072;" that are generated, not read, and a run that
// stops halfway and resumes from its checkpoint. Exit code 1: the loss does not fall, or the
// resumed run differs from one without a stop.
#include <fmt/format.h>
#include <octavo/octavo.hpp>
#include <octavo/run/run.hpp>

using namespace octavo;

/// Batches of generated sums; the members are those that `octavo::train` calls.
class SumBatches {
 public:
  explicit SumBatches(BatchShape shape) : shape_(shape) {}

  StepResult step(TrainingSession& session, double learning_rate) {
    return session.step(fill(next_sum_), learning_rate);
  }
  /// Evaluates sums that no step trains on.
  LossSum evaluate(TrainingSession& session) {
    std::int64_t held_out = std::int64_t{1} << 40;
    session.begin_evaluation();
    return session.evaluate(fill(held_out));
  }
  double epoch() const { return 0; }  // no end
  double tokens_in_step() const { return static_cast<double>(shape_.rows()); }
  /// Returns the position, which a checkpoint contains: a resumed run continues with the next sum.
  std::vector<StateEntry> state() { return {number_entry("data.next_sum", next_sum_)}; }

 private:
  /// Fills a batch with consecutive sums; the target of each character is the next one.
  Batch fill(std::int64_t& sum) {
    std::string text;
    for (; std::ssize(text) <= shape_.rows(); ++sum) {
      const auto word = random_word({7, 0}, static_cast<std::uint64_t>(sum));
      const auto a = word % 100, b = word / 100 % 100;
      text += fmt::format("{:02}+{:02}={:03};", a, b, a + b);
    }
    tokens_.assign(text.begin(), text.begin() + shape_.rows());
    targets_.assign(text.begin() + 1, text.begin() + 1 + shape_.rows());
    return {tokens_, targets_};
  }
  BatchShape shape_;
  std::int64_t next_sum_ = 0;  // the only state
  std::vector<std::int32_t> tokens_, targets_;
};

struct Printer final : RunObserver {
  void step(const StepRecord& record, const std::vector<OperandReport>&) override {
    fmt::print("step {:>2} | loss {:.4f}\n", record.step, record.result.loss);
  }
  void evaluation(Index, const LossSum&) override {}
  void divergence(const StepRecord&, double) override {}
};

/// Trains until a step, from the beginning or from a saved state. Returns the state and the loss of
/// held-out sums.
std::pair<SavedState, double> run_until(Index last, const SavedState& from) {
  const SessionOptions options{.batch = {.sequences = 4, .tokens = 32}};
  Context<Cpu> context;
  ModelSession<Llama<llama_tiny, Bf16, Cpu>> session(options, context);
  SumBatches batches(options.batch);
  RunTotals totals(1);  // number of skipped steps that end the run
  std::vector<StateEntry> state = session.state().entries();
  for (const auto& more : {batches.state(), totals.state()}) {
    state.insert(state.end(), more.begin(), more.end());
  }
  if (!from.empty()) load_state_sync(from, state);
  const Schedule schedule{.kind = ScheduleKind::constant, .learning_rate = 2e-3, .steps = last};
  Printer printer;
  const RunSummary end = train(session, batches, {.schedule = schedule}, printer, totals, nullptr);
  return {save_state_sync(state), end.validation_loss};
}

int main() {
  const double whole = run_until(12, {}).second;
  const double resumed = run_until(12, run_until(6, {}).first).second;
  fmt::print("loss of held-out sums {:.4f}, of the resumed run {:.4f}\n", whole, resumed);
  return whole == resumed && whole < 3 ? 0 : 1;
}
