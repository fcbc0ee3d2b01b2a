#include <octavo/data/text.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using octavo::read_text;

class ReadText : public support::TemporaryFolder {
 protected:
  fs::path write(const std::string& name, std::string_view bytes) const {
    fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  static std::string text_of(const std::vector<fs::path>& sources) {
    const std::vector<std::uint8_t> bytes = read_text(sources);
    return {bytes.begin(), bytes.end()};
  }

  /// The message of the IoError that reading gives; "" if there is none.
  static std::string error_of(const std::vector<fs::path>& sources) {
    try {
      read_text(sources);
    } catch (const octavo::IoError& error) {
      return error.what();
    }
    return "";
  }
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ReadText, ReadsAFileAsItIs) {
  const std::string bytes("a\r\n\0\xff z", 7);
  EXPECT_EQ(text_of({write("any.bin", bytes)}), bytes);
}

TEST_F(ReadText, JoinsSourcesWithANewlineInTheirOrder) {
  const fs::path second = write("b.txt", "second");
  const fs::path first = write("a.txt", "first\n");
  EXPECT_EQ(text_of({second, first, second}), "second\nfirst\n\nsecond");
}

TEST_F(ReadText, ReadsAFolderSortedByPath) {
  write("c.txt", "c");
  write("a/z.md", "az");
  write("a/b/deep.cpp", "deep");
  write("b", "b");
  EXPECT_EQ(text_of({folder_}), "deep\naz\nb\nc");
}

TEST_F(ReadText, TakesFromAFolderOnlyWhatIsText) {
  write("a.txt", "gr\xc3\xbc\xc3\x9f");
  write("b.bin", std::string_view("a\0b", 3));
  write("c.latin1", "gr\xfc\xdf");
  write("d.empty", "");
  write("e.txt", "end");
  EXPECT_EQ(text_of({folder_}), "gr\xc3\xbc\xc3\x9f\nend");
}

TEST_F(ReadText, JudgesAFileByItsFirstEightKibibytes) {
  const std::string cut = std::string(8191, 'x') + "\xc3\xbc";  // the limit cuts the character
  const std::string late_nul = std::string(8192, 'y') + '\0';
  write("a", cut);
  write("b", late_nul);
  write("c", std::string(8191, 'z') + '\0');
  write("d", std::string(8190, 'z') + "\xfc" + "a");
  write("e", "truncated at the end of a short file \xc3");
  write("f", "gr\xfc\xdf" + std::string(9000, 'x'));
  EXPECT_EQ(text_of({folder_}), cut + "\n" + late_nul);
}

TEST_F(ReadText, SkipsHiddenEntriesAndBuildFolders) {
  write(".hidden", "no");
  write(".git/config", "no");
  write("build/a.txt", "no");
  write("deep/out/a.txt", "no");
  write("deep/runs/a.txt", "no");
  write("deep/outer/a.txt", "yes");
  write("deep/build.txt", "also");
  write("runs", "a file may be called so");
  EXPECT_EQ(text_of({folder_}), "also\nyes\na file may be called so");
}

TEST_F(ReadText, ReadsASkippedNameWhenItIsNamed) {
  write("build/a.txt", "yes");
  EXPECT_EQ(text_of({folder_ / "build"}), "yes");
}

TEST_F(ReadText, NeverEndsInALoopOfLinks) {
  write("a.txt", "a");
  fs::create_directory_symlink(folder_, folder_ / "loop");
  fs::create_symlink(folder_ / "missing", folder_ / "dangling");
  EXPECT_EQ(text_of({folder_}), "a");
}

TEST_F(ReadText, RefusesNoSources) { EXPECT_THROW(read_text({}), octavo::ConfigError); }

TEST_F(ReadText, NamesAMissingPath) {
  const std::string error = error_of({folder_ / "missing.txt"});
  EXPECT_TRUE(contains(error, (folder_ / "missing.txt").string())) << error;
  EXPECT_TRUE(contains(error, "check the path")) << error;
}

TEST_F(ReadText, NamesAnEmptyFile) {
  const std::string error = error_of({write("full", "x"), write("empty.txt", "")});
  EXPECT_TRUE(contains(error, "empty.txt: the file is empty")) << error;
}

TEST_F(ReadText, NamesAFolderWithoutText) {
  write("b.bin", std::string_view("\0", 1));
  const std::string error = error_of({folder_});
  EXPECT_TRUE(contains(error, folder_.string() + ": this folder holds no text file")) << error;
}

TEST_F(ReadText, RefusesWhatIsNoFile) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string error = error_of({pipe});
  EXPECT_TRUE(contains(error, "pipe: neither a file nor a folder")) << error;
}

TEST_F(ReadText, NamesAnUnreadableFileOrFolder) {
  constexpr uid_t nobody = 65534;
  const fs::path file = write("folder/secret.txt", "x");
  fs::permissions(file, fs::perms::none);
  const fs::path closed = write("closed/a.txt", "x").parent_path();
  fs::permissions(closed, fs::perms::none);
  // The superuser may read everything.
  const bool superuser = ::geteuid() == 0;
  if (superuser) {
    ASSERT_EQ(::seteuid(nobody), 0);
  }
  const std::vector<std::string> errors{error_of({file}), error_of({file.parent_path()}),
                                        error_of({closed}), error_of({closed / "a.txt"})};
  if (superuser) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(closed, fs::perms::owner_all);
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "ermission denied")) << error;
    EXPECT_TRUE(contains(error, folder_.string())) << error;
  }
}

TEST_F(ReadText, NoticesAShortRead) {
  // The kernel says that these files hold a page, whatever they hold.
  const fs::path file = "/sys/kernel/mm/transparent_hugepage/enabled";
  std::error_code missing;
  if (fs::file_size(file, missing) <= content(file).size() || missing)
    GTEST_SKIP() << "this system has no file that is shorter than it says";
  const std::string error = error_of({file});
  EXPECT_TRUE(contains(error, file.string() + ": cannot be read: it should hold")) << error;
}

}  // namespace
