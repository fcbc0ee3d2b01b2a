// Output and files of a run.
#pragma once

#include <common/text.hpp>
#include <octavo/core/timeline_figures.hpp>
#include <octavo/io/metrics_file.hpp>
#include <octavo/octavo.hpp>
#include <octavo/run/interrupt.hpp>
#include <octavo/run/training_run.hpp>
#include <octavo/session/operand_health.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/events.hpp>
#include <train_llama/gpu_log.hpp>
#include <train_llama/pace.hpp>
#include <train_llama/program.hpp>
#include <train_llama/summary_text.hpp>
#include <train_llama/timeline.hpp>

#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <unistd.h>

namespace trainer {

/// Prints to the terminal, and writes metrics.jsonl and TensorBoard events. If standard output or
/// metrics.jsonl becomes unwritable, the run ends as after a signal, so that it saves a checkpoint
/// if it keeps them.
class Report final : public octavo::RunObserver {
 public:
  /// @param folder  folder for config.toml, metrics.jsonl and the events; empty writes none
  /// @param before  what to do with existing metrics
  /// @throws IoError  if the files cannot be written
  Report(const Options& options, const std::filesystem::path& folder,
         octavo::MetricsFile::Lines before, const std::string& configuration, std::string recipe,
         TimelineFile& timeline, bool is_first_rank)
      : options_(options),
        pace_(options),
        name_(name_of_run(folder)),
        recipe_(std::move(recipe)),
        timeline_(timeline),
        is_first_rank_(is_first_rank),
        terminal_(is_first_rank && ::isatty(STDERR_FILENO) != 0) {
    if (folder.empty()) return;
    octavo::write_file_atomically(folder / "config.toml", configuration);
    metrics_ = std::make_unique<octavo::MetricsFile>(folder / "metrics.jsonl", before);
    events_.open(folder);
    if (before == octavo::MetricsFile::Lines::removed) events_.begin_steps(0);
    events_.write(0, octavo::EventSummary{}.add_text("config", code(configuration)));
  }

  /// Returns the path of metrics.jsonl, or "".
  [[nodiscard]] std::string metrics_file() const {
    return metrics_ == nullptr ? "" : metrics_->path().string();
  }

  void begin(const octavo::TrainingSession& session, const Instance& instance,
             const RunData& data) {
    if (is_first_rank_) gpu_.open(session.facts().bus_id);
    const octavo::GemmCount gemms =
        session.manifest().planned(static_cast<std::uint64_t>(session.facts().head_chunks));
    octavo::JsonLine line;
    line.add("event", "run")
        .add("name", name_)
        .add("model", instance.model)
        .add("precision", instance.precision)
        .add("recipe", recipe_)
        .add("device", instance.device)
        .add("card", session.facts().card)
        .add("libraries", session.facts().libraries)
        .add("ranks", session.facts().sharding.world_size())
        .add("zero", static_cast<int>(session.facts().sharding.zero))
        .add("tensor_parallel", session.facts().sharding.tensor_ranks)
        .add("gather", options_.gather)
        .add("reduce", options_.reduce)
        .add("transport", session.facts().transport)
        .add("flops_per_token", session.facts().training_flops_per_token(options_.sequence_length))
        .add("optimizer", session.facts().optimizer)
        .add("parameters", session.facts().parameters)
        .add("trained_parameters", session.facts().trained())
        .add("adapters", session.facts().lora.has_value() ? session.facts().lora->text() : "")
        .add("seed", options_.seed)
        .add("batch", options_.batch)
        .add("sequence_length", options_.sequence_length)
        .add("run_length", session.facts().run_shape.tokens)
        .add("micro_batches", options_.micro_batches)
        .add("steps", options_.steps)
        .add("training_tokens", data.training_tokens())
        .add("validation_tokens", data.validation_tokens());
    data.describe(line);
    line.add("gemms_fp8", gemms.fp8)
        .add("gemms_total", gemms.total)
        .add("version", octavo::version_string);
    write(line);
    events_.write(0, octavo::EventSummary{}.add_text("run", code(line.str() + '\n')));
  }

  /// Called before the first step of this process. Records of this and later steps by an earlier
  /// process no longer count.
  void begin_steps(octavo::Index step) {
    first_step_ = step;
    is_training_ = true;
    events_.begin_steps(step);
  }

  /// Returns whether metrics.jsonl and the printed output are complete.
  /// @throws IoError  if they are not, unless a message has said so
  [[nodiscard]] bool is_written() const {
    if (not_written_ != nullptr && !ended_run_) std::rethrow_exception(not_written_);
    timeline_.require_written();
    return not_written_ == nullptr;
  }

  /// Reports a resumed run.
  void resumed(const std::filesystem::path& path, const octavo::CheckpointManifest& manifest,
               const octavo::TrainingSession& session) {
    fmt::print("resumed | after step {}, from {}\n", manifest.step,
               programs::visible(path.string()));
    const std::string note = note_of_ranks(manifest, session.facts().sharding, options_);
    if (!note.empty()) fmt::print("resumed | {}\n", note);
    octavo::JsonLine line;
    line.add("event", "resumed")
        .add("step", manifest.step)
        .add("checkpoint", path.string())
        .add("ranks", manifest.ranks)
        .add("version", manifest.version);
    const bool is_converted = manifest.recipe != session.facts().precision ||
                              manifest.optimizer != session.facts().optimizer;
    if (!is_converted) print_notes("resumed", manifest, session);
    if (is_converted) {
      const octavo::StateConversion& conversion = manifest.conversions.back();
      fmt::print("CONVERTED | from {}, {}\nCONVERTED | to {}, {}\n",
                 detail::precision_text(manifest.recipe), manifest.optimizer, options_.precision,
                 session.facts().optimizer);
      for (const std::string& change : conversion.changes) {
        fmt::print("CONVERTED | {}\n", programs::visible(change));
      }
      fmt::print(
          "CONVERTED | everything else, such as the step and the position in the data, is "
          "unchanged\n");
      line.add("converted", octavo::detail::line_of(conversion));
    }
    write(line);
  }

  /// Reports the result of saving a checkpoint.
  void checkpoint(const octavo::CheckpointRecord& record) {
    if (!is_first_rank_) return;
    clear_progress();
    if (!record.warning.empty() || !record.error.empty()) {
      warn_of_failed_checkpoint(record);
    } else {
      print("checkpoint | step {} | {:.1f} MiB | waited {:.2f} s, written after {:.2f} s | {}\n",
            record.step, static_cast<double>(record.bytes) / (1024.0 * 1024.0), record.blocked,
            record.seconds, programs::visible(record.path.string()));
    }
    if (!record.warning.empty()) return;
    write(octavo::JsonLine{}
              .add("event", "checkpoint")
              .add("step", record.step)
              .add("path", record.path.string())
              .add("bytes", record.bytes)
              .add("waited_seconds", record.blocked)
              .add("seconds", record.seconds)
              .add("error", record.error));
  }

  void step(const octavo::StepRecord& record,
            const std::vector<octavo::OperandReport>& operands) override {
    timeline_.after_step(record.step, record.last);
    pace_.after_step();
    gpu_.after_step();
    const bool shown =
        record.step == first_step_ || record.last || record.step % options_.log_every == 0;
    if (shown || record.result.skipped) {
      clear_progress();
      print(
          "step {} | epoch {:.2f} | loss {} | lr {:.2e} | norm {:.3f} | {:.1f} ms | {:.0f} "
          "tok/s "
          "| {}{}{}{}\n",
          record.step, record.epoch, loss_text(record.result.loss, !record.result.skipped),
          record.learning_rate, record.result.gradient_norm, record.milliseconds,
          record.tokens_per_second, options_.precision, gpu_.text(),
          options_.log_every > 1 ? " | " + pace_.text(record.step) : "",
          record.result.is_above_limits ? " | SKIPPED: a spike, nothing changed"
          : record.result.skipped       ? " | SKIPPED: not finite, nothing changed"
                                        : "");
    }
    progress(record);
    octavo::JsonLine line;
    line.add("event", "step")
        .add("step", record.step)
        .add("epoch", record.epoch)
        .add("loss", record.result.loss)
        .add("learning_rate", record.learning_rate)
        .add("gradient_norm", record.result.gradient_norm)
        .add("milliseconds", record.milliseconds)
        .add("tokens_per_second", record.tokens_per_second)
        .add("skipped", record.result.skipped);
    if (record.weights_hash.has_value()) {
      line.add("weights_hash", programs::hash_text(*record.weights_hash));
    }
    gpu_.add_to(line);
    if (!operands.empty()) line.add("operands", operand_lines(operands));
    write(line);
    if (events_.is_open()) events_.write(record.step, event_of(record, operands, gpu_));
    if (!record.result.skipped) warn_of(operands, record.step);
  }

  void evaluation(octavo::Index step, const octavo::LossSum& loss) override {
    clear_progress();
    validation_ = loss;
    double& least = step == 0 ? loss_before_ : min_loss_;
    least = std::fmin(least, loss.mean());  // ignores NaN
    print("evaluation at step {} | validation loss {} | {} tokens\n", step,
          loss_text(loss.mean(), loss.tokens == 0), loss.tokens);
    write(octavo::JsonLine{}
              .add("event", "evaluation")
              .add("step", step)
              .add("loss", loss.mean())
              .add("tokens", loss.tokens));
    if (std::isfinite(loss.mean())) {
      events_.write(step, octavo::EventSummary{}.add_scalar("validation/loss", loss.mean()));
    }
    if (after_evaluation_) after_evaluation_(step);
  }

  /// Calls `action` on all ranks after each evaluation.
  void after_evaluation(std::function<void(octavo::Index step)> action) {
    after_evaluation_ = std::move(action);
  }

  /// Prints a line, and writes a record and an event of a measurement.
  void measurement(octavo::Index step, const std::string& text, const octavo::JsonLine& line,
                   const octavo::EventSummary& event) {
    print("{}\n", text);
    write(line);
    events_.write(step, event);
  }

  /// Warns about a spike and the action taken.
  void spike(const octavo::SpikeRecord& record) override {
    const bool rolls_back = record.action == octavo::OnSpike::rollback;
    const auto action = static_cast<std::size_t>(record.action);
    if (is_first_rank_) {
      clear_progress();
      programs::print_stderr(
          "{}: warning: SPIKE at step {}: loss {:.4g} (limit {:.4g}), gradient norm "
          "{:.4g} (limit {:.4g}): {}{}{}\n",
          program().name, record.step, record.loss, record.loss_limit, record.gradient_norm,
          record.gradient_norm_limit, octavo::on_spike_names[action],
          rolls_back
              ? octavo::message(" to step ", record.resumed_step, ", number ", record.rollbacks,
                                " of ", options_.spikes.max_rollbacks, " at most")
              : "",
          record.reason.empty() ? "" : ", because " + record.reason);
    }
    octavo::JsonLine line;
    line.add("event", "spike")
        .add("step", record.step)
        .add("loss", record.loss)
        .add("loss_limit", record.loss_limit)
        .add("gradient_norm", record.gradient_norm)
        .add("gradient_norm_limit", record.gradient_norm_limit)
        .add("action", octavo::on_spike_names[action])
        .add("reason", record.reason);
    if (rolls_back) {
      line.add("resumed_step", record.resumed_step);
      events_.begin_steps(record.resumed_step + 1);
    }
    write(line.add("rollbacks", record.rollbacks));
  }

  /// Warns that a run diverges, with advice.
  void divergence(const octavo::StepRecord& record, double first_loss) override {
    if (!is_first_rank_) return;
    clear_progress();
    programs::print_stderr(
        "{}: warning: the loss is {:.4g} at step {}, {:.4g} at first: this run "
        "diverges. Stop it with Ctrl-C, and lower --learning-rate ({:.2e} at this step) or "
        "raise --warmup\n",
        program().name, record.result.loss, record.step, first_loss, record.learning_rate);
  }

  /// @param is_printed              whether the sample is already printed
  /// @param peak_bytes, host_bytes  allocated on the session's device, and in host memory
  void end(const octavo::RunSummary& summary, const std::string& sample, bool is_printed,
           std::size_t peak_bytes, std::size_t host_bytes) {
    timeline_.end();
    clear_progress();
    has_ended_ = true;
    print("\n{}train loss {} | validation loss {} | {}{} skipped | peak {:.1f} MiB\n",
          steps_text(summary), loss_text(summary.train_loss, true),
          loss_text(summary.validation_loss, validation_.tokens == 0),
          summary.taken == 0
              ? ""
              : fmt::format("{} of {} GEMMs in FP8 | ", summary.gemms.fp8, summary.gemms.total),
          summary.skipped, static_cast<double>(peak_bytes) / (1024.0 * 1024.0));
    if (is_first_rank_) warn_of_nonfinite_loss(summary, validation_.tokens);
    if (std::isfinite(loss_before_) && summary.steps > 0 && !(min_loss_ < loss_before_)) {
      print("no evaluation was better than before the first step, with validation loss {}\n",
            loss_text(loss_before_, false));
    }
    print_timeline();
    if (!sample.empty() && !is_printed) {
      print("\n{}\n", programs::visible(sample, programs::LineBreaks::keep));
    }
    write(octavo::JsonLine{}
              .add("event", "summary")
              .add("end", summary.end())
              .add("steps", summary.steps)
              .add("tokens", summary.tokens)
              .add("train_loss", summary.train_loss)
              .add("validation_loss", summary.validation_loss)
              .add("tokens_per_second", summary.tokens_per_second)
              .add("seconds", summary.seconds)
              .add("skipped", summary.skipped)
              .add("gemms_fp8", summary.gemms.fp8)
              .add("gemms_total", summary.gemms.total)
              .add("peak_bytes", peak_bytes)
              .add("host_bytes", host_bytes)
              .add("sample", sample));
  }

 private:
  /// Formats lines as a Markdown code block.
  static std::string code(const std::string& lines) { return "```\n" + lines + "```"; }

  void print_timeline() {
    const auto& timeline = timeline_.result();
    if (!timeline.has_value()) {
      if (options_.timeline.empty()) return;
      print("timeline | no step was timed, and {} is not written\n",
            programs::visible(options_.timeline));
      return;
    }
    const octavo::TimelineFigures& figures = timeline->figures;
    print(
        "exposed communication {:.2f} ms of {:.1f} ms per step (rank {}, the maximum of all; steps "
        "{} to {}) | {}\n",
        figures.exposed_milliseconds, figures.step_milliseconds, timeline->rank,
        timeline->first_step, timeline->first_step + figures.steps - 1,
        programs::visible(options_.timeline));
    write(octavo::JsonLine{}
              .add("event", "timeline")
              .add("file", options_.timeline)
              .add("first_step", timeline->first_step)
              .add("steps", figures.steps)
              .add("rank", timeline->rank)
              .add("milliseconds", figures.step_milliseconds)
              .add("exposed_communication_milliseconds", figures.exposed_milliseconds));
  }

  static std::vector<octavo::JsonLine> operand_lines(
      const std::vector<octavo::OperandReport>& operands) {
    std::vector<octavo::JsonLine> lines;
    for (const octavo::OperandReport& operand : operands) {
      octavo::JsonLine line;
      line.add("name", operand.name)
          .add("format", operand.format)
          .add("granularity", operand.granularity)
          .add("amax", operand.amax)
          .add("scale", operand.scale)
          .add("saturated", operand.saturated)
          .add("flushed", operand.flushed)
          .add("nonfinite", operand.nonfinite);
      lines.push_back(line);
    }
    return lines;
  }

  /// Warns about operands that no longer suit their format.
  void warn_of(const std::vector<octavo::OperandReport>& operands, octavo::Index step) {
    if (operands.empty()) return;
    for (const octavo::OperandTrouble& trouble : health_.examine(operands)) {
      write(octavo::JsonLine{}
                .add("event", "warning")
                .add("step", step)
                .add("kind", trouble.kind)
                .add("operands", std::span<const std::string>(trouble.operands))
                .add("text", trouble.text));
      events_.write(step, octavo::EventSummary{}.add_text("warnings", trouble.text));
      if (!is_first_rank_) continue;
      clear_progress();
      programs::print_stderr(
          "{}: warning: at step {}, {}. If the loss suffers, use BF16 for these "
          "layers (Layerwise, as in --precision fp8-delayed-bf16-edges)\n",
          program().name, step, trouble.text);
    }
  }

  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (prints_fail_) return;
    try {
      fmt::print(format, std::forward<Arguments>(arguments)...);
      programs::flush_output();
    } catch (const std::exception& error) {
      if (!is_training_) throw;
      prints_fail_ = true;
      end_run(error);
    }
  }

  void write(const octavo::JsonLine& line) {
    if (metrics_ == nullptr || writes_fail_) return;
    try {
      metrics_->write(line);
    } catch (const octavo::IoError& error) {
      if (!is_training_) throw;
      writes_fail_ = true;
      end_run(error);
    }
  }

  /// Called while an exception is handled. If the run has ended, `is_written` throws it.
  void end_run(const std::exception& error) {
    if (not_written_ == nullptr) not_written_ = std::current_exception();
    if (has_ended_) return;
    ended_run_ = true;
    clear_progress();
    programs::print_stderr("{}: {}. The run ends{}\n", program().name, programs::text_of(error),
                           options_.checkpoint_every == 0 ? "" : ", and first saves a checkpoint");
    octavo::InterruptGuard::request(SIGTERM);  // all ranks end together
  }

  /// Updates the progress line, on a terminal only.
  void progress(const octavo::StepRecord& record) const {
    if (!terminal_) return;
    const auto done = static_cast<std::size_t>(30 * record.step / options_.steps);
    programs::print_stderr("\r\033[K[{}{}] {}/{} | loss {} | {}", std::string(done, '='),
                           std::string(30 - done, ' '), record.step, options_.steps,
                           loss_text(record.result.loss, !record.result.skipped),
                           pace_.text(record.step));
    std::fflush(stderr);
  }
  void clear_progress() const {
    if (!terminal_) return;
    programs::print_stderr("\r\033[K");
    std::fflush(stderr);
  }

  const Options& options_;
  Pace pace_;
  GpuLog gpu_;
  std::string name_;  ///< of the run
  std::string recipe_;
  TimelineFile& timeline_;
  std::unique_ptr<octavo::MetricsFile> metrics_;
  Events events_;
  std::exception_ptr not_written_;  ///< why metrics.jsonl or the printed output is incomplete
  bool ended_run_ = false;          ///< it ended the run, with a message
  bool prints_fail_ = false;
  bool writes_fail_ = false;
  bool is_training_ = false;
  bool has_ended_ = false;
  std::function<void(octavo::Index step)> after_evaluation_;
  octavo::LossSum validation_;  ///< the last evaluation
  /// The loss before the first step, and the lowest after it; infinite if there is none.
  double loss_before_ = std::numeric_limits<double>::infinity();
  double min_loss_ = std::numeric_limits<double>::infinity();
  octavo::OperandHealth health_;
  bool is_first_rank_;
  bool terminal_;
  octavo::Index first_step_ = 1;  ///< of this process
};

}  // namespace trainer
