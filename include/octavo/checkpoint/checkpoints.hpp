/// @file
/// Saving a run during training.
#pragma once

#include <octavo/checkpoint/all_or_none.hpp>
#include <octavo/checkpoint/checkpoint_folder.hpp>
#include <octavo/checkpoint/checkpoint_load.hpp>
#include <octavo/checkpoint/checkpoint_writer.hpp>
#include <octavo/core/start_thread.hpp>
#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/io/atomic_file.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The folder and the interval of a run's checkpoints.
struct CheckpointOptions {
  std::filesystem::path folder{};  ///< such as RUN/checkpoints; rank 0's is used
  Index every = 0;                 ///< steps; 0: only when the program calls `save`
  CheckpointsToKeep keep{};
  /// Identifies the validation data, such as its hash: only losses on the same data are compared.
  std::string validation{};
};

/// The result of a save.
struct CheckpointRecord {
  Index step = 0;
  std::filesystem::path path{};
  std::uint64_t bytes = 0;
  double blocked = 0;     ///< seconds that the run waited for it, on this rank
  double seconds = 0;     ///< from its start to its end, on this rank
  std::string error{};    ///< empty if the checkpoint is complete
  std::string warning{};  ///< such as about an older checkpoint that could not be removed
};

/// The checkpoints of a run. During the next steps, a thread of each rank copies the state to the
/// host, writes it with a few other threads, and reads it back. The next step waits for the copy
/// before it changes the state. After the first step at which all ranks have written and verified
/// their files, a rename commits the checkpoint, and older checkpoints may be removed. If one rank
/// fails, or reads back different bytes than it wrote, the save fails on all ranks: the run
/// continues, and earlier checkpoints remain. All ranks make the same calls in the same order. If
/// the host lacks the memory for the copy, the run waits until the state is written.
class Checkpoints {
 public:
  using SaveCallback = std::function<void(const CheckpointRecord&)>;

  /// Creates the folder, locks it for this run, removes leftovers of interrupted saves, and
  /// allocates host memory for copies of the state.
  /// @param session  must outlive this object
  /// @param on_save     called with the result of each save
  /// @throws ConfigError  on all ranks, for invalid options, or if another run has locked the
  ///                      folder
  /// @throws IoError      on rank 0, if the folder is not writable; ConfigError on the others
  Checkpoints(CheckpointOptions options, TrainingSession& session, SaveCallback on_save)
      : options_(std::move(options)),
        session_(session),
        on_save_(std::move(on_save)),
        writer_(session) {
    require<ConfigError>(options_.every >= 0 && options_.keep.every >= 0,
                         "every and keep.every must be at least 0, but are ", options_.every,
                         " and ", options_.keep.every);
    require<ConfigError>(
        options_.keep.last >= 2,
        "keep.last must be at least 2, because a disk may fail while a checkpoint is read, but is ",
        options_.keep.last);
    const auto texts = detail::all_or_none(session_, "folder of checkpoints", [&] {
      return is_first() ? lock_folder() : std::string();
    });
    options_.folder = texts.front();
    const std::string refusal = writer_.allocate_memory();
    if (refusal.empty()) return;
    on_save_({.path = options_.folder,
              .warning = refusal + ": the run waits until each checkpoint is written"});
  }
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;
  ~Checkpoints() { join(); }

  [[nodiscard]] const CheckpointOptions& options() const { return options_; }
  /// Returns whether a step must be saved.
  [[nodiscard]] bool is_due(Index step) const {
    return options_.every != 0 && step % options_.every == 0;
  }
  /// Returns whether the last completed save failed.
  [[nodiscard]] bool failed() const { return failed_; }

  /// Resumes the session from a checkpoint, see `load_checkpoint`. A checkpoint of this folder must
  /// be the newest one, except for those that `load_checkpoint` has found damaged since this was
  /// created. Damaged checkpoints of later steps are renamed to damaged-step-…, so that these steps
  /// can be saved again.
  /// @throws ConfigError  as `require_free_after` does
  CheckpointManifest resume(const std::filesystem::path& path, std::vector<StateEntry> more = {},
                            OtherRecipes others = OtherRecipes::refused) {
    const auto texts = detail::all_or_none(session_, "checkpoint to resume from", [&] {
      return is_first() ? require_resumable(path) : std::string();
    });
    CheckpointManifest manifest;
    try {
      manifest = load_checkpoint(path, session_, std::move(more), others);
    } catch (const DamagedCheckpointError&) {
      if (!texts.front().empty()) damaged_.emplace_back(texts.front());
      throw;
    }
    conversions_ = manifest.conversions;
    if (texts.front().empty()) return manifest;
    saved_step_ = manifest.step;
    detail::all_or_none(session_, "damaged checkpoints", [&] {
      if (is_first()) rename_all_damaged();
      return std::string();
    });
    return manifest;
  }

  /// Checks that the names of checkpoints after a step are free. All ranks call it, before the
  /// first step of a new run; `resume` calls it itself.
  /// @throws ConfigError  on all ranks, naming a file or folder that is in the way: it is not
  ///                      replaced
  void require_free_after(Index step) {
    detail::all_or_none(session_, "names of checkpoints", [&] {
      if (is_first()) require_free_names_after(step, false);
      return std::string();
    });
  }

  /// Warns if the disk lacks room for the checkpoints to come. All ranks call it, before the first
  /// step.
  /// @param saves  number of saves to come
  void warn_of_little_room(Index saves) {
    const std::uint64_t bytes = detail::CheckpointShare(session_.state().entries(), session_).bytes;
    if (!is_first()) return;
    const std::vector<ListedCheckpoint> listed = list_checkpoints(options_.folder);
    const Index whole = std::ranges::count_if(
        listed, [](const ListedCheckpoint& one) { return one.manifest.has_value(); });
    // A save removes an older checkpoint only after the new one is complete.
    const Index added = std::min(saves, std::max(options_.keep.last + 1 - whole, Index{1}));
    const std::uint64_t room = free_disk_bytes(options_.folder);
    const std::uint64_t needed = static_cast<std::uint64_t>(added) * bytes;
    if (room > needed || added == 0) return;
    const auto [needed_text, free_text] = size_texts(needed, room);
    on_save_({.path = options_.folder,
              .warning = message(added == 1 ? "the next checkpoint needs "
                                            : message("the next ", added, " checkpoints need "),
                                 needed_text, ", but ", free_text,
                                 " are free on the disk, and older ones are removed only after the "
                                 "new one is complete; "
                                 "free disk space, or saves will fail")});
  }

  /// Returns the newest checkpoint of the folder, after the current save has ended; empty if there
  /// is none. The same on all ranks.
  [[nodiscard]] std::filesystem::path newest_sync() {
    finish();
    return detail::all_or_none(
               session_, "newest checkpoint",
               [&] {
                 return is_first() ? newest_checkpoint(options_.folder, [](const auto&) {}).string()
                                   : std::string();
               })
        .front();
  }

  /// Starts to save the current state asynchronously, after the previous save has ended. Entries of
  /// `more` that cannot be read during steps are read immediately. A step that was just saved is
  /// not saved again.
  /// @param step             the last step of the session
  /// @param more             entries to save in addition to the session's state
  /// @param validation_loss  of the current weights, if it is known
  void save(Index step, std::vector<StateEntry> more = {},
            std::optional<double> validation_loss = std::nullopt) {
    finish();
    if (step == saved_step_) return;
    begin_ = Clock::now();
    record_ = {.step = step, .path = options_.folder / detail::checkpoint_name(step)};
    loss_ = validation_loss;
    temporary_folder_ = options_.folder / detail::temporary_name(step, "tmp");
    std::vector<StateEntry> entries = own_entries(std::move(more));
    record_.bytes = share_->bytes;
    if (!run_stage("begin of a checkpoint",
                   [&] { return is_first() ? create_temporary_folder() : std::string(); })) {
      return;
    }
    temporary_folder_ = texts_.front();
    is_pending_ = true;
    writer_.begin(temporary_folder_ / own_file(), std::move(entries));
    record_.blocked = seconds_since(begin_);
  }

  /// Commits the current save, if all ranks have written and verified their files. Must be called
  /// after each step.
  void after_step() {
    if (is_pending_ && session_.ranks().largest(writer_.is_done() ? 0 : 1) == 0) commit();
  }

  /// Waits for the current save, if there is one, and commits it.
  void finish() {
    if (is_pending_) commit();
    join();
    if (!prune_error_.empty()) {
      on_save_({.step = record_.step,
                .path = record_.path,
                .warning = std::exchange(prune_error_, std::string())});
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_first() const { return session_.facts().sharding.world_rank() == 0; }
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  void join() {
    writer_.join();
    if (pruner_.joinable()) pruner_.join();
  }
  /// Returns the name of this rank's file.
  [[nodiscard]] std::string own_file() const {
    return detail::file_name_of_rank(session_.facts().sharding.world_rank());
  }

  /// @return  the absolute path of the folder
  std::string lock_folder() {
    const std::filesystem::path folder = std::filesystem::absolute(options_.folder);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    require<IoError>(!error, folder.string(), ": cannot be created: ", error.message(),
                     "; choose another folder for the run");
    lock_ = std::make_unique<FolderLock>(folder);
    fsync_folder(folder.parent_path());
    for (const ListedCheckpoint& one : list_checkpoints(folder)) {
      if (one.is_committed) continue;
      std::filesystem::remove_all(one.path);
      on_save_({.step = one.step, .path = one.path, .warning = "was " + one.problem + ": removed"});
    }
    return folder.string();
  }

  /// @return  "" for a checkpoint of another folder
  std::string require_resumable(const std::filesystem::path& path) const {
    std::string own = require_newest(path);
    const ListedCheckpoint found =
        detail::inspect_checkpoint(path);  // loading refuses a damaged one
    if (found.manifest.has_value()) require_free_names_after(found.step, !own.empty());
    return own;
  }

  /// @return  "" for a checkpoint of another folder
  std::string require_newest(const std::filesystem::path& path) const {
    // The checkpoint itself may be a link to another disk.
    std::filesystem::path named = std::filesystem::absolute(path).lexically_normal();
    if (!named.has_filename()) named = named.parent_path();
    const std::filesystem::path own =
        std::filesystem::weakly_canonical(named.parent_path()) / named.filename();
    if (own.parent_path() != std::filesystem::weakly_canonical(options_.folder)) return {};
    std::string newest;
    for (const ListedCheckpoint& one : list_checkpoints(options_.folder)) {
      const std::string name = one.path.filename().string();
      const bool is_whole = one.manifest.has_value() && !was_found_damaged(name);
      if (!is_whole && name == own.filename()) return own.string();  // loading it is an error
      if (is_whole) newest = name;
    }
    require<ConfigError>(newest == own.filename(), path.string(),
                         " is not the newest checkpoint of the run: ", newest,
                         " is; choose another folder for a run that resumes from an older one");
    return own.string();
  }

  /// Whether loading a checkpoint of this folder has found it damaged.
  [[nodiscard]] bool was_found_damaged(const std::string& name) const {
    return std::ranges::any_of(damaged_, [&](const auto& path) { return path.filename() == name; });
  }

  [[nodiscard]] bool is_damaged(const ListedCheckpoint& one) const {
    return one.is_damaged || was_found_damaged(one.path.filename().string());
  }

  /// See `require_free_after`.
  /// @param renames_damaged  whether damaged checkpoints will be renamed
  void require_free_names_after(Index step, bool renames_damaged) const {
    for (const ListedCheckpoint& one : list_checkpoints(options_.folder)) {
      const bool is_coming =
          one.step > step && one.path.filename() == detail::checkpoint_name(one.step);
      if (!is_coming || (renames_damaged && is_damaged(one))) continue;
      throw ConfigError(message(one.path.string(), ": the run would save step ", one.step,
                                " under this name, but it exists already",
                                one.problem.empty() ? "" : " and is not a checkpoint of this run: ",
                                one.problem, "; move it to another folder"));
    }
  }

  void rename_all_damaged() {
    for (const ListedCheckpoint& one : list_checkpoints(options_.folder)) {
      if (one.step <= saved_step_ || !is_damaged(one)) continue;
      const std::filesystem::path renamed_path = detail::rename_damaged(one.path);
      on_save_({.step = one.step,
                .path = one.path,
                .warning = "is damaged, and was renamed to " + renamed_path.filename().string()});
    }
  }

  /// Returns this rank's share of the state.
  std::vector<StateEntry> own_entries(std::vector<StateEntry> more) {
    std::vector<StateEntry> all = session_.state().entries();
    for (StateEntry& entry : more) all.push_back(std::move(entry));
    if (share_ == nullptr) share_ = std::make_unique<detail::CheckpointShare>(all, session_);
    require<UsageError>(all.size() == share_->writes.size(), "the state has ", all.size(),
                        " entries, but had ", share_->writes.size(),
                        " in the first save; save the same entries");
    std::vector<StateEntry> own;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (share_->writes[i]) own.push_back(std::move(all[i]));
    }
    return own;
  }

  /// Creates the folder that ranks write to.
  /// @return  its path
  std::string create_temporary_folder() {
    const std::uint64_t room = free_disk_bytes(options_.folder);
    const auto [needed_text, free_text] = size_texts(share_->bytes, room);
    require<IoError>(room > share_->bytes, options_.folder.string(), ": a checkpoint needs ",
                     needed_text, ", but ", free_text,
                     " are free on the disk; free disk space: older checkpoints are removed only "
                     "after the new one is complete");
    const bool is_taken = std::filesystem::exists(std::filesystem::symlink_status(record_.path));
    require<IoError>(!is_taken, record_.path.string(),
                     ": already exists, and is not replaced; move it to another folder, or resume "
                     "from the newest checkpoint");
    make_new_folder(temporary_folder_);
    return temporary_folder_.string();
  }

  /// Runs this rank's part of a stage of the save. Returns whether the stage succeeded on all
  /// ranks; if not, the save has failed.
  bool run_stage(const char* what, const std::function<std::string()>& part) {
    try {
      texts_ = detail::all_or_none(session_, what, part);
      return true;
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      record_.error = error.what();
    }
    is_pending_ = false;
    failed_ = true;
    std::error_code ignored;
    if (is_first()) std::filesystem::remove_all(temporary_folder_, ignored);
    end();
    return false;
  }

  void end() {
    record_.seconds = seconds_since(begin_);
    on_save_(record_);
  }

  /// Ends the current save, once every rank has verified its file or has failed: commits it, unless
  /// a rank failed.
  void commit() {
    const auto begin = Clock::now();
    join();
    const bool is_written = run_stage("files of a checkpoint", [&] {
      const CheckpointFile file{own_file(), writer_.digest()};
      return writer_.has_entries() ? detail::line_of(file).str() : std::string();
    });
    if (!is_written) return;
    if (!run_stage("commit of a checkpoint", [&] {
          if (is_first()) write_manifest();
          return std::string();
        })) {
      return;
    }
    is_pending_ = false;
    failed_ = false;
    saved_step_ = record_.step;
    record_.blocked += seconds_since(begin);
    if (is_first()) start_pruning();
    end();
  }

  void write_manifest() {
    const Sharding ranks = session_.facts().sharding;
    const std::vector<GemmPlanRecord> plans = session_.gemm_plans();
    CheckpointManifest manifest{.step = record_.step,
                                .time = static_cast<std::int64_t>(std::time(nullptr)),
                                .version = version_string,
                                .model = session_.facts().name,
                                .recipe = session_.facts().precision,
                                .optimizer = session_.facts().optimizer,
                                .ranks = ranks.world_size(),
                                .tensor_ranks = ranks.tensor_ranks,
                                .zero = static_cast<int>(ranks.zero),
                                .validation_loss = loss_,
                                .validation = options_.validation,
                                .numbers = writer_.numbers(),
                                .gemm_plans = plans.empty() ? "" : gemm_plans_text(plans),
                                .libraries = session_.facts().libraries,
                                .run_length = session_.facts().run_shape.tokens,
                                .conversions = conversions_};
    for (const std::string& text : texts_) {
      if (text.empty()) continue;
      JsonReader json(text, "a rank's file", 0, "use another checkpoint");
      manifest.files.push_back(detail::read_manifest_file(json));
    }
    const std::filesystem::path file = temporary_folder_ / detail::manifest_name;
    const std::string text = detail::manifest_text(manifest);
    write_file_atomically(file, text);
    const FileDigest written{text.size(), crc32c(std::as_bytes(std::span(text)))};
    detail::verify_file(file, written, Context<Cpu>(1), ReadFrom::disk,
                        "the disk or the memory damaged it; check both");
    commit_folder(temporary_folder_, record_.path);
  }

  void start_pruning() {
    try {
      pruner_ = detail::start_thread("removing old checkpoints", [this] { prune(); });
    } catch (const Error& error) {
      prune_error_ = error.what();
    }
  }

  /// Removes the checkpoints that the new one replaces, on a separate thread.
  void prune() {
    try {
      std::vector<ListedCheckpoint> whole = list_checkpoints(options_.folder);
      std::erase_if(whole, [](const ListedCheckpoint& one) { return !one.manifest.has_value(); });
      for (const std::filesystem::path& path : detail::superfluous(whole, options_.keep)) {
        const Index step = detail::step_in(path.filename().string()).value_or(0);
        remove_committed_folder(path, options_.folder / detail::temporary_name(step, "old"));
      }
    } catch (const std::exception& error) {
      prune_error_ = error.what();
    }
  }

  CheckpointOptions options_;
  TrainingSession& session_;
  SaveCallback on_save_;
  std::unique_ptr<FolderLock> lock_;                ///< of rank 0
  std::unique_ptr<detail::CheckpointShare> share_;  ///< exists from the first save on
  std::vector<std::string> texts_;                  ///< that ranks exchanged in the last stage
  Index saved_step_ = -1;
  bool failed_ = false;
  std::vector<StateConversion> conversions_;    ///< of the run so far
  std::vector<std::filesystem::path> damaged_;  ///< those of this folder that loading has found

  // Of the current or last save.
  bool is_pending_ = false;
  Clock::time_point begin_;
  CheckpointRecord record_;
  std::optional<double> loss_;
  std::filesystem::path temporary_folder_;  ///< where ranks write
  detail::CheckpointWriter writer_;
  std::thread pruner_;
  std::string prune_error_;
};

}  // namespace octavo
