// Folders that appear whole, that one has alone, and digests of files.
#include <octavo/io/file_digest.hpp>
#include <octavo/io/folder.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/another_user.hpp"
#include "support/temporary_folder.hpp"

namespace folder_test {

namespace fs = std::filesystem;
using namespace octavo;

class Folder : public support::TemporaryFolder {};

TEST_F(Folder, CommitRenamesCompleteFolder) {
  make_new_folder(folder_ / "written");
  EXPECT_THROW(make_new_folder(folder_ / "written"), IoError);
  std::ofstream(folder_ / "written" / "file") << "text";
  commit_folder(folder_ / "written", folder_ / "whole");
  EXPECT_EQ(content(folder_ / "whole" / "file"), "text");
  EXPECT_FALSE(fs::exists(folder_ / "written"));
  // Nothing takes the place of what is there.
  make_new_folder(folder_ / "written");
  EXPECT_THROW(commit_folder(folder_ / "written", folder_ / "whole"), IoError);
  EXPECT_EQ(content(folder_ / "whole" / "file"), "text");
  remove_committed_folder(folder_ / "whole", folder_ / "discarded");
  EXPECT_EQ(entries(), 1) << "what is left is the one that got no name";
  EXPECT_THROW(remove_committed_folder(folder_ / "whole", folder_ / "discarded"), IoError);
}

TEST_F(Folder, LockIsExclusive) {
  {
    const FolderLock lock(folder_);
    try {
      const FolderLock another(folder_);
      ADD_FAILURE() << "two have it";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string_view(error.what()).find(folder_.string()), std::string_view::npos);
    }
  }
  EXPECT_NO_THROW(FolderLock{folder_});
  EXPECT_THROW(FolderLock{folder_ / "absent"}, IoError);
}

TEST_F(Folder, LockIsExclusiveAcrossUsers) {
  fs::permissions(folder_, fs::perms::all);
  std::ofstream(folder_ / ".lock").close();
  fs::permissions(folder_ / ".lock", fs::perms(0444));
  auto lock = std::make_unique<FolderLock>(folder_);
  const support::AnotherUser another;
  if (!another.can_write_to(folder_)) GTEST_SKIP() << "there is no other user here";
  EXPECT_THROW(FolderLock{folder_}, ConfigError);
  lock.reset();
  EXPECT_NO_THROW(FolderLock{folder_});
}

TEST_F(Folder, ReportsPermissionErrorOfLockFile) {
  fs::permissions(folder_, fs::perms::all);
  std::ofstream(folder_ / ".lock").close();
  fs::permissions(folder_ / ".lock", fs::perms::none);
  const support::AnotherUser another;
  if (!another.can_write_to(folder_)) GTEST_SKIP() << "there is no other user here";
  try {
    const FolderLock lock(folder_);
    ADD_FAILURE() << "it is locked";
  } catch (const NoLocksError& error) {
    ADD_FAILURE() << error.what();
  } catch (const IoError& error) {
    EXPECT_NE(std::string_view(error.what()).find(".lock: cannot be written: Permission denied"),
              std::string_view::npos)
        << error.what();
  }
}

// As NFS says of a file that is open to be read only.
TEST(Lock, ReportsEaccesForBadDescriptor) {
  EXPECT_FALSE(octavo::detail::try_lock(-1));
  EXPECT_EQ(errno, EACCES);
}

TEST_F(Folder, ReportsFreeDiskSpace) {
  EXPECT_THROW((void)free_disk_bytes(folder_ / "absent"), IoError);
  if (!mount_small_disk()) GTEST_SKIP() << "mounting a disk needs privileges";
  EXPECT_EQ(free_disk_bytes(folder_), 64u * 1024u);
  std::ofstream(folder_ / "file") << std::string(16 * 1024, 'x');
  EXPECT_EQ(free_disk_bytes(folder_), 48u * 1024u);
}

TEST_F(Folder, DigestCoversAllBytes) {
  std::string text((std::size_t{5} << 22) + 11, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  for (const std::size_t size :
       {text.size(), std::size_t{1} << 24, std::size_t{7}, std::size_t{0}}) {
    std::ofstream(folder_ / "file", std::ios::binary) << text.substr(0, size);
    const FileDigest expected{size, crc32c(std::as_bytes(std::span(text).first(size)))};
    EXPECT_EQ(digest_of_file(folder_ / "file"), expected);
    for (const int threads : {2, 3}) {
      EXPECT_EQ(digest_of_file(folder_ / "file", Context<Cpu>(threads)), expected) << threads;
    }
  }
  EXPECT_THROW((void)digest_of_file(folder_ / "absent"), IoError);
  EXPECT_THROW((void)digest_of_file(folder_), IoError);
}

TEST(Parts, ThrowFirstErrorAfterAllEnd) {
  using octavo::detail::part_bytes;
  std::atomic<int> ended = 0;
  const auto fail_from_the_second = [&](std::size_t begin, std::size_t size) {
    EXPECT_EQ(size, begin == 3 * part_bytes ? 5 : part_bytes);
    ++ended;
    if (begin != 0) throw IoError(message("part ", begin / part_bytes));
  };
  try {
    for_each_part(3 * part_bytes + 5, Context<Cpu>(3), fail_from_the_second);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "part 1");
  }
  EXPECT_EQ(ended, 4);
}

TEST_F(Folder, ParallelCrc32cMatchesSerial) {
  using octavo::detail::part_bytes;
  std::vector<std::byte> bytes(2 * part_bytes + 100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i >> 12 ^ i);
  const std::uint32_t before = 0x12345678;
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, part_bytes, bytes.size()}) {
    const auto some = std::span<const std::byte>(bytes).first(size);
    for (const int threads : {1, 3}) {
      EXPECT_EQ(crc32c(some, before, Context<Cpu>(threads)), crc32c(some, before)) << size;
    }
  }
}

}  // namespace folder_test
