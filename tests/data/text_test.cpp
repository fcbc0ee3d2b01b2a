#include <octavo/data/text.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace text_test {

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

  /// The message of the error that reading gives; "" if there is none.
  template <class Error = octavo::IoError>
  static std::string error_of(const std::vector<fs::path>& sources) {
    try {
      (void)read_text(sources);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  /// Files as "name bytes: remark", by their path below the folder.
  std::vector<std::string> shown(const std::vector<octavo::TextFile>& files) const {
    std::vector<std::string> lines;
    for (const octavo::TextFile& file : files) {
      std::string remark = file.remark;
      if (const auto at = remark.find(folder_.string()); at != std::string::npos)
        remark.erase(at, folder_.string().size() + 1);
      lines.push_back(file.path.lexically_relative(folder_).string() + ' ' +
                      std::to_string(file.bytes) + ": " + remark);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ReadText, ReadsFileUnchanged) {
  const std::string bytes("a\r\n\0\xff z", 7);
  EXPECT_EQ(text_of({write("any.bin", bytes)}), bytes);
}

TEST_F(ReadText, JoinsSourcesInOrderWithNewline) {
  const fs::path second = write("b.txt", "second");
  const fs::path first = write("a.txt", "first\n");
  const fs::path third = write("c.txt", "third");
  EXPECT_EQ(text_of({second, first, third}), "second\nfirst\n\nthird");
}

TEST_F(ReadText, ReadsAFolderSortedByPath) {
  write("c.txt", "c");
  write("a/z.md", "az");
  write("a/b/deep.cpp", "deep");
  write("b", "b");
  EXPECT_EQ(text_of({folder_}), "deep\naz\nb\nc");
}

TEST_F(ReadText, TakesOnlyTextFilesFromFolder) {
  write("a.txt", "gr\xc3\xbc\xc3\x9f");
  write("b.bin", std::string_view("a\0b", 3));
  write("c.latin1", "gr\xfc\xdf");
  write("d.empty", "");
  write("e.txt", "end");
  EXPECT_EQ(text_of({folder_}), "gr\xc3\xbc\xc3\x9f\nend");
}

TEST_F(ReadText, DetectsTextByFirstEightKibibytes) {
  const std::string cut = std::string(8191, 'x') + "\xc3\xbc";  // the limit cuts the character
  const std::string longer = std::string(8189, 'x') + "\xf0\x9f\x98\x80";  // cut after 3 of 4 bytes
  const std::string late_nul = std::string(8192, 'y') + '\0';
  write("a", cut);
  write("a4", longer);
  write("b", late_nul);
  write("c", std::string(8191, 'z') + '\0');
  write("d", std::string(8190, 'z') + "\xfc" + "a");
  write("e", "truncated at the end of a short file \xc3");
  write("f", "gr\xfc\xdf" + std::string(9000, 'x'));
  EXPECT_EQ(text_of({folder_}), cut + "\n" + longer + "\n" + late_nul);
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

TEST_F(ReadText, ReadsExplicitlyNamedBuildFolder) {
  write("build/a.txt", "yes");
  EXPECT_EQ(text_of({folder_ / "build"}), "yes");
}

TEST_F(ReadText, DoesNotFollowSymlinkLoops) {
  write("a.txt", "a");
  fs::create_directory_symlink(folder_, folder_ / "loop");
  fs::create_symlink(folder_ / "missing", folder_ / "dangling");
  EXPECT_EQ(text_of({folder_}), "a");
}

TEST_F(ReadText, RejectsDuplicateFiles) {
  const fs::path file = write("texts/a.txt", "some text");
  write("b.txt", "other text");
  const fs::path link = folder_ / "link.txt";
  const fs::path hard = folder_ / "hard.txt";
  fs::create_symlink(file, link);
  fs::create_hard_link(file, hard);
  const fs::path folder = file.parent_path();
  const std::string in_folder = " is in the folder " + folder.string() + " already;";
  const std::string same = " is the same file as ";
  const std::vector<std::tuple<fs::path, fs::path, std::string>> twice{
      {file, file, "a.txt is named already;"},
      {file, folder / "." / "a.txt", "a.txt is named already;"},
      {file, folder / ".." / "texts" / "a.txt", "a.txt is named already;"},
      {file, link, link.string() + same + file.string()},
      {hard, file, file.string() + same + hard.string()},
      {folder, file, file.string() + in_folder},
      {file, folder, folder.string() + ": its " + file.string() + " is named already;"},
      {folder, folder, folder.string() + ": its " + file.string() + in_folder},
      {folder_, folder, folder.string() + ": its " + file.string() + same + hard.string()}};
  for (const auto& [first, second, expected] : twice) {
    const std::string error = error_of<octavo::ConfigError>({first, second});
    EXPECT_TRUE(contains(error, expected)) << error;
  }
  const std::string error = error_of<octavo::ConfigError>({folder, hard});
  EXPECT_TRUE(contains(error, hard.string() + " is the same file as " + file.string())) << error;
}

TEST_F(ReadText, ReportsFolderThatListedDuplicateFirst) {
  write("inner/a.txt", "some text");
  const fs::path inner = folder_ / "inner";
  const std::string outer_first = error_of<octavo::ConfigError>({folder_, inner});
  EXPECT_TRUE(contains(outer_first, "is in the folder " + folder_.string() + " already"))
      << outer_first;
  const std::string inner_first = error_of<octavo::ConfigError>({inner, folder_});
  EXPECT_TRUE(contains(inner_first, "is in the folder " + inner.string() + " already"))
      << inner_first;
}

TEST_F(ReadText, SkipsSecondLinkInFolder) {
  write("a.txt", "once");
  fs::create_symlink(folder_ / "a.txt", folder_ / "b.txt");
  fs::create_hard_link(folder_ / "a.txt", folder_ / "c.txt");
  const octavo::Text text = octavo::load_text({folder_});
  EXPECT_EQ(std::string(text.bytes.begin(), text.bytes.end()), "once");
  EXPECT_EQ(shown(text.skipped), (std::vector<std::string>{"b.txt 4: the same file as a.txt",
                                                           "c.txt 4: the same file as a.txt"}));
}

TEST_F(ReadText, ReportsReadAndSkippedFiles) {
  write("a.txt", "text");
  write("sub/b.md", "more text");
  write("c.latin1", "gr\xfc\xdf");
  write("d.utf16", std::string_view("\xff\xfe"
                                    "a\0",
                                    4));
  write("e.bin", std::string_view("a\0b", 3));
  write("f.empty", "");
  write(".hidden/h.txt", "hidden");
  write(".note", "hidden");
  write("build/x.txt", "built");
  fs::create_directory_symlink(folder_ / "sub", folder_ / "again");
  fs::create_symlink(folder_ / "missing", folder_ / "dangling");
  const octavo::Text text = octavo::load_text({folder_});
  EXPECT_EQ(std::string(text.bytes.begin(), text.bytes.end()), "text\nmore text");
  EXPECT_EQ(shown(text.read), (std::vector<std::string>{"a.txt 4: ", "sub/b.md 9: "}));
  EXPECT_EQ(
      shown(text.skipped),
      (std::vector<std::string>{
          ".hidden 0: hidden", ".note 6: hidden", "again 0: a link to a folder",
          "build 0: a folder called build, out or runs", "c.latin1 4: not UTF-8: invalid byte 2",
          "d.utf16 4: UTF-16, not UTF-8 text", "dangling 0: neither a file nor a folder",
          "e.bin 3: binary: contains NUL bytes", "f.empty 0: empty"}));
}

TEST_F(ReadText, ReportsWhyNamedFileIsNotText) {
  const octavo::Text text = octavo::load_text({write("latin1", "gr\xfc\xdf")});
  EXPECT_EQ(text.bytes.size(), 4u);
  EXPECT_EQ(shown(text.read), std::vector<std::string>{"latin1 4: not UTF-8: invalid byte 2"});
  const octavo::Text json = octavo::load_text(
      {write("a.json", "\n[{\"text\": 1}]"), write("b.json", "no JSON"), write("c.txt", "{}")});
  EXPECT_EQ(shown(json.read),
            (std::vector<std::string>{
                "a.json 14: JSON, read as it is written; to read its texts, write JSON Lines",
                "b.json 7: ", "c.txt 2: "}));
}

TEST_F(ReadText, SkipsAByteOrderMark) {
  const fs::path text = write("a.txt", "\xEF\xBB\xBFtext");
  const fs::path lines = write("b.jsonl", "\xEF\xBB\xBF{\"text\": \"line\"}\n{\"text\": \"x\"}\n");
  EXPECT_EQ(text_of({text, lines, write("c.txt", "end")}), "text\nline\nx\nend");
  const octavo::Text read = octavo::load_text({text, lines});
  ASSERT_EQ(read.texts.size(), 3u);
  EXPECT_EQ(read.texts[0].bytes, 4u);
  EXPECT_EQ(read.texts[1].begin, 5u);
}

TEST_F(ReadText, RejectsNamedFileOfOtherFormat) {
  write("text.txt", "text");
  const fs::path bzip2 = write("text.bz2", "BZh9");
  EXPECT_EQ(error_of({bzip2}), bzip2.string() +
                                   " must be UTF-8 text, but is bzip2 data; convert it first: "
                                   "bzip2 -dc FILE > TEXT");
  EXPECT_EQ(shown(octavo::load_text({folder_}).skipped),
            std::vector<std::string>{"text.bz2 4: bzip2 data, not UTF-8 text"});
}

TEST_F(ReadText, HoldsTextInMemoryOnce) {
  constexpr std::uintmax_t bytes = std::uintmax_t{96} << 20;
  const fs::path first = write("first", "x");
  const fs::path second = write("second", "x");
  for (const fs::path& file : {first, second}) fs::resize_file(file, bytes / 2);
  const auto peak = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::uintmax_t>(usage.ru_maxrss) * 1024;
  };
  const std::uintmax_t before = peak();
  EXPECT_EQ(read_text({first, second}).size(), bytes + 1);
  EXPECT_LT(peak() - before, bytes + bytes / 4);
}

TEST_F(ReadText, RejectsEmptySourceList) { EXPECT_THROW((void)read_text({}), octavo::ConfigError); }

TEST_F(ReadText, RejectsEmptyName) {
  const std::string error = error_of({""});
  EXPECT_TRUE(contains(error, "the name of a text file or folder must not be empty")) << error;
}

TEST_F(ReadText, ReportsMissingPath) {
  const std::string error = error_of({folder_ / "missing.txt"});
  EXPECT_TRUE(contains(error, (folder_ / "missing.txt").string())) << error;
  EXPECT_TRUE(contains(error, "check the path")) << error;
}

// Such as one of a configuration file that is used in another folder.
TEST_F(ReadText, ReportsBaseOfRelativePaths) {
  const std::string start = "; relative paths start at " + fs::current_path().string();
  EXPECT_TRUE(error_of({"absent/a.txt"}).ends_with(start)) << error_of({"absent/a.txt"});
  EXPECT_FALSE(contains(error_of({folder_ / "absent"}), "relative"));
}

TEST_F(ReadText, ReportsEmptyFile) {
  const std::string error = error_of({write("full", "x"), write("empty.txt", "")});
  EXPECT_TRUE(contains(error, "empty.txt: the file is empty")) << error;
}

TEST_F(ReadText, ReportsFolderWithoutText) {
  write("b.bin", std::string_view("\0", 1));
  const std::string error = error_of({folder_});
  EXPECT_TRUE(contains(error, folder_.string() + ": this folder contains no text file")) << error;
}

TEST_F(ReadText, RejectsPipes) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string error = error_of({pipe});
  EXPECT_TRUE(contains(error, "pipe: is neither a file nor a folder")) << error;
}

TEST_F(ReadText, ReportsUnreadableFileOrFolder) {
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
    EXPECT_TRUE(contains(error, "ermission denied; make it readable")) << error;
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
  EXPECT_TRUE(contains(error, file.string() + ": cannot be read: it had")) << error;
}

// A file that something still writes to: it grows while the one before it is read.
TEST_F(ReadText, NoticesAFileThatGrows) {
  const fs::path large = write("large", "x");
  fs::resize_file(large, std::uintmax_t{16} << 20);
  const fs::path growing = write("growing", "begun");
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    while (!ends) std::ofstream(growing, std::ios::app) << "more";
  });
  std::string error;
  for (int attempt = 0; attempt < 100 && error.empty(); ++attempt) {
    error = error_of({large, growing});
  }
  ends = true;
  writer.join();
  EXPECT_TRUE(contains(error, growing.string() + ": cannot be read: it had ")) << error;
  EXPECT_TRUE(contains(
      error, " bytes when it was opened, but more were read; do not change it while it is read"))
      << error;
}

}  // namespace text_test
