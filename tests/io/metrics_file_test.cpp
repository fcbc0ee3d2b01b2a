#include <octavo/io/metrics_file.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <csignal>

#include <sys/resource.h>
#include <sys/stat.h>

#include "support/temporary_folder.hpp"

namespace metrics_file_test {

using octavo::IoError;
using octavo::JsonLine;

class MetricsFile : public support::TemporaryFolder {
 protected:
  /// Writes lines until one is refused; returns the message.
  std::string fill(octavo::MetricsFile& file, int most) {
    for (; lines_ < most; ++lines_) {
      try {
        file.write(line(lines_));
      } catch (const IoError& error) {
        return error.what();
      }
    }
    return "";
  }

  static JsonLine line(int number) {
    return JsonLine{}.add("step", number).add("text", std::string(1000, 'x'));
  }

  /// The lines that were accepted, as the file must hold them.
  [[nodiscard]] std::string expected() const {
    std::string text;
    for (int i = 0; i < lines_; ++i) text += line(i).str() + '\n';
    return text;
  }

  int lines_ = 0;
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(MetricsFile, FlushesEachLine) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  octavo::MetricsFile file(path);
  EXPECT_EQ(content(path), "");
  file.write(JsonLine{}.add("step", 1));
  EXPECT_EQ(content(path), "{\"step\":1}\n");
  file.write(JsonLine{}.add("step", 2));
  EXPECT_EQ(content(path), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(file.path(), path);
}

TEST_F(MetricsFile, TruncatesExistingFile) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  std::ofstream(path) << "old";
  octavo::MetricsFile file(path);
  file.write(JsonLine{});
  EXPECT_EQ(content(path), "{}\n");
}

TEST_F(MetricsFile, AppendsAfterLastCompleteLine) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  for (const std::string before : {"", "{}\n", "{}\n{\"step\":1}\n"}) {
    for (const std::string cut : {"", "{\"st", "{"}) {
      std::ofstream(path, std::ios::trunc) << before << cut;
      octavo::MetricsFile file(path, octavo::MetricsFile::Lines::kept);
      EXPECT_EQ(content(path), before);
      file.write(JsonLine{}.add("step", 2));
      EXPECT_EQ(content(path), before + "{\"step\":2}\n");
    }
  }
}

TEST_F(MetricsFile, ReportsMissingFolder) {
  const std::filesystem::path path = folder_ / "missing" / "metrics.jsonl";
  try {
    octavo::MetricsFile file(path);
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_TRUE(contains(error.what(), path.string() + ": cannot be created: No such file"))
        << error.what();
  }
}

TEST_F(MetricsFile, RejectsDanglingSymlink) {
  std::filesystem::create_symlink(folder_ / "elsewhere", folder_ / "metrics.jsonl");
  try {
    octavo::MetricsFile file(folder_ / "metrics.jsonl");
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_TRUE(contains(error.what(), "it is a link to ")) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
}

// The write that fills a pipe would wait for a reader.
TEST_F(MetricsFile, RejectsPipe) {
  const std::filesystem::path pipe = folder_ / "metrics.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  try {
    octavo::MetricsFile file(pipe);
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_TRUE(contains(error.what(), pipe.string() + ": cannot be created: it is a pipe"))
        << error.what();
  }
}

// Otherwise lines would go to a file that has no name any more.
TEST_F(MetricsFile, ThrowsAfterFileIsRemoved) {
  octavo::MetricsFile file(folder_ / "m.jsonl");
  file.write(octavo::JsonLine{}.add("step", 1));
  std::filesystem::remove(folder_ / "m.jsonl");
  try {
    file.write(octavo::JsonLine{}.add("step", 2));
    FAIL() << "it was written";
  } catch (const octavo::IoError& error) {
    EXPECT_NE(std::string(error.what()).find("m.jsonl: was removed"), std::string::npos);
  }
}

TEST_F(MetricsFile, ThrowsForFullDevice) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  octavo::MetricsFile file("/dev/full");
  const std::string error = fill(file, 1);
  EXPECT_TRUE(contains(error, "/dev/full: cannot be written: No space left on device")) << error;
}

TEST_F(MetricsFile, KeepsCompleteLinesOnFullDisk) {
  if (!mount_small_disk()) GTEST_SKIP() << "this user may not mount a small disk";
  octavo::MetricsFile file(folder_ / "metrics.jsonl");
  const std::string error = fill(file, 1000);
  EXPECT_TRUE(contains(error, "metrics.jsonl: cannot be written: No space left on device"))
      << error;
  EXPECT_GT(lines_, 50);
  EXPECT_EQ(content(folder_ / "metrics.jsonl"), expected());
  file.write(JsonLine{});  // a short line still has room
  EXPECT_EQ(content(folder_ / "metrics.jsonl"), expected() + "{}\n");
}

TEST_F(MetricsFile, KeepsCompleteLinesAtFileSizeLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 10'000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  octavo::MetricsFile file(folder_ / "metrics.jsonl");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string error = fill(file, 1000);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(error, "cannot be written: File too large; earlier content is kept"))
      << error;
  EXPECT_EQ(lines_, 9);
  EXPECT_EQ(content(folder_ / "metrics.jsonl"), expected());
}

}  // namespace metrics_file_test
