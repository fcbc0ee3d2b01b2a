// Checkpoints as files: whole or not at all, whatever fails, and found to be damaged if they are.
#include <octavo/checkpoint/checkpoints.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/state_stub.hpp"
#include "support/temporary_folder.hpp"

namespace checkpoint_folder_test {

/// What goes wrong with the system's calls, of those that save files.
struct Fault {
  std::atomic<int> calls_left{-1};  ///< until the one that fails; below 0: none does
  std::atomic<int> error{0};
  std::atomic<bool> takes_parts{false};  ///< of what is to be written, the first half
  std::atomic<bool> flips{false};        ///< a bit of what tensors' files are written with
  std::atomic<bool> flips_text{false};   ///< a bit of a manifest
  std::string read_only{};               ///< folder in which nothing can be written; "": none

  /// Whether this call is the one.
  bool comes() {
    if (calls_left < 0 || calls_left-- != 0) return false;
    errno = error;
    return true;
  }
  /// Whether this is a call for a path where nothing can be written.
  [[nodiscard]] bool refuses(const char* path) const {
    if (read_only.empty() || !std::string(path).starts_with(read_only + '/')) return false;
    errno = EROFS;
    return true;
  }
  /// How many of these bytes are written.
  [[nodiscard]] std::size_t taken(std::size_t count) const {
    return takes_parts ? (count + 1) / 2 : count;
  }
  /// Those that are written.
  [[nodiscard]] std::string written(const void* bytes, std::size_t count) const {
    std::string content(static_cast<const char*>(bytes), count);
    const bool is_text = content.starts_with("{\"format\"");
    const bool is_tensor = content.size() >= std::size_t{support::StateStub::elements};
    if ((flips && is_tensor && !is_text) || (flips_text && is_text)) content.back() ^= 1;
    return content;
  }
};
Fault fault;

}  // namespace checkpoint_folder_test

// Calls of this program go here, in place of the C library's: the names are the linker's.
extern "C" {
int faulty_open(const char* path, int flags, ...) __asm__("open");
ssize_t faulty_write(int file, const void* bytes, std::size_t count) __asm__("write");
ssize_t faulty_pwrite(int file, const void* bytes, std::size_t count, off_t at) __asm__("pwrite");
int faulty_fsync(int file) __asm__("fsync");
int faulty_close(int file) __asm__("close");
int faulty_rename(const char* from, const char* to) __asm__("rename");
int faulty_mkdir(const char* path, mode_t mode) __asm__("mkdir");

int faulty_open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  if (checkpoint_folder_test::fault.comes()) return -1;
  const bool writes = (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0;
  if (writes && checkpoint_folder_test::fault.refuses(path)) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
ssize_t faulty_write(int file, const void* bytes, std::size_t count) {
  if (checkpoint_folder_test::fault.comes()) return -1;
  const std::string content =
      checkpoint_folder_test::fault.written(bytes, checkpoint_folder_test::fault.taken(count));
  return ::syscall(SYS_write, file, content.data(), content.size());
}
ssize_t faulty_pwrite(int file, const void* bytes, std::size_t count, off_t at) {
  if (checkpoint_folder_test::fault.comes()) return -1;
  const std::string content =
      checkpoint_folder_test::fault.written(bytes, checkpoint_folder_test::fault.taken(count));
  return ::syscall(SYS_pwrite64, file, content.data(), content.size(), at);
}
int faulty_fsync(int file) {
  if (checkpoint_folder_test::fault.comes()) return -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}
int faulty_close(int file) {
  const long result = ::syscall(SYS_close, file);
  return checkpoint_folder_test::fault.comes() ? -1 : static_cast<int>(result);
}
int faulty_rename(const char* from, const char* to) {
  if (checkpoint_folder_test::fault.comes()) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int faulty_mkdir(const char* path, mode_t mode) {
  if (checkpoint_folder_test::fault.comes()) return -1;
  if (checkpoint_folder_test::fault.refuses(path)) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
}

namespace checkpoint_folder_test {

namespace fs = std::filesystem;
using namespace octavo;
using support::StateStub;

class Checkpoint : public support::TemporaryFolder {
 protected:
  /// What became of saves.
  using Records = std::vector<CheckpointRecord>;

  static Checkpoints::SaveCallback to(Records& records) {
    return [&records](const CheckpointRecord& record) { records.push_back(record); };
  }

  /// Saves one state after the other.
  void save_steps(const std::vector<Index>& steps, const CheckpointsToKeep& keep = {},
                  const std::vector<double>& losses = {}) {
    StateStub session;
    Records records;
    Checkpoints checkpoints({.folder = folder_, .keep = keep}, session, to(records));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      session.set(steps[i]);
      checkpoints.save(steps[i], {}, i < losses.size() ? std::optional(losses[i]) : std::nullopt);
    }
    checkpoints.finish();
    ASSERT_EQ(records.size(), steps.size());
    for (const CheckpointRecord& record : records) EXPECT_EQ(record.error, "");
  }

  /// Flips a bit of a file, whose length stays.
  static void flip_a_bit(const fs::path& file) {
    std::string bytes = content(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    std::ofstream(file, std::ios::binary) << bytes;
  }

  [[nodiscard]] std::vector<Index> steps_there() const {
    std::vector<Index> steps;
    for (const ListedCheckpoint& one : list_checkpoints(folder_)) {
      EXPECT_EQ(one.problem, "") << one.path;
      steps.push_back(one.step);
    }
    return steps;
  }

  [[nodiscard]] fs::path newest() const {
    return newest_checkpoint(folder_, [](const ListedCheckpoint&) {});
  }

  /// The error of loading the newest; the session stays as it was.
  [[nodiscard]] static std::string refusal(const fs::path& path, StateStub& session,
                                           OtherRecipes others = OtherRecipes::refused) {
    session.set(999);
    try {
      load_checkpoint(path, session, {}, others);
    } catch (const Error& error) {
      EXPECT_EQ(session.step_of_state(), 999) << "something was written";
      return error.what();
    }
    return "it was loaded";
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Checkpoint, LoadsWhatWasSaved) {
  save_steps({3, 12});
  EXPECT_EQ(newest().filename(), "step-00000012");
  StateStub session;
  const CheckpointManifest manifest = load_checkpoint(newest(), session);
  EXPECT_EQ(session.step_of_state(), 12);
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.version, version_string);
  const std::string text = content(newest() / "manifest.json");
  EXPECT_TRUE(contains(text, "\"optimizer.steps\":12")) << text;
  load_checkpoint(folder_ / "step-00000003", session);
  EXPECT_EQ(session.step_of_state(), 3);
}

// A file that they came from may be lost or another by the time that a run goes on.
TEST_F(Checkpoint, StoresGemmPlans) {
  StateStub session;
  session.plans.resize(2);
  for (std::size_t i = 0; i < session.plans.size(); ++i) {
    session.plans[i].library = {"NVIDIA_H200", 132, 130100};
    session.plans[i].key.m = session.plans[i].key.n = session.plans[i].key.k = 1;
    session.plans[i].algorithm.fill(i);
  }
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  checkpoints.save(1);
  checkpoints.finish();
  EXPECT_EQ(read_gemm_plans(load_checkpoint(newest(), session).gemm_plans, "plans"), session.plans);
  session.plans.clear();
  checkpoints.save(2);
  checkpoints.finish();
  EXPECT_EQ(load_checkpoint(newest(), session).gemm_plans, "") << "nothing was chosen";
}

// Bits hang on them.
TEST_F(Checkpoint, StoresLibraryVersions) {
  StateStub session;
  session.own_facts().libraries = "a GPU, CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0";
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  checkpoints.save(1);
  checkpoints.finish();
  EXPECT_EQ(load_checkpoint(newest(), session).libraries, session.own_facts().libraries);
  session.own_facts().libraries.clear();
  checkpoints.save(2);
  checkpoints.finish();
  EXPECT_EQ(load_checkpoint(newest(), session).libraries, "") << "it computed with none";
  EXPECT_FALSE(contains(content(newest() / "manifest.json"), "libraries"));
}

TEST_F(Checkpoint, StoresRunLength) {
  StateStub session;
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  checkpoints.save(1);
  checkpoints.finish();
  EXPECT_EQ(load_checkpoint(newest(), session).run_length, session.facts().run_shape.tokens);
}

TEST_F(Checkpoint, StoresStateAtTimeOfRequest) {
  StateStub session;
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  session.set(5);
  checkpoints.save(5);
  session.set(6);
  while (records.empty()) checkpoints.after_step();
  EXPECT_GT(records[0].bytes, 5u * StateStub::elements);
  EXPECT_EQ(records[0].path, newest());
  load_checkpoint(newest(), session);
  EXPECT_EQ(session.step_of_state(), 5);
  checkpoints.save(5);
  checkpoints.finish();
  EXPECT_EQ(records.size(), 1u) << "what is there was saved again";
}

// Ranks decide alike: steps of some must not differ from those of others.
TEST_F(Checkpoint, SavesSynchronouslyWithoutMemoryForCopy) {
  for (const int poor : {-1, 1}) {
    const fs::path folder = folder_ / std::to_string(poor);
    support::on_ranks(2, [&](support::ThreadComm& communicator) {
      StateStub session(&communicator);
      if (communicator.rank() == poor) session.fail_allocations();
      Records records;
      Checkpoints checkpoints({.folder = folder}, session, to(records));
      session.set(5);
      checkpoints.save(5);
      session.set(6);
      checkpoints.finish();
      EXPECT_EQ(session.readings(), poor < 0 ? 1 : 0);
      EXPECT_EQ(records.back().error, "");
      const std::string warning = records.front().warning;
      EXPECT_EQ(contains(warning, "rank 1: the host has "), poor == 1) << warning;
      EXPECT_EQ(contains(warning, "the run waits until each checkpoint is written"), poor == 1);
    });
    support::on_ranks(1, [&](support::ThreadComm& communicator) {
      StateStub session(&communicator);
      load_checkpoint(folder / "step-00000005", session);
      EXPECT_EQ(session.step_of_state(), 5);
    });
  }
}

// There may be memory for a copy no more, or for no other beside it.
TEST_F(Checkpoint, LoadsWithoutPinnedMemory) {
  save_steps({5});
  StateStub session;
  session.fail_allocations();
  load_checkpoint(newest(), session);
  EXPECT_EQ(session.step_of_state(), 5);
}

TEST_F(Checkpoint, RemovesOldCheckpointsByRetentionOptions) {
  save_steps({10, 20, 30, 40, 50, 60});
  EXPECT_EQ(steps_there(), (std::vector<Index>{50, 60}));
  save_steps({70, 80, 90, 100, 110, 120, 130}, {.last = 3, .every = 50, .best = true},
             {2.0, 1.0, 1.5, 1.7});
  EXPECT_EQ(steps_there(), (std::vector<Index>{50, 80, 100, 110, 120, 130}));
}

// JSON has no such numbers, so its manifest has no loss.
TEST_F(Checkpoint, IsCompleteWithNonFiniteLoss) {
  const double infinity = std::numeric_limits<double>::infinity();
  save_steps({10, 20}, {}, {std::numeric_limits<double>::quiet_NaN(), infinity});
  EXPECT_EQ(steps_there(), (std::vector<Index>{10, 20}));
  StateStub session;
  EXPECT_FALSE(load_checkpoint(newest(), session).validation_loss.has_value());
}

// Of those that were evaluated on the newest's data: other losses say nothing beside them.
TEST_F(Checkpoint, ComparesBestOnlyWithinSameValidation) {
  const auto save = [&](const std::string& validation, Index step, double loss) {
    StateStub session;
    Records records;
    Checkpoints checkpoints({.folder = folder_, .keep = {.best = true}, .validation = validation},
                            session, to(records));
    checkpoints.save(step, {}, loss);
    checkpoints.finish();
    EXPECT_EQ(records.back().error + records.back().warning, "");
  };
  for (const Index step : {1, 2, 3, 4}) save("easy", step, 1.0 + 0.1 * static_cast<double>(step));
  EXPECT_EQ(steps_there(), (std::vector<Index>{1, 3, 4}));
  for (const Index step : {5, 6, 7}) save("hard", step, 3.0 + 0.1 * static_cast<double>(step));
  EXPECT_EQ(steps_there(), (std::vector<Index>{5, 6, 7}));
  StateStub session;
  EXPECT_EQ(load_checkpoint(newest(), session).validation, "hard");
}

// The disk, or the memory before it, changes a bit, and no call fails.
TEST_F(Checkpoint, SaveFailsIfReadBackIsDamaged) {
  save_steps({1, 2});
  StateStub session;
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  Index step = 3;
  for (std::atomic<bool>* flips : {&fault.flips, &fault.flips_text}) {
    *flips = true;
    checkpoints.save(step++);
    checkpoints.finish();
    *flips = false;
    ASSERT_EQ(records.size(), 1u);
    EXPECT_TRUE(contains(records[0].error, flips == &fault.flips ? "rank-00000.safetensors: has "
                                                                 : "manifest.json: has "))
        << records[0].error;
    EXPECT_TRUE(contains(records[0].error, "the disk or the memory damaged it"));
    EXPECT_TRUE(checkpoints.failed());
    EXPECT_EQ(steps_there(), (std::vector<Index>{1, 2}));
    EXPECT_EQ(entries(), 3) << "two checkpoints and the lock";
    records.clear();
  }
  // The next one that is whole replaces the oldest.
  checkpoints.save(5);
  checkpoints.finish();
  EXPECT_EQ(records.at(0).error + records.at(0).warning, "");
  EXPECT_FALSE(checkpoints.failed());
  EXPECT_EQ(steps_there(), (std::vector<Index>{2, 5}));
}

TEST_F(Checkpoint, RejectsDataDamagedAfterSave) {
  save_steps({1, 2});
  const fs::path file = newest() / "rank-00000.safetensors";
  std::string bad = content(file);
  bad.back() = static_cast<char>(bad.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bad;
  StateStub session;
  EXPECT_TRUE(contains(refusal(newest(), session), file.string() + ": has "));
  EXPECT_THROW(load_checkpoint(newest(), session), DamagedCheckpointError);
}

TEST_F(Checkpoint, HandlesPartialWrites) {
  fault.takes_parts = true;
  save_steps({5});
  fault.takes_parts = false;
  StateStub session;
  load_checkpoint(newest(), session);
  EXPECT_EQ(session.step_of_state(), 5);
}

// As one that was saved by another user, or lies on a disk for reading.
TEST_F(Checkpoint, ResumesFromReadOnlyFolderElsewhere) {
  save_steps({1});
  StateStub session;
  const auto make = [&](const fs::path& folder) {
    return std::make_unique<Checkpoints>(CheckpointOptions{.folder = folder}, session,
                                         [](const CheckpointRecord&) {});
  };
  fault.read_only = folder_.string();
  try {
    make(folder_);
    ADD_FAILURE() << "it was taken";
  } catch (const IoError& error) {
    EXPECT_TRUE(contains(error.what(), (folder_ / ".lock").string() + ": cannot be written: "))
        << error.what();
  }
  const fs::path elsewhere = folder_.string() + "_elsewhere";
  {
    const auto checkpoints = make(elsewhere);
    EXPECT_EQ(checkpoints->resume(newest()).step, 1);
    session.set(2);
    checkpoints->save(2);
    checkpoints->finish();
    EXPECT_FALSE(checkpoints->failed());
  }
  fault.read_only.clear();
  EXPECT_EQ(list_checkpoints(elsewhere).size(), 1u);
  EXPECT_EQ(steps_there(), (std::vector<Index>{1}));
  fs::remove_all(elsewhere);
}

TEST_F(Checkpoint, RejectsInvalidOptions) {
  StateStub session;
  const auto make = [&](const CheckpointOptions& options) {
    Checkpoints(options, session, [](const CheckpointRecord&) {});
  };
  EXPECT_THROW(make({.folder = folder_, .every = -1}), ConfigError);
  EXPECT_THROW(make({.folder = folder_, .keep = {.last = 1}}), ConfigError);
  EXPECT_THROW(make({.folder = folder_, .keep = {.every = -1}}), ConfigError);
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(make({.folder = folder_ / "file" / "checkpoints"}), IoError);
  EXPECT_NO_THROW(make({.folder = folder_}));
}

TEST_F(Checkpoint, RejectsSecondRunInSameFolder) {
  StateStub session;
  const auto ignore = [](const CheckpointRecord&) {};
  {
    const Checkpoints first({.folder = folder_}, session, ignore);
    EXPECT_THROW(Checkpoints({.folder = folder_}, session, ignore), ConfigError);
  }
  EXPECT_NO_THROW(Checkpoints({.folder = folder_}, session, ignore));
}

TEST_F(Checkpoint, SkipsAndRemovesInterruptedSaves) {
  save_steps({10});
  fs::create_directory(folder_ / "step-00000020");
  fs::create_directory(folder_ / ".step-00000030.tmp-1");
  fs::create_directory(folder_ / "notes");
  std::vector<std::string> skipped;
  const fs::path found = newest_checkpoint(folder_, [&](const ListedCheckpoint& one) {
    skipped.push_back(one.path.filename().string() + " " + one.problem);
  });
  EXPECT_EQ(found.filename(), "step-00000010");
  EXPECT_EQ(skipped,
            (std::vector<std::string>{"step-00000020 has no manifest.json",
                                      ".step-00000030.tmp-1 left by an interrupted save"}));
  StateStub session;
  Records records;
  const Checkpoints checkpoints({.folder = folder_}, session, to(records));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(contains(records[0].warning, "removed")) << records[0].warning;
  EXPECT_FALSE(fs::exists(folder_ / ".step-00000030.tmp-1"));
  EXPECT_TRUE(fs::exists(folder_ / "notes"));
  EXPECT_TRUE(contains(refusal(folder_ / "step-00000020", session), "has no manifest.json"));
}

TEST_F(Checkpoint, ResumesOnlyFromNewestInOwnFolder) {
  save_steps({10, 20});
  StateStub session;
  Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
  EXPECT_THROW(checkpoints.resume(folder_ / "step-00000010"), ConfigError);
  EXPECT_EQ(checkpoints.resume(folder_ / "step-00000020").step, 20);
  EXPECT_EQ(session.step_of_state(), 20);
  checkpoints.save(20);
  checkpoints.finish();
  EXPECT_FALSE(checkpoints.failed()) << "it is there already";
  // Another run may.
  Checkpoints other({.folder = folder_ / "other"}, session, [](const CheckpointRecord&) {});
  EXPECT_EQ(other.resume(folder_ / "step-00000010").step, 10);
  other.save(10);
  other.finish();
  EXPECT_EQ(list_checkpoints(folder_ / "other").size(), 1u);
}

// Moved to another disk, for example.
TEST_F(Checkpoint, AcceptsSymlinkedCheckpoint) {
  save_steps({10, 20});
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::rename(folder_ / "step-00000020", elsewhere);
  fs::create_directory_symlink(elsewhere, folder_ / "step-00000020");
  StateStub session;
  Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
  EXPECT_EQ(checkpoints.resume(newest()).step, 20);
  for (const Index step : {20, 30, 40}) checkpoints.save(step);
  checkpoints.finish();
  EXPECT_FALSE(checkpoints.failed());
  EXPECT_EQ(steps_there(), (std::vector<Index>{30, 40}));
  EXPECT_TRUE(fs::exists(elsewhere / "manifest.json")) << "only the link is removed";
}

TEST_F(Checkpoint, DetectsEveryFlippedBit) {
  save_steps({7});
  StateStub session;
  for (const char* name : {"manifest.json", "rank-00000.safetensors"}) {
    const fs::path file = newest() / name;
    const std::string good = content(file);
    for (std::size_t bit = 0; bit < 8 * good.size(); bit += bit < 256 ? 7 : 997) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      std::ofstream(file, std::ios::binary) << bad;
      const std::string said = refusal(folder_ / "step-00000007", session);
      ASSERT_TRUE(contains(said, name)) << "bit " << bit << ": " << said;
    }
    std::ofstream(file, std::ios::binary) << good;
  }
  EXPECT_EQ(refusal(newest(), session), "it was loaded");
}

// As someone could make one, with checksums that fit.
TEST_F(Checkpoint, RejectsOverflowingShapes) {
  const auto read = [&](const std::string& shape, const std::string& whole,
                        const std::string& begin) -> std::string {
    const std::string description = "{\"format\":\"fp32\",\"shape\":" + shape +
                                    ",\"whole\":" + whole + ",\"begin\":" + begin + "}";
    SafetensorsWriter writer(folder_ / "file", {}, {{"octavo.entry.weight", description}});
    writer.commit();
    try {
      const detail::StateFile file(folder_ / "file");
      return file.entries().front().name;
    } catch (const IoError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(read("[2,3]", "[4,3]", "6"), "weight");
  const std::string most = std::to_string(std::numeric_limits<Index>::max());
  for (const std::string& said :
       {read("[" + most + ",3]", "[4,3]", "0"), read("[2,3]", "[3," + most + "]", "0"),
        read("[2,3]", "[4,3]", most)}) {
    EXPECT_TRUE(contains(said, "weight: ") && contains(said, "than can be counted")) << said;
  }
}

TEST_F(Checkpoint, RejectsInvalidManifest) {
  save_steps({7});
  const fs::path folder = newest();
  std::string good = content(folder / "manifest.json");
  good.resize(good.size() - detail::manifest_end("").size());
  const auto refused_with = [&](const std::string& part, const std::string& other) {
    std::string text = good;
    text.replace(text.find(part), part.size(), other);
    std::ofstream(folder / "manifest.json", std::ios::binary) << text + detail::manifest_end(text);
    StateStub session;
    return refusal(folder, session);
  };
  const std::string file = "rank-00000.safetensors";
  for (const std::string& name :
       {"../step-00000007/" + file, std::string(".."), std::string(".")}) {
    const std::string elsewhere = refused_with(file, name);
    EXPECT_TRUE(contains(elsewhere, "is not the name of a file")) << elsewhere;
  }
  const std::string entry = good.substr(good.find("{\"name\""));
  const std::string one = entry.substr(0, entry.find('}') + 1);
  const std::string twice = refused_with(one, one + "," + one);
  EXPECT_TRUE(contains(twice, "the file '" + file + "' is listed twice")) << twice;
  const std::string ranks = refused_with("\"ranks\":1", "\"ranks\":4294967297");
  EXPECT_TRUE(contains(ranks,
                       "in ranks: 4294967297 is not a whole number from 0 to 2147483647; use "
                       "another checkpoint"))
      << ranks;
  const std::string libraries = refused_with("\"zero\":1", "\"zero\":1,\"libraries\":[]");
  EXPECT_TRUE(contains(libraries, "libraries")) << libraries;
  const std::string checksum = refused_with("\"crc32c\":\"", "\"crc32c\":\"0");
  EXPECT_TRUE(contains(checksum, "is not a checksum of eight")) << checksum;
  EXPECT_EQ(refused_with("\"ranks\":1", "\"ranks\":1"), "it was loaded");
}

TEST_F(Checkpoint, DetectsTruncatedOrMissingFile) {
  save_steps({7, 8});
  const fs::path file = newest() / "rank-00000.safetensors";
  StateStub session;
  const auto size = fs::file_size(file);
  for (const auto other : {std::uintmax_t{0}, std::uintmax_t{7}, size - 1, size + 1}) {
    fs::resize_file(file, other);
    EXPECT_TRUE(contains(refusal(folder_ / "step-00000008", session), file.string())) << other;
    EXPECT_EQ(newest().filename(), "step-00000007");
  }
  fs::remove(file);
  EXPECT_TRUE(contains(refusal(folder_ / "step-00000008", session), file.string()));
  EXPECT_EQ(newest().filename(), "step-00000007");
}

// The newest is damaged, so the run goes on from the one before, and comes to its step again.
TEST_F(Checkpoint, FallsBackToOlderCompleteCheckpoint) {
  save_steps({7, 8});
  fs::resize_file(newest() / "rank-00000.safetensors", 100);
  ASSERT_EQ(newest().filename(), "step-00000007");
  StateStub session;
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  checkpoints.resume(newest());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(contains(records[0].warning, "renamed to damaged-step-00000008"));
  EXPECT_EQ(fs::file_size(folder_ / "damaged-step-00000008/rank-00000.safetensors"), 100u);
  session.set(8);
  checkpoints.save(8);
  checkpoints.finish();
  EXPECT_FALSE(checkpoints.failed());
  EXPECT_EQ(steps_there(), (std::vector<Index>{7, 8}));
  EXPECT_EQ(refusal(newest(), session), "it was loaded");
  EXPECT_EQ(session.step_of_state(), 8);
  // A whole one stays.
  checkpoints.save(7);
  checkpoints.finish();
  EXPECT_TRUE(contains(records.back().error, "already exists")) << records.back().error;
}

// Its length is as it was, so only loading it finds the damage.
TEST_F(Checkpoint, ResumesFromCheckpointBeforeCorruptedNewest) {
  save_steps({7, 8});
  flip_a_bit(folder_ / "step-00000008/rank-00000.safetensors");
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    StateStub session(&communicator);
    Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
    EXPECT_THROW(checkpoints.resume(folder_ / "step-00000007"), ConfigError);
    EXPECT_THROW(checkpoints.resume(folder_ / "step-00000008"), DamagedCheckpointError);
    EXPECT_TRUE(fs::exists(folder_ / "step-00000008")) << "it may be all that is left";
    EXPECT_EQ(checkpoints.resume(folder_ / "step-00000007").step, 7);
  });
  EXPECT_EQ(steps_there(), std::vector<Index>{7});
  EXPECT_TRUE(fs::exists(folder_ / "damaged-step-00000008"));
}

TEST_F(Checkpoint, KeepsNonCheckpointUnderStepName) {
  save_steps({7, 8});
  StateStub session;
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  const fs::path taken = folder_ / "step-00000009";
  const std::vector<std::function<void()>> ways{
      [&] { fs::create_directory(taken); }, [&] { std::ofstream(taken) << "notes"; },
      [&] { fs::create_symlink("nowhere", taken); },
      [&] { fs::copy(folder_ / "step-00000007", taken); }};
  for (const auto& make : ways) {
    make();
    const auto type = fs::symlink_status(taken).type();
    EXPECT_THROW(checkpoints.require_free_after(8), ConfigError);
    EXPECT_THROW(checkpoints.resume(folder_ / "step-00000008"), ConfigError);
    EXPECT_NO_THROW(checkpoints.require_free_after(9));
    checkpoints.save(9);
    checkpoints.finish();
    EXPECT_TRUE(checkpoints.failed());
    EXPECT_TRUE(contains(records.back().error, taken.string() + ": already exists"));
    EXPECT_EQ(fs::symlink_status(taken).type(), type);
    EXPECT_TRUE(fs::exists(folder_ / "step-00000007") && fs::exists(folder_ / "step-00000008"));
    fs::remove_all(taken);
  }
  checkpoints.save(9);
  checkpoints.finish();
  EXPECT_FALSE(checkpoints.failed());
}

TEST_F(Checkpoint, IgnoresAndKeepsRenamedCopies) {
  save_steps({10, 20});
  for (const char* name : {"step-00000025", "step-20", "step-00000020.bak", ".step-00000020.bak"}) {
    fs::copy(folder_ / "step-00000020", folder_ / name);
  }
  EXPECT_EQ(newest().filename(), "step-00000020");
  StateStub session;
  EXPECT_TRUE(contains(refusal(folder_ / "step-00000025", session), "is of step 20"));
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  fs::rename(folder_ / "step-00000025", folder_ / "step-00000005");
  checkpoints.resume(newest());
  for (const Index step : {30, 40, 50}) checkpoints.save(step);
  checkpoints.finish();
  for (const char* name : {"step-00000005", "step-20", "step-00000020.bak", ".step-00000020.bak",
                           "step-00000040", "step-00000050"}) {
    EXPECT_TRUE(fs::exists(folder_ / name / "manifest.json")) << name;
  }
  for (const char* name : {"step-00000010", "step-00000020", "step-00000030"}) {
    EXPECT_FALSE(fs::exists(folder_ / name)) << name;
  }
}

// Octavo 0.1.0 wrote "fp8 delayed", in the manifest and among the state.
TEST_F(Checkpoint, ReadsEarlierNamesOfRecipes) {
  const std::string earlier = "first 1 bf16, fp8 delayed, head fp8 rowwise";
  const std::string now = "first 1 bf16, fp8-delayed, head fp8-rowwise";
  StateStub session;
  session.own_facts().precision = earlier;
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  session.set(7);
  checkpoints.save(7, {text_entry("session.recipe", earlier)});
  checkpoints.finish();
  StateStub other;
  other.own_facts().precision = now;
  const CheckpointManifest manifest =
      load_checkpoint(newest(), other, {text_entry("session.recipe", now)});
  EXPECT_EQ(manifest.recipe, now);
  EXPECT_EQ(other.step_of_state(), 7);
}

TEST_F(Checkpoint, RejectsCheckpointOfDifferentRun) {
  save_steps({7});
  const auto refused = [&](const auto& change) {
    StateStub session;
    change(session);
    return refusal(newest(), session);
  };
  EXPECT_TRUE(contains(refused([](StateStub& s) { s.set_model("other"); }),
                       "its model is stub, but that of this run is other"));
  EXPECT_TRUE(contains(refused([](StateStub& s) { s.own_facts().precision = "bf16"; }),
                       "its recipe is fp8 of a stub, but that of this run is bf16"));
  EXPECT_TRUE(contains(refused([](StateStub& s) { s.own_facts().optimizer = "SGD"; }),
                       "its optimizer is AdamW of a stub, but that of this run is SGD"));
  StateStub other;
  other.own_facts().precision = "bf16";
  try {
    load_checkpoint(newest(), other);
    ADD_FAILURE() << "it was loaded";
  } catch (const StateMismatchError& error) {
    EXPECT_EQ(error.subject(), "recipe");
    EXPECT_EQ(error.saved(), "fp8 of a stub");
  }
  support::on_ranks(2, [&](support::ThreadComm& ranks) {
    StateStub session(&ranks, 2);
    session.own_facts().precision = "bf16";
    const auto refused_to_convert =
        refusal(folder_ / "step-00000007", session, OtherRecipes::converted);
    EXPECT_TRUE(contains(refused_to_convert, "share each layer is 1"));
  });
}

TEST_F(Checkpoint, RejectsDifferentEntriesByName) {
  StateStub session;
  std::int64_t number = 4;
  Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
  checkpoints.save(1, {number_entry("data.number", number), text_entry("data.source", "text 1")});
  checkpoints.finish();
  const auto refused = [&](std::vector<StateEntry> more) -> std::string {
    try {
      load_checkpoint(newest(), session, std::move(more));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "it was loaded";
  };
  EXPECT_TRUE(contains(refused({text_entry("data.source", "text 1")}), "has data.number"));
  const std::string said =
      refused({number_entry("data.number", number), text_entry("data.source", "text 2")});
  EXPECT_TRUE(contains(said, "data.source is text 1 in the checkpoint, but text 2 here; the text"))
      << said;
  EXPECT_TRUE(
      contains(refused({number_entry("data.number", number), text_entry("data.source", "text 1"),
                        number_entry("data.other", number)}),
               "has no data.other"));
  number = 5;
  EXPECT_EQ(refused({number_entry("data.number", number), text_entry("data.source", "text 1")}),
            "it was loaded");
  EXPECT_EQ(number, 4);
}

// Ranks that share the work in whatever way.
TEST_F(Checkpoint, ResumesWithOtherRankCount) {
  const auto save_with = [&](int ranks, Index step) {
    support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
      StateStub session(&communicator);
      Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
      session.set(step);
      checkpoints.save(step);
      checkpoints.finish();
      EXPECT_FALSE(checkpoints.failed());
    });
  };
  Index step = 0;
  for (const int before : {1, 2, 4}) {
    save_with(before, ++step);
    const fs::path path = newest();
    // What all have is there once.
    std::uintmax_t bytes = 0;
    for (const auto& file : fs::directory_iterator(path)) bytes += file.file_size();
    EXPECT_LT(bytes, 6u * StateStub::elements + 3000u * static_cast<unsigned>(before));
    for (const int after : {1, 2, 4, 8}) {
      support::on_ranks(after, [&](support::ThreadComm& communicator) {
        StateStub session(&communicator);
        load_checkpoint(path, session);
        EXPECT_EQ(session.step_of_state(), step) << before << " ranks, then " << after;
      });
    }
  }
}

TEST_F(Checkpoint, StoresAllPartsOfShardedState) {
  support::on_ranks(4, [&](support::ThreadComm& communicator) {
    StateStub session(&communicator, 2);
    Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
    session.set(3);
    checkpoints.save(3);
    checkpoints.finish();
    session.set(4);
    load_checkpoint(folder_ / "step-00000003", session);
    EXPECT_EQ(session.step_of_state(), 3);
  });
}

TEST_F(Checkpoint, FailureOfOneRankFailsAll) {
  support::on_ranks(3, [&](support::ThreadComm& communicator) {
    StateStub session(&communicator);
    Records records;
    Checkpoints checkpoints({.folder = folder_}, session, to(records));
    const auto save = [&](Index step, bool fails) {
      session.set(step);
      session.fail(fails && communicator.rank() == 1);
      checkpoints.save(step);
      checkpoints.finish();
    };
    save(1, false);
    save(2, true);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[1].error, communicator.rank() == 1 ? "the state cannot be read"
                                                         : "rank 1: the state cannot be read");
    EXPECT_TRUE(checkpoints.failed());
    save(3, false);
    EXPECT_FALSE(checkpoints.failed());
  });
  EXPECT_EQ(steps_there(), (std::vector<Index>{1, 3}));
}

// A file that is missing on one rank's watch.
TEST_F(Checkpoint, DamageFoundByOneRankFailsAll) {
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    StateStub session(&communicator);
    Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
    checkpoints.save(1);
    checkpoints.finish();
  });
  const fs::path file = newest() / "rank-00001.safetensors";
  std::string bad = content(file);
  bad.back() = static_cast<char>(bad.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bad;
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    StateStub session(&communicator);
    EXPECT_TRUE(contains(refusal(folder_ / "step-00000001", session), "rank-00001.safetensors"));
  });
}

TEST_F(Checkpoint, PreviousCheckpointSurvivesAnyFailingCall) {
  for (const int error : {ENOSPC, EIO}) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    StateStub session;
    Records records;
    Checkpoints checkpoints({.folder = folder_}, session, to(records));
    session.set(1);
    checkpoints.save(1);
    checkpoints.finish();
    Index last = 1;
    int failures = 0;
    bool came = true;
    for (int calls = 0; came; ++calls) {
      const Index step = 2 + calls;
      session.set(step);
      fault.error = error;
      fault.calls_left = calls;
      checkpoints.save(step);
      while (records.size() < static_cast<std::size_t>(step)) checkpoints.after_step();
      came = fault.calls_left < 0;
      fault.calls_left = -1;
      checkpoints.finish();
      const bool failed = !records[static_cast<std::size_t>(step) - 1].error.empty();
      EXPECT_EQ(checkpoints.failed(), failed);
      failures += failed ? 1 : 0;
      if (!failed) last = step;
      load_checkpoint(newest(), session);
      ASSERT_EQ(session.step_of_state(), last) << "call " << calls;
      std::erase_if(records,
                    [](const CheckpointRecord& record) { return !record.warning.empty(); });
    }
    EXPECT_GT(failures, 10);
    EXPECT_EQ(records.back().error, "") << "a save of which no call fails";
  }
}

TEST_F(Checkpoint, ReportsInsufficientDiskSpace) {
  if (!mount_small_disk()) GTEST_SKIP() << "mounting a disk needs privileges";
  StateStub session;
  std::vector<std::byte> large(1 << 20);
  StateEntry entry = text_entry("large", "8-bit");
  entry.bytes = large.size();
  entry.shape = entry.whole = {1 << 20};
  Records records;
  Checkpoints checkpoints({.folder = folder_}, session, to(records));
  checkpoints.save(1, {entry});
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(contains(records[0].error, ": a checkpoint needs 1.0 MiB, but ")) << records[0].error;
  EXPECT_TRUE(contains(records[0].error, " KiB are free on the disk; free disk space"))
      << records[0].error;
  EXPECT_TRUE(list_checkpoints(folder_).empty());
}

/// Until a run has `keep.last` checkpoints, a save removes none; after that, it removes one at the
/// end.
TEST_F(Checkpoint, WarnsBeforeFirstStepOfLittleRoom) {
  if (!mount_small_disk()) GTEST_SKIP() << "mounting a disk needs privileges";
  StateStub session;
  std::uint64_t state = 0;
  for (const StateEntry& entry : session.state().entries()) state += entry.bytes;
  // Leaves room for the state so many times, but not once more.
  const auto leave = [&](std::uint64_t times) {
    constexpr std::uint64_t page = 4096;
    const std::uint64_t room = (times * state / page + 1) * page;
    ASSERT_LT(room, (times + 1) * state);
    fs::remove(folder_ / "other");
    std::ofstream(folder_ / "other") << std::string(free_disk_bytes(folder_) - room, '.');
    ASSERT_EQ(free_disk_bytes(folder_), room);
  };
  const CheckpointOptions options{.folder = folder_, .keep = {.last = 4}};
  const auto warning = [&](Index saves) {
    Records records;
    Checkpoints checkpoints(options, session, to(records));
    checkpoints.warn_of_little_room(saves);
    return records.empty() ? "" : records.back().warning;
  };
  EXPECT_EQ(warning(100), "");
  leave(4);
  for (const Index saves : {0, 1, 4}) EXPECT_EQ(warning(saves), "");
  for (const Index saves : {5, 100}) {
    EXPECT_TRUE(contains(warning(saves), "the next 5 checkpoints need ")) << warning(saves);
  }
  fs::remove(folder_ / "other");
  save_steps({1, 2});
  leave(2);
  EXPECT_EQ(warning(2), "");
  EXPECT_TRUE(contains(warning(3), "the next 3 checkpoints need ")) << warning(3);
}

/// Saves one step after the other, from the newest checkpoint on, until it is killed.
[[noreturn]] void save_until_killed(const fs::path& folder, Index step) {
  StateStub session;
  Checkpoints checkpoints({.folder = folder}, session, [](const CheckpointRecord& record) {
    if (!record.error.empty()) ::_exit(1);
  });
  for (++step;; ++step) {
    session.set(step);
    checkpoints.save(step);
    checkpoints.after_step();
  }
}

// OCTAVO_TEST_KILLS=1000 for a longer test.
TEST_F(Checkpoint, SurvivesKillDuringSave) {
  const char* asked = std::getenv("OCTAVO_TEST_KILLS");
  const int kills = asked == nullptr ? 50 : std::atoi(asked);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  save_steps({1});
  // Of a few saves, of which the first one begins a little later.
  const auto longest =
      5 * std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  std::mt19937 random(5);
  Index last = 1;
  for (int i = 0; i < kills; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(folder_, last);
    std::this_thread::sleep_for(longest * (random() % 1000) / 1000);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
    StateStub session;
    const CheckpointManifest manifest = load_checkpoint(newest(), session);
    ASSERT_EQ(session.step_of_state(), manifest.step);
    ASSERT_GE(manifest.step, last);
    last = manifest.step;
  }
  EXPECT_GT(last, 1) << "no process came to the end of a save";
  std::cout << kills << " processes were killed; the last checkpoint is of step " << last << '\n';
}

}  // namespace checkpoint_folder_test
