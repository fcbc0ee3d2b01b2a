#include <octavo/data/open_file.hpp>
#include <octavo/data/text_stream.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace open_file_test {

namespace fs = std::filesystem;
using octavo::FileLines;
using octavo::IoError;

class OpenFile : public support::TemporaryFolder {
 protected:
  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  template <class Action>
  static std::string error_of(const Action& action) {
    try {
      action();
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }

  static std::vector<std::string> lines_of(const fs::path& path) {
    std::vector<std::string> lines;
    FileLines file(path);
    for (std::string line; file.next(line);) lines.push_back(line);
    return lines;
  }
};

// A pipe without a writer would block whoever opens it.
TEST_F(OpenFile, OnlyRegularFilesAreOpened) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, folder_ / "link");
  const std::string not_regular = ", not a regular file";
  EXPECT_EQ(error_of([&] { (void)octavo::read_text_file(pipe); }),
            pipe.string() + ": cannot be read: it is a pipe" + not_regular);
  EXPECT_EQ(error_of([&] { (void)octavo::read_text_file(folder_ / "link"); }),
            (folder_ / "link").string() + ": cannot be read: it is a pipe" + not_regular);
  EXPECT_EQ(error_of([&] { FileLines lines(pipe); }),
            pipe.string() + ": cannot be read: it is a pipe" + not_regular);
  EXPECT_EQ(error_of([&] { (void)octavo::read_text_file(folder_); }),
            folder_.string() + ": cannot be read: it is a folder" + not_regular);
  EXPECT_EQ(error_of([&] { FileLines lines("/dev/zero"); }),
            "/dev/zero: cannot be read: it is a device" + not_regular);
  EXPECT_EQ(octavo::read_text_file(write("file", "text")), "text");
}

TEST_F(OpenFile, SplitsLinesAtLineFeeds) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of(write("empty", "")), Lines{});
  EXPECT_EQ(lines_of(write("two", "a\n\nb")), (Lines{"a", "", "b"}));
  FileLines file(write("cut", "a\nb"));
  std::string line;
  EXPECT_TRUE(file.next(line));
  EXPECT_TRUE(file.is_whole());
  EXPECT_TRUE(file.next(line));
  EXPECT_FALSE(file.is_whole());
  EXPECT_FALSE(file.next(line));
}

TEST_F(OpenFile, LongLinesAreRead) {
  std::string text;
  std::vector<std::string> expected;
  for (const std::size_t length : {1u, 65535u, 65536u, 65537u, 200000u, 0u, 3u}) {
    expected.emplace_back(length, 'x');
    text += expected.back() + '\n';
  }
  EXPECT_EQ(lines_of(write("long", text)), expected);
}

TEST_F(OpenFile, ReportsOffsetsOfLines) {
  std::string text;
  std::vector<std::size_t> expected;
  for (std::size_t length = 0; text.size() < 300'000; length = (length * 7 + 1) % 9973) {
    expected.push_back(text.size());
    text += std::string(length, 'x') + '\n';
  }
  for (const std::string mark : {"", "\xEF\xBB\xBF"}) {
    FileLines file(write("lines", mark + text));
    std::vector<std::size_t> found;
    for (std::string line; file.next(line);) found.push_back(file.begin() - mark.size());
    EXPECT_EQ(found, expected) << mark.size();
  }
}

TEST_F(OpenFile, RejectsLinesOverLengthLimit) {
  const fs::path path = write("lines", "first\n");
  fs::resize_file(path, 16 + octavo::max_line_bytes);
  EXPECT_EQ(
      error_of([&] { (void)lines_of(path); }),
      path.string() + ": cannot be read: line 2 is longer than 16777216 bytes; check the file");
}

TEST_F(OpenFile, ReportsBaseOfMissingRelativePath) {
  EXPECT_EQ(error_of([] { (void)octavo::read_text_file("absent/a.txt"); }),
            "absent/a.txt: cannot be read: No such file or directory; relative paths start at " +
                fs::current_path().string());
}

TEST_F(OpenFile, SkipsByteOrderMark) {
  EXPECT_EQ(octavo::read_text_file(write("a", "\xEF\xBB\xBF{}")), "{}");
  EXPECT_EQ(octavo::read_text_file(write("b", "\xEF\xBB\xBF")), "");
  EXPECT_EQ(octavo::read_text_file(write("c", "{\xEF\xBB\xBF}")), "{\xEF\xBB\xBF}");
  EXPECT_EQ(lines_of(write("d", "\xEF\xBB\xBFone\ntwo\n")),
            (std::vector<std::string>{"one", "two"}));
}

// The bytes are those that the formats' own programs write.
TEST_F(OpenFile, ReportsConvertersForOtherFormats) {
  using namespace std::string_literals;
  const std::vector<std::tuple<std::string, std::string, std::string>> files{
      {"\x1F\x8B\x08\0\0\0"s, "gzip data", "gzip -dc FILE > TEXT"},
      {"\x28\xB5\x2F\xFD$"s, "Zstandard data", "zstd -dc FILE > TEXT"},
      {"BZh91AY"s, "bzip2 data", "bzip2 -dc FILE > TEXT"},
      {"\xFD"s + "7zXZ\0\0"s, "xz data", "xz -dc FILE > TEXT"},
      {"\xFF\xFE{\0"s, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > TEXT"},
      {"\xFE\xFF\0{"s, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > TEXT"},
      {"\xFF\xFE\0\0{\0\0\0"s, "UTF-32", "iconv -f UTF-32 -t UTF-8 FILE > TEXT"},
      {"PK\x03\x04\x14"s, "a zip archive", "unzip -p FILE > TEXT"},
      {"PAR1\x15"s, "Parquet", "scripts/parquet-to-jsonl FILE > TEXT"},
      {"GGUF\x03\0\0\0"s, "a GGUF model", "pass a text file"},
      {"\x40\0\0\0\0\0\0\0{\"a\":"s, "safetensors", "pass a text file"}};
  for (const auto& [bytes, name, advice] : files) {
    const fs::path path = write("file", bytes);
    const bool is_decompressed = name == "gzip data" || name == "Zstandard data";
    for (const bool of_lines : {false, true}) {
      if (of_lines && is_decompressed) continue;
      const std::string error = of_lines ? error_of([&] { (void)lines_of(path); })
                                         : error_of([&] { (void)octavo::read_text_file(path); });
      EXPECT_TRUE(error.starts_with(path.string() + " must be UTF-8 text, but is " + name + "; "))
          << error;
      EXPECT_NE(error.find(advice), std::string::npos) << error;
    }
  }
  for (const std::string& text : {"PARTLY"s, "BZ"s, "{\"a\": 1}"s, "Pk"s, ""s})
    EXPECT_EQ(octavo::read_text_file(write("file", text)), text);
}

}  // namespace open_file_test
