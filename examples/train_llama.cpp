// The trainers: train_llama trains a Llama on text, finetune_llama on chats, in the chosen
// precision. They differ only in `trainer::program()`.
//
//   train_llama --data shakespeare.txt --precision fp8-delayed --steps 500 --out runs/delayed
//
// Exit codes: 0 success, 1 runtime error, 2 invalid input, 3 too many consecutive non-finite steps,
// 4 the last checkpoint could not be saved, 5 stopped before a spike, 6 a replayed step differed,
// 128 + n stopped by signal n after finishing the step.
#include <octavo/comm/same_on_all_ranks.hpp>
#include <octavo/io/folder.hpp>
#include <octavo/run/run.hpp>

#include <train_llama/announce.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/declare.hpp>
#include <train_llama/documents.hpp>
#include <train_llama/ending.hpp>
#include <train_llama/export.hpp>
#include <train_llama/gemm_plans.hpp>
#include <train_llama/kept.hpp>
#include <train_llama/mismatch.hpp>
#include <train_llama/needs.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>
#include <train_llama/ranks.hpp>
#include <train_llama/replay.hpp>
#include <train_llama/report.hpp>
#include <train_llama/resume.hpp>
#include <train_llama/run_folder.hpp>
#include <train_llama/tasks.hpp>
#include <train_llama/timeline.hpp>
#include <train_llama/watch.hpp>
#include <train_llama/weights.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <string>

namespace trainer {
namespace {

enum ExitCode {
  success = 0,
  failure = 1,
  bad_input = 2,
  too_many_skipped = 3,
  not_saved = 4,
  spike = 5,
  not_repeated = 6,
  by_signal = 128
};

/// Returns the reply to a signal; on a terminal, it starts below the progress line.
const char* acknowledgement() {
  static const std::string text = octavo::message(
      ::isatty(STDERR_FILENO) != 0 ? "\n" : "", program().name,
      ": stopping after this step; another signal, a second later, ends it at once\n");
  return text.c_str();
}

/// Everything that a run needs before it writes its first file.
struct Setup {
  std::unique_ptr<RunData> data;
  std::unique_ptr<Watch> watch;
  std::shared_ptr<octavo::TrainingSession> session;
  std::filesystem::path folder;
  std::filesystem::path resume_from;  ///< empty for a new run
  std::optional<octavo::RunTotals> totals;
  Report* report = nullptr;                          ///< null until checkpoints are reported
  std::unique_ptr<octavo::Checkpoints> checkpoints;  ///< null if the run is not saved
  std::unique_ptr<octavo::FolderLock> lock;          ///< lock of the run's folder
  octavo::CheckpointManifest resumed;
  std::string chosen;    ///< lines of TOML: flags of the command line and of --config
  std::string left_out;  ///< flags that are not set and differ from the run that is resumed
};

/// Trains until the end, a signal or too many non-finite steps; returns the exit code.
int train(Setup& setup, Report& report, const Options& options, const Instance& instance,
          const Ranks& ranks) {
  octavo::TrainingSession& session = *setup.session;
  const octavo::InterruptGuard interrupt(ranks.is_first() ? acknowledgement() : "");
  report.after_evaluation(
      [&](octavo::Index step) { setup.watch->run(step, session, *setup.data, report); });
  const octavo::RunSummary summary = name_document_flags([&] {
    return octavo::train(session, *setup.data, run_options(options), report, *setup.totals,
                         setup.checkpoints.get());
  });
  // Reported at once, because later calls may fail.
  if (ranks.is_first() && (summary.gave_up || summary.documents != 0)) {
    const std::filesystem::path saved_in = setup.checkpoints == nullptr ? "" : setup.folder;
    programs::print_stderr("{}: {}\n", program().name,
                           summary.gave_up ? skip_limit_message(summary, report, options)
                                           : document_limit_message(summary, saved_in, options));
  }
  // A resumed run writes them, to folders that must be new.
  const bool is_resumable = (summary.documents != 0 || summary.signal != 0) &&
                            setup.checkpoints != nullptr && summary.is_saved;
  std::exception_ptr not_written;  // error in writing the weights, reported after the files are
                                   // complete
  try {
    if (!summary.gave_up && !is_resumable) save_weights(session, options, instance, ranks);
  } catch (const octavo::CommError&) {
    throw;
  } catch (const octavo::Error&) {  // on all ranks, or on none
    not_written = std::current_exception();
  }
  const std::string* const reported = setup.watch->sample_after(summary.steps);
  report.end(summary,
             summary.gave_up || options.sample == 0 ? ""
             : reported != nullptr                  ? *reported
                                                    : setup.data->sample(session, options),
             reported != nullptr, session.facts().allocated_bytes,
             session.facts().allocated_host_bytes);
  const bool is_late = std::chrono::steady_clock::now() >= end_time(options);
  if (ranks.is_first() && summary.signal == SIGTERM && is_late) {
    programs::print_stderr("{}: --max-time ended the run after step {}\n", program().name,
                           summary.steps);
  }
  if (ranks.is_first() && summary.signal != 0 && is_resumable) {
    programs::print_stderr("{}: stopped and saved; {}\n", program().name,
                           resume_command_text(setup.folder));
  }
  if (not_written != nullptr) std::rethrow_exception(not_written);
  if (!report.is_written()) return failure;
  if (summary.gave_up) return too_many_skipped;
  if (!summary.is_saved) return not_saved;
  if (summary.documents != 0) return failure;
  if (summary.spiked) return spike;
  return summary.signal == 0 ? success : by_signal + summary.signal;
}

/// Throws unless the run's folder is new, or the run resumes or restarts in it.
void require_own_out(const Setup& setup, const CLI::App& app, const Options& options) {
  if (appends_to_saved_run(setup.resume_from, options) || restarts_run(options)) return;
  require_free_out(options, detail::flags_file(app)->file_with("out", options.out));
}

/// Locks the run's folder for this run.
/// @throws ConfigError  if another run uses it, or used it since it was checked
/// @throws IoError      if the folder is not writable, or if the run saves checkpoints and the file
///                      system has no locks
void lock_folder(Setup& setup, const CLI::App& app, const Options& options) {
  setup.folder = make_run_folder(options);
  if (setup.folder.empty()) return;
  try {
    setup.lock = std::make_unique<octavo::FolderLock>(setup.folder);
  } catch (const octavo::NoLocksError& error) {  // checkpoints need a lock
    if (options.checkpoint_every != 0) throw;
    programs::print_stderr(
        "{}: warning: {}; nothing prevents another run from also writing there\n", program().name,
        programs::text_of(error));
  }
  require_own_out(setup, app, options);
  const bool begins = setup.resume_from.empty();
  if (begins && restarts_run(options)) rename_unsaved_run_files(setup.folder);
}

/// Reads the data and creates its batches. Each rank reads them separately.
void read_data(Setup& setup, const CLI::App& app, Options& options, const Instance& instance,
               const Ranks& ranks) {
  // Reading text and creating the session can take minutes.
  if (ranks.is_first() && options.replay_step != 0) {
    setup.resume_from = checkpoint_to_replay_from(options, program().name);
  } else if (ranks.is_first()) {
    setup.resume_from = checkpoint_to_resume(options, program().name);
    require_own_out(setup, app, options);
    require_timeline_folder(options);
    require_free_folders(options, [&](const char* flag) { return detail::place_of(app, flag); });
  }
  setup.data = program().read(options, instance, ranks);
  setup.watch = std::make_unique<Watch>(options, instance, ranks);
}

/// Creates the session. All ranks must call it.
void make_session(Setup& setup, const CLI::App& app, const Options& options,
                  const Instance& instance, Ranks& ranks) {
  require_replicas(options);
  SessionRequest request = session_request(options, setup.resume_from);
  ranks.join(request, app.count("--gpu") != 0);
  request.options.sharding.ranks = options.ranks;
  setup.session = instance.make(request);
  const bool begins = setup.resume_from.empty();
  // A checkpoint of adapters contains nothing of the base model.
  if (!options.load_hf.empty() && (begins || instance.has_adapters)) {
    octavo::load_hugging_face(*setup.session, instance.shape, options.load_hf);
  }
  if (instance.has_adapters && ranks.is_first()) warn_of_base(options, begins);
  if (begins && ranks.is_first()) warn_of_learning_rate(app, options);
  if (instance.has_adapters) {
    setup.data->set_base_model(options.load_hf.empty()
                                   ? octavo::message("weights of --seed ", options.seed)
                                   : digests_of(options.load_hf));
  }
  if (!options.load_adapters.empty() && begins) {
    try {
      octavo::load_adapters(*setup.session, instance.shape, options.load_adapters);
    } catch (const octavo::StateMismatchError& error) {
      const std::string flags = fitting_flags(error, setup.session->facts().lora);
      throw octavo::ConfigError(error.what() + (flags.empty() ? "" : "; they fit with" + flags));
    }
  }
  if (ranks.is_first() && options.replay_step == 0) {
    require_room_for_weights(*setup.session, options);
    lock_folder(setup, app, options);
  }
}

/// Opens the folder of checkpoints, and resumes from one. All ranks must call it.
/// @param configuration  configuration of this run
void make_checkpoints(Setup& setup, const Options& options, Ranks& ranks,
                      const std::string& configuration) {
  setup.totals.emplace(options.max_skipped);
  const std::filesystem::path folder = setup.folder / detail::checkpoints_name;
  if (options.replay_step != 0) {
    // Only reads existing checkpoints.
  } else if (options.checkpoint_every != 0) {
    setup.checkpoints = std::make_unique<octavo::Checkpoints>(
        octavo::CheckpointOptions{folder, options.checkpoint_every, options.keep,
                                  setup.data->validation_text()},
        *setup.session, [&setup, first = ranks.is_first()](const octavo::CheckpointRecord& record) {
          if (setup.report != nullptr) {
            setup.report->checkpoint(record);
          } else if (first) {
            warn_of_failed_checkpoint(record);
          }
        });
  }
  if (setup.resume_from.empty()) {
    if (setup.checkpoints != nullptr) setup.checkpoints->require_free_after(0);
    return;
  }
  const bool of_adapters =
      octavo::detail::read_manifest(setup.resume_from).recipe.ends_with(octavo::lora_suffix);
  octavo::require<octavo::ConfigError>(
      of_adapters == setup.session->facts().lora.has_value(), setup.resume_from.string(), " has ",
      of_adapters ? "adapters, which this run lacks; pass --lora, --lora-alpha, --lora-targets "
                    "and --model of the run that saved it"
                  : "a whole model, while this run trains adapters; write it with --export-hf, and "
                    "pass that folder with --model hf:");
  try {
    setup.resume_from = resume_undamaged(
        setup.resume_from, options, ranks, program().name, [&](const std::filesystem::path& from) {
          setup.resumed = octavo::resume(
              from, *setup.session, *setup.data, *setup.totals, setup.checkpoints.get(),
              options.convert ? octavo::OtherRecipes::converted : octavo::OtherRecipes::refused);
        });
  } catch (const octavo::StateMismatchError& error) {
    throw_with_flags(error, setup.session->facts().lora, setup.resume_from, configuration);
  }
}

/// Runs a part of the set-up. Returns the message of an error in the input, or "".
template <class Part>
std::string catch_input_error(const Setup& setup, const Part& part) {
  try {
    part();
  } catch (const std::bad_alloc&) {
    return fmt::format("this machine does not have enough memory for {}",
                       setup.data == nullptr ? "the text and its batches; use less text, or a "
                                               "smaller --batch, --micro-batches or --seq-len"
                                             : "the session; plan_memory prints what it needs");
  } catch (const octavo::CommError&) {
    throw;
  } catch (const octavo::Error& error) {
    return programs::visible(error.what());
  }
  return {};
}

/// @throws CommError  naming the ranks that run another program, or have other flags or text
void require_same(Ranks& ranks, const std::string& configuration, const Setup& setup,
                  const Options& options) {
  if (ranks.size() == 1) return;
  std::vector<octavo::RankFact> facts{
      {"octavo", octavo::version_string},
      {"model", setup.session->manifest().text()},
      {"optimizer", setup.session->facts().optimizer},
      {"weights", digests_of(options.load_hf)},  // each rank reads them separately
      {"adapters", setup.resume_from.empty() ? digests_of(options.load_adapters) : ""},
      {"data",
       octavo::message(setup.data->training_tokens(), " tokens, hash ", setup.data->hash())}};
  for (octavo::RankFact& flag : flags_of_all_ranks(configuration)) facts.push_back(std::move(flag));
  octavo::require_same_on_all_ranks(ranks, facts);
}

/// Prints the run's settings, and trains.
int start_training(Setup& setup, const Options& options, const Instance& instance, Ranks& ranks,
                   const std::string& configuration) {
  octavo::TrainingSession& session = *setup.session;
  // From here on, an error is a runtime error: the run may have written files.
  TimelineFile timeline(options, session, ranks);
  using Lines = octavo::MetricsFile::Lines;
  const bool resumes = appends_to_saved_run(setup.resume_from, options);
  // A finished run has nothing left to write.
  const bool is_done = resumes && setup.totals->steps() >= options.steps &&
                       detail::has_ended(setup.folder / "metrics.jsonl");
  const std::string unrecorded =
      resumes && ranks.is_first()
          ? note_of_unrecorded_steps(setup.folder / "metrics.jsonl", setup.totals->steps())
          : "";
  if (!unrecorded.empty()) {
    programs::print_stderr("{}: warning: {}\n", program().name, programs::visible(unrecorded));
  }
  Report report(options, is_done ? "" : setup.folder, resumes ? Lines::kept : Lines::removed,
                configuration, session.facts().precision, timeline, ranks.is_first());
  setup.report = &report;
  announce_model(session, instance);
  announce_flags(options, setup.chosen, configuration);
  announce_exchanges(session, options, ranks.size());
  fmt::print("run | {}\n", setup.folder.empty()
                               ? "has no folder (--no-out)"
                               : "kept in " + programs::visible(setup.folder.string()));
  if (!options.restored_save_flags.empty()) {
    fmt::print("run | saved as in its config.toml:{}\n", options.restored_save_flags);
  }
  setup.data->print();
  if (ranks.is_first()) {
    warn_of_warmup(options);
    warn_of_no_best(options);
    warn_of_single_rank(options);
  }
  announce(session, options, is_done || !ranks.is_first() ? "" : setup.folder);
  report.begin(session, instance, *setup.data);
  if (!options.gemm_plans.empty() && ranks.is_first()) {
    keep_gemm_plans(options.gemm_plans, session.gemm_plans(), program().name, options.comm_timeout);
  }
  if (!setup.resume_from.empty()) {
    report.resumed(setup.resume_from, setup.resumed, session);
    if (ranks.is_first()) warn_of_data(*setup.data, setup.resumed, setup.resume_from);
    if (ranks.is_first() && !setup.left_out.empty()) {
      programs::print_stderr(
          "{}: warning: flags that are not set have their defaults: {}; to keep the run's flags, "
          "pass --config {}\n",
          program().name, programs::visible(setup.left_out),
          programs::visible(detail::config_of(setup.resume_from).string()));
    }
  }
  warn_of_little_room(setup.checkpoints.get(), options, setup.totals->steps());
  announce_steps(options, *setup.totals);
  timeline.begin(setup.totals->steps());
  report.begin_steps(setup.totals->steps() + 1);
  return train(setup, report, options, instance, ranks);
}

/// What the command line selects, and the ranks.
struct Command {
  std::string configuration;  ///< lines of TOML: all flags
  std::string chosen;         ///< lines of TOML: flags of the command line and of --config
  const Instance* instance = nullptr;
  std::optional<Ranks> ranks;
};

/// Checks the flags and connects to the other ranks, or runs a task that needs neither.
/// @return the exit code of such a task
std::optional<int> read_command(CLI::App& app, Options& options, Command& command) {
  choose_folder(app, options);
  options.out = detail::run_of(options.out);
  require_one_task(app, options);
  const bool is_alone = options.list_checkpoints || !options.export_hf.empty();
  // One of the ranks is enough.
  if (is_alone && octavo::read_launch().rank != 0) return success;
  if (options.list_checkpoints) {
    print_checkpoints(options);
    return success;
  }
  complete_resume(options);
  if (!options.export_hf.empty()) {
    export_weights(options, program().name);
    return success;
  }
  restore_save_flags(app, options);
  require_effects(app, options);
  require_readable_flags(app);
  command.configuration = app.config_to_str(true, false);
  command.chosen = app.config_to_str(false, false);
  choose_length(app, options);
  require_consistent(app, options);
  program().require_data(options);
  find_preset_of_folder(app, options);
  command.instance = &find_instance(app, options);
  require_reduction(app, options);
  const Ranks& ranks = command.ranks.emplace(options, program().name);
  options.ranks = ranks.groups(options.tensor_parallel);
  if (ranks.is_first() && !options.save_flags_warning.empty()) {
    programs::print_stderr("{}: warning: {}\n", program().name,
                           programs::visible(options.save_flags_warning));
  }
  return std::nullopt;
}

/// Sets up the run, and trains or replays a step; returns the exit code.
int run_on_ranks(CLI::App& app, Options& options, const Command& command, Ranks& ranks) {
  const Instance& instance = *command.instance;
  const std::string& configuration = command.configuration;
  Setup setup;
  // Ranks continue together or not at all.
  const auto succeeds_on_all_ranks = [&](const auto& part, bool exchanges,
                                         bool only_first_rank_reports = false) {
    const std::string wrong = catch_input_error(setup, part);
    if (!wrong.empty() && (ranks.is_first() || !only_first_rank_reports)) {
      programs::print_stderr("{}{}\n", ranks.name(), wrong);
    }
    return ranks.all_succeeded(wrong, exchanges);
  };
  if (!succeeds_on_all_ranks([&] { read_data(setup, app, options, instance, ranks); },
                             /*exchanges=*/false))
    return bad_input;
  // All ranks use what rank 0 found. The prefix makes the text non-empty even if nothing was found.
  setup.resume_from =
      octavo::all_gather_texts(ranks, '+' + setup.resume_from.string(), "checkpoint to resume from")
          .front()
          .substr(1);
  if (!setup.resume_from.empty() && options.save_flags_warning.empty()) {
    const std::filesystem::path config = detail::config_of(setup.resume_from);
    setup.left_out = flags_left_out(app, config, configuration);
  }
  if (!succeeds_on_all_ranks([&] { make_session(setup, app, options, instance, ranks); },
                             /*exchanges=*/true)) {
    return bad_input;
  }
  require_same(ranks, configuration, setup, options);
  if (!succeeds_on_all_ranks([&] { make_checkpoints(setup, options, ranks, configuration); },
                             /*exchanges=*/true, /*only_first_rank_reports=*/true))
    return bad_input;
  // Only rank 0 prints.
  if (!ranks.is_first() && std::freopen("/dev/null", "w", stdout) == nullptr) return failure;
  if (options.replay_step != 0) {
    const bool is_repeated = name_document_flags([&] {
      return replay(*setup.session, *setup.data, *setup.totals, setup.resume_from, setup.resumed,
                    options, instance);
    });
    return is_repeated ? success : not_repeated;
  }
  setup.chosen = command.chosen;
  return start_training(setup, options, instance, ranks, configuration);
}

int run(CLI::App& app, Options& options) {
  Command command;  // its ranks outlive the session, which uses them to its end
  try {
    if (const auto code = read_command(app, options, command)) return *code;
  } catch (const octavo::Error& error) {
    programs::print_stderr("{}: {}\n", program().name, programs::visible(error.what()));
    return bad_input;
  }
  try {
    return run_on_ranks(app, options, command, *command.ranks);
  } catch (const std::exception& error) {
    command.ranks->abort(octavo::message(program().name, ": ", programs::text_of(error)));
    throw;
  }
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  const trainer::Program& program = trainer::program();
  CLI::App app(program.description, program.name);
  trainer::Options options;
  trainer::declare(app, options, program.declare_data);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
  try {
    const int code = trainer::run(app, options);
    if (code == trainer::success) programs::flush_output();
    return code;
  } catch (const std::exception& error) {
    // On a terminal, the message starts below the progress line.
    programs::print_stderr("{}{}: {}\n", ::isatty(STDERR_FILENO) != 0 ? "\n" : "", program.name,
                           programs::text_of(error));
    return trainer::failure;
  }
}
