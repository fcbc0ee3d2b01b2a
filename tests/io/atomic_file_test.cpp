#include <octavo/io/atomic_file.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace atomic_file_test {
std::atomic<bool> fails_on_folders{false};
}

// Calls of this program go here, in place of the C library's: the name is the linker's.
extern "C" {
int failing_fsync(int file) __asm__("fsync");

int failing_fsync(int file) {
  struct stat status{};
  ::fstat(file, &status);
  if (!atomic_file_test::fails_on_folders || !S_ISDIR(status.st_mode)) {
    return static_cast<int>(::syscall(SYS_fsync, file));
  }
  errno = EIO;
  return -1;
}
}

namespace atomic_file_test {

namespace fs = std::filesystem;
using octavo::IoError;
using octavo::write_file_atomically;

class AtomicFile : public support::TemporaryFolder {
 protected:
  /// The message of the IoError that writing gives; "" if there is none.
  static std::string error_of(const fs::path& path, std::string_view text) {
    try {
      write_file_atomically(path, text);
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(AtomicFile, WritesAllBytesAndNothingElse) {
  const std::string text = std::string("a\0\n", 3) + std::string(1 << 20, 'x');
  write_file_atomically(folder_ / "file", text);
  EXPECT_EQ(content(folder_ / "file"), text);
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, ReplacesAFile) {
  std::ofstream(folder_ / "file") << "a longer text that was there";
  write_file_atomically(folder_ / "file", "new");
  EXPECT_EQ(content(folder_ / "file"), "new");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, LeavesNoFileWithoutFreeDescriptors) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    {
      octavo::AtomicFile file(folder_ / "file");
      const rlimit few{32, 32};
      ::setrlimit(RLIMIT_NOFILE, &few);
      while (::dup(STDERR_FILENO) >= 0) {
      }
      try {
        file.commit();
      } catch (const IoError&) {
      }
    }
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(entries(), 0);
}

TEST_F(AtomicFile, WritesAnEmptyFile) {
  write_file_atomically(folder_ / "file", "");
  EXPECT_TRUE(fs::is_empty(folder_ / "file"));
}

TEST_F(AtomicFile, WritesARelativePath) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const std::string error = error_of("file", "text");
  fs::current_path(before);
  EXPECT_EQ(error, "");
  EXPECT_EQ(content(folder_ / "file"), "text");
}

TEST_F(AtomicFile, OpenReaderKeepsOldFile) {
  write_file_atomically(folder_ / "file", "old");
  std::ifstream reader(folder_ / "file");
  write_file_atomically(folder_ / "file", "new");
  std::string text;
  reader >> text;
  EXPECT_EQ(text, "old");
}

TEST_F(AtomicFile, ReplacesTargetOfSymlink) {
  fs::create_directory(folder_ / "data");
  std::ofstream(folder_ / "data" / "file") << "old";
  fs::create_symlink("data/file", folder_ / "link");
  write_file_atomically(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(content(folder_ / "data" / "file"), "new");
}

TEST_F(AtomicFile, WritesToAPipeDirectly) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write_file_atomically(pipe, "text");
  char bytes[8] = {};
  EXPECT_EQ(::read(reader, bytes, sizeof bytes), 4);
  ::close(reader);
  EXPECT_EQ(std::string_view(bytes), "text");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(AtomicFile, RejectsPipeWithoutReader) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string error = error_of(pipe, "text");
  EXPECT_TRUE(contains(error, "pipe: cannot be written: it is a pipe without a reader")) << error;
}

// A pipe takes 64 KiB at once.
TEST_F(AtomicFile, WaitsForTheReaderOfAPipe) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  std::atomic<bool> is_written{false};
  std::string error;
  std::thread writer([&] {
    error = error_of(pipe, std::string(300'000, 'x'));
    is_written = true;
  });
  std::vector<char> bytes(4096);
  std::size_t count = 0;
  for (ssize_t came = 0; !is_written || came > 0;) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    came = ::read(reader, bytes.data(), bytes.size());
    if (came > 0) count += static_cast<std::size_t>(came);
  }
  writer.join();
  ::close(reader);
  EXPECT_EQ(error, "");
  EXPECT_EQ(count, 300'000u);
}

TEST_F(AtomicFile, RemovesFilesOfKilledProcesses) {
  for (int i = 0; i < 3; ++i)
    std::ofstream(folder_ / octavo::message(".octavo-", ::getpid(), '-', i, ".tmp")) << "left";
  fs::create_directories(folder_ / ".octavo-7-0-weights" / "below");
  const pid_t child = ::fork();
  if (child == 0) {
    octavo::AtomicFile file(folder_ / "file");
    file.write("half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  write_file_atomically(folder_ / "file", "text");
  EXPECT_EQ(content(folder_ / "file"), "text");
  EXPECT_EQ(entries(), 1);
}

// Numbers of processes say nothing: the owner may be on another host.
TEST_F(AtomicFile, KeepsTemporaryFilesInUse) {
  octavo::AtomicFile first(folder_ / "first");
  first.write("text");
  for (const char* name : {".octavo-1-0.tmp", ".octavo-x"}) fs::create_directory(folder_ / name);
  std::ofstream(folder_ / ".other") << "hidden";
  const int folder = ::open((folder_ / ".octavo-x").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(folder, LOCK_EX), 0);
  write_file_atomically(folder_ / "second", "text");
  EXPECT_TRUE(fs::exists(folder_ / ".octavo-x"));
  EXPECT_FALSE(fs::exists(folder_ / ".octavo-1-0.tmp"));
  first.commit();
  ::close(folder);
  EXPECT_EQ(content(folder_ / "first"), "text");
  EXPECT_EQ(content(folder_ / ".other"), "hidden");
  EXPECT_EQ(entries(), 4);
}

// Of a disk that cannot say that it has the file's name.
TEST_F(AtomicFile, ThrowsWhenFolderSyncFails) {
  octavo::AtomicFile file(folder_ / "file");
  file.write("text");
  fails_on_folders = true;
  std::string error;
  try {
    file.commit();
  } catch (const octavo::IoError& failed) {
    error = failed.what();
  }
  fails_on_folders = false;
  EXPECT_TRUE(contains(error, "cannot be flushed to the disk: Input/output error")) << error;
}

TEST_F(AtomicFile, RejectsDanglingSymlink) {
  fs::create_symlink("elsewhere", folder_ / "link");
  const std::string error = error_of(folder_ / "link", "text");
  EXPECT_TRUE(contains(error,
                       "link: cannot be written: it is a link to elsewhere, which does not "
                       "exist; remove the link"))
      << error;
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, ThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 20; ++round)
        write_file_atomically(folder_ / "file", std::string(5000, static_cast<char>('a' + i)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = content(folder_ / "file");
  EXPECT_EQ(text, std::string(5000, text.at(0)));
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, ReportsMissingFolder) {
  const std::string error = error_of(folder_ / "missing" / "file", "text");
  EXPECT_TRUE(contains(error, "missing/file: cannot be written: No such file")) << error;
  EXPECT_EQ(entries(), 0);
}

TEST_F(AtomicFile, DoesNotReplaceAFolder) {
  fs::create_directory(folder_ / "folder");
  const std::string error = error_of(folder_ / "folder", "text");
  EXPECT_TRUE(contains(error, "folder: cannot be written: Is a directory")) << error;
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, ThrowsForFullDevice) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const std::string error = error_of("/dev/full", "text");
  EXPECT_TRUE(contains(error, "/dev/full: cannot be written: No space left")) << error;
}

TEST_F(AtomicFile, KeepsOnlyOldFileOnFullDisk) {
  if (!mount_small_disk()) GTEST_SKIP() << "this user may not mount a small disk";
  write_file_atomically(folder_ / "file", "old");
  const std::string error = error_of(folder_ / "file", std::string(1 << 20, 'x'));
  EXPECT_TRUE(contains(error, "file: cannot be written: No space left on device")) << error;
  EXPECT_EQ(content(folder_ / "file"), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, FailedRenameLeavesNoTemporaryFile) {
  // A name that is too long fails no earlier than at the rename: the temporary name is shorter.
  const std::string error = error_of(folder_ / std::string(300, 'n'), "text");
  EXPECT_TRUE(contains(error, "File name too long")) << error;
  EXPECT_EQ(entries(), 0);
}

}  // namespace atomic_file_test
