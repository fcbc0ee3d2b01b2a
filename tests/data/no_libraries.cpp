// A program without zlib and libzstd: compressed text is refused, and skipped in folders.
#include <octavo/data/chats.hpp>
#include <octavo/data/text.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "support/temporary_folder.hpp"

namespace no_libraries_test {

using NoLibraries = support::TemporaryFolder;

TEST_F(NoLibraries, RejectsCompressedTextWithInstallHint) {
  std::ofstream(folder_ / "text.txt") << "text";
  const std::pair<const char*, const char*> files[] = {
      {"\x1f\x8b\x08",
       "gzip data; install zlib1g-dev and build Octavo again, or convert it first: "
       "gzip -dc FILE > TEXT"},
      {"\x28\xb5\x2f\xfd",
       "Zstandard data; install libzstd-dev and build Octavo again, or convert "
       "it first: zstd -dc FILE > TEXT"}};
  for (const auto& [bytes, expected] : files) {
    const std::filesystem::path path = folder_ / "a.jsonl";
    std::ofstream(path, std::ios::binary) << bytes;
    const std::string message = path.string() + " must be UTF-8 text, but is " + expected;
    const auto error_of = [](const auto& read) -> std::string {
      try {
        read();
      } catch (const octavo::IoError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(error_of([&] { (void)octavo::load_text({path}); }), message);
    std::string line;
    EXPECT_EQ(error_of([&] { (void)octavo::FileLines(path).next(line); }), message);
    EXPECT_EQ(octavo::load_text({folder_}).skipped.size(), 1u);
  }
}

}  // namespace no_libraries_test
