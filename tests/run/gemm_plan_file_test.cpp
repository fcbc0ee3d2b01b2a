#include <octavo/run/gemm_plan_file.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "support/another_user.hpp"
#include "support/temporary_folder.hpp"

namespace gemm_plan_file_test {

using namespace octavo;

GemmPlanRecord record(Index m) {
  GemmPlanRecord made;
  made.library = {"NVIDIA_H200", 132, 130100};
  made.key.m = made.key.n = made.key.k = m;
  made.algorithm.fill(static_cast<std::uint64_t>(m));
  return made;
}

class GemmPlanFile : public ::support::TemporaryFolder {
 protected:
  /// The message of the IoError that `action` throws; "" if there is none.
  template <class Action>
  static std::string error_of(const Action& action) {
    try {
      action();
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }
  void write(const std::string& content) const { std::ofstream(path()) << content; }
  [[nodiscard]] std::filesystem::path path() const { return folder_ / "gemm-plans"; }
};

TEST_F(GemmPlanFile, AccumulatesPlansOfRuns) {
  EXPECT_TRUE(load_gemm_plans(path()).empty());
  store_gemm_plans(path(), {});
  EXPECT_FALSE(std::filesystem::exists(path()));
  store_gemm_plans(path(), std::vector{record(1), record(2)});
  GemmPlanRecord newer = record(2);
  newer.algorithm.fill(9);
  store_gemm_plans(path(), std::vector{newer, record(3)});
  EXPECT_EQ(load_gemm_plans(path()), (std::vector{record(1), newer, record(3)}));
  store_gemm_plans(path(), {});
  EXPECT_EQ(load_gemm_plans(path()).size(), 3u);
}

// Its text is as long as the one before.
TEST_F(GemmPlanFile, ReplacesOlderPlanOfSameGemm) {
  store_gemm_plans(path(), std::vector{record(1)});
  GemmPlanRecord newer = record(1);
  newer.algorithm.fill(9);
  store_gemm_plans(path(), std::vector{newer});
  EXPECT_EQ(load_gemm_plans(path()), std::vector{newer});
}

TEST_F(GemmPlanFile, ReportsReadError) {
  // Opens well, but its first page cannot be read.
  const std::filesystem::path unreadable = "/proc/self/mem";
  if (!std::filesystem::exists(unreadable)) GTEST_SKIP() << "there is no " << unreadable;
  const std::string expected = "/proc/self/mem: cannot be read: Input/output error";
  EXPECT_EQ(error_of([&] { (void)load_gemm_plans(unreadable); }), expected);
  EXPECT_EQ(error_of([&] { store_gemm_plans(unreadable, std::vector{record(1)}); }), expected);
}

TEST_F(GemmPlanFile, ReportsDamageAndKeepsFile) {
  store_gemm_plans(path(), std::vector{record(1), record(2)});
  const std::string whole = content(path());
  const std::string torn = whole.substr(0, whole.size() - 5);
  write(torn);
  const std::string place = path().string() + ":3: ";
  EXPECT_EQ(error_of([&] { (void)load_gemm_plans(path()); }).find(place), 0u);
  EXPECT_EQ(error_of([&] { store_gemm_plans(path(), std::vector{record(3)}); }).find(place), 0u);
  EXPECT_EQ(content(path()), torn);
}

TEST_F(GemmPlanFile, ReportsUnreadableAndUnwritablePaths) {
  EXPECT_EQ(
      error_of([&] { (void)load_gemm_plans(folder_); }).find(folder_.string() + ": cannot be read"),
      0u);
  const auto missing = folder_ / "none" / "plans";
  EXPECT_EQ(error_of([&] {
              store_gemm_plans(missing, std::vector{record(1)});
            }).find(missing.string() + ": cannot be written"),
            0u);
}

TEST_F(GemmPlanFile, ConcurrentWritersLoseNothing) {
  constexpr Index writers = 4;
  constexpr Index rounds = 25;
  std::vector<std::thread> threads;
  for (Index writer = 0; writer < writers; ++writer) {
    threads.emplace_back([&, writer] {
      for (Index i = 0; i < rounds; ++i) {
        store_gemm_plans(path(), std::vector{record(1 + writer * rounds + i)});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto records = load_gemm_plans(path());
  EXPECT_EQ(records.size(), static_cast<std::size_t>(writers * rounds));
  for (const GemmPlanRecord& found : records) EXPECT_EQ(found, record(found.key.m));
  EXPECT_EQ(entries(), 2);  // and the lock
}

TEST_F(GemmPlanFile, StopsWaitingForHeldLock) {
  store_gemm_plans(path(), std::vector{record(1)});
  const int other = ::open((folder_ / ".gemm-plans.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  EXPECT_NE(error_of([&] {
              store_gemm_plans(path(), std::vector{record(2)}, 1);
            }).find("another program has had this lock for 1 seconds"),
            std::string::npos);
  EXPECT_EQ(load_gemm_plans(path()).size(), 1u);
  // That of its folder is not its own.
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(folder, LOCK_EX), 0);
  ::close(other);
  store_gemm_plans(path(), std::vector{record(2)}, 1);
  EXPECT_EQ(load_gemm_plans(path()).size(), 2u);
  ::close(folder);
}

TEST_F(GemmPlanFile, WaitsForLockWithinTimeout) {
  const int other = ::open((folder_ / ".gemm-plans.lock").c_str(), O_RDWR | O_CREAT, 0666);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    ::close(other);
  });
  EXPECT_EQ(error_of([&] { store_gemm_plans(path(), std::vector{record(1)}, 60); }), "");
  thread.join();
  EXPECT_EQ(load_gemm_plans(path()).size(), 1u);
}

TEST_F(GemmPlanFile, WaitsForLockOfAnotherUser) {
  namespace fs = std::filesystem;
  const fs::path lock = folder_ / ".gemm-plans.lock";
  store_gemm_plans(path(), std::vector{record(1)});
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(lock, fs::perms(0444));
  const int other = ::open(lock.c_str(), O_RDONLY);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  const ::support::AnotherUser another;
  if (!another.can_write_to(folder_)) GTEST_SKIP() << "there is no other user here";
  EXPECT_NE(error_of([&] {
              store_gemm_plans(path(), std::vector{record(2)}, 1);
            }).find("another program has had this lock for 1 seconds"),
            std::string::npos);
  ::close(other);
  store_gemm_plans(path(), std::vector{record(2)}, 1);
  EXPECT_EQ(load_gemm_plans(path()).size(), 2u);
}

TEST_F(GemmPlanFile, ReportsUnwritableLockOfAnotherUser) {
  namespace fs = std::filesystem;
  store_gemm_plans(path(), std::vector{record(1)});
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(folder_ / ".gemm-plans.lock", fs::perms(0600));
  const ::support::AnotherUser another;
  if (!another.can_write_to(folder_)) GTEST_SKIP() << "there is no other user here";
  EXPECT_NE(error_of([&] {
              store_gemm_plans(path(), std::vector{record(2)}, 1);
            }).find(".gemm-plans.lock: this lock belongs to another user, and cannot be written"),
            std::string::npos);
  EXPECT_EQ(load_gemm_plans(path()).size(), 1u);
}

}  // namespace gemm_plan_file_test
