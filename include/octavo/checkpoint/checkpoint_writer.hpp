/// @file
/// One rank's part of an asynchronous save.
#pragma once

#include <octavo/checkpoint/checkpoint_manifest.hpp>
#include <octavo/checkpoint/checkpoint_share.hpp>
#include <octavo/core/start_thread.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Copies a rank's share of the state, writes it and reads it back, on a separate thread: the next
/// step waits for the copy before it changes the state. If the host lacks the memory for the copy,
/// entries are read and written one by one, and the caller waits. Only `allocate_memory`
/// communicates with other ranks.
class CheckpointWriter {
 public:
  /// @param session  must outlive this object
  explicit CheckpointWriter(TrainingSession& session) : session_(session) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter() { join(); }

  /// Allocates memory for a copy of this rank's share of the session's state, on all ranks or on
  /// none.
  /// @return  why there is none, or ""
  std::string allocate_memory() {
    const std::vector<StateEntry> all = session_.state().entries();
    const CheckpointShare share(all, session_);
    std::size_t size = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (share.writes[i] && all[i].read_async) size += all[i].bytes;
    }
    OwnedBytes memory;
    std::string refusal;
    try {
      if (size != 0) memory = session_.state().allocate_for_reading(size);
    } catch (const MemoryError&) {
      refusal = message("the host has ", available_host_memory(),
                        " bytes of memory left, but a copy of the state takes ", size);
    }
    const auto texts = session_.ranks().texts(refusal, "memory of checkpoints");
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) return message("rank ", rank, ": ", texts[rank]);
    }
    copy_.set_memory(std::move(memory), size);
    return {};
  }

  /// Starts to write the current values of entries to a file. `digest` reports failures. All ranks
  /// call it, even if they have nothing to write.
  void begin(const std::filesystem::path& file, std::vector<StateEntry> entries) {
    file_ = file;
    error_.clear();
    is_done_ = false;
    if (!copy_.is_async()) {
      attempt([&] { copy_.copy_sync(std::move(entries)); });
      return write();
    }
    // Called first, and on all ranks even if the rest fails: it changes how their next steps run.
    session_.state().begin_reading();
    attempt([&] {
      copy_.copy_sync(std::move(entries));
      thread_ = start_thread("writing a checkpoint", [this] {
        attempt([this] { copy_.read_async(); });
        attempt([this] { session_.state().end_reading(); });
        write();
      });
    });
    if (thread_.joinable()) return;
    attempt([this] { session_.state().end_reading(); });
    is_done_ = true;
  }

  /// Returns whether the file is written and verified, or has failed.
  [[nodiscard]] bool is_done() const { return is_done_; }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  /// Returns whether this rank has anything to write.
  [[nodiscard]] bool has_entries() const { return !copy_.entries().empty(); }
  /// Returns the digest of the file. Must be called after `join`.
  /// @throws IoError  with the reason, if the save failed
  [[nodiscard]] FileDigest digest() const {
    require<IoError>(error_.empty(), error_);
    return digest_;
  }
  /// See StateCopy.
  [[nodiscard]] std::map<std::string, std::int64_t> numbers() const { return copy_.numbers(); }

 private:
  /// Keeps the first error.
  template <class Part>
  void attempt(const Part& part) {
    try {
      part();
    } catch (const std::exception& error) {
      if (error_.empty()) error_ = error.what();
    }
  }

  void write() {
    if (error_.empty()) {
      attempt([this] {
        const std::filesystem::path folder = file_.parent_path();
        require<IoError>(std::filesystem::exists(folder), folder.string(),
                         ": this rank cannot see the folder that rank 0 has created; use a file "
                         "system that all hosts share");
        if (!has_entries()) return;
        digest_ = write_state_file(file_, copy_);
        verify_file(file_, digest_, Context<Cpu>(background_threads()), ReadFrom::disk,
                    "the disk or the memory damaged it; check both");
      });
    }
    is_done_ = true;
  }

  TrainingSession& session_;
  StateCopy copy_;
  std::filesystem::path file_;
  std::thread thread_;
  std::atomic<bool> is_done_{false};
  FileDigest digest_;
  std::string error_;
};

}  // namespace octavo OCTAVO_ABI::detail
