// Configuration files that nobody should have to trust.
#include <common/flags_file.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "support/temporary_folder.hpp"

namespace flags_file_test {

class ConfigurationFile : public support::TemporaryFolder {
 protected:
  struct Flags {
    std::string text;
    int steps = 0;
    double time = 0;
  };

  /// Reads a configuration with the flags --text and --steps.
  Flags read(std::string_view toml) {
    const std::string path = (folder_ / "c.toml").string();
    std::ofstream(path, std::ios::binary) << toml;
    Flags flags;
    CLI::App app;
    app.add_option("--text", flags.text, "");
    app.add_option("--steps", flags.steps, "");
    app.add_option("--time", flags.time, "")->transform(programs::seconds());
    app.set_config("--config", "", "");
    app.config_formatter(std::make_shared<programs::FlagsFile>(app));
    app.parse("--config " + path, false);
    return flags;
  }

  /// The message of the error, behind the file's name.
  std::string refusal(std::string_view toml) {
    try {
      (void)read(toml);
    } catch (const octavo::ConfigError& error) {
      const std::string path = (folder_ / "c.toml").string();
      const std::string text = error.what();
      return text.starts_with(path) ? text.substr(path.size()) : text;
    }
    return "read";
  }
};

TEST_F(ConfigurationFile, SkipsByteOrderMark) {
  EXPECT_EQ(read("\xEF\xBB\xBFsteps = 3\n").steps, 3);
}

TEST_F(ConfigurationFile, AcceptsTimesWithUnits) {
  EXPECT_EQ(read("time = 90\n").time, 90);
  EXPECT_EQ(read("time = '1.5m'\n").time, 90);
  EXPECT_NE(refusal("time = 'soon'\n"), "read");
  EXPECT_NE(refusal("steps = '3m'\n"), "read");
}

TEST_F(ConfigurationFile, ReportsOtherFormat) {
  using namespace std::string_view_literals;
  EXPECT_EQ(refusal("\xFF\xFEs\0t\0"sv),
            " must be UTF-8 text, but is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8 FILE > "
            "TEXT");
}

// An error that began with one had an empty text, and so was no error at all.
TEST_F(ConfigurationFile, RejectsNulCharacters) {
  for (const std::string nul : {"\\u0000", "a\\u0000b", "\\U00000000"}) {
    EXPECT_EQ(refusal("steps = 3\ntext = \"" + nul + "\""),
              ":2: text must not contain the character U+0000; remove it");
  }
}

TEST_F(ConfigurationFile, RejectsDeepNesting) {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  const std::string deep = repeated("a.", 40'000) + 'a';
  const std::string refused = ": a key must have at most 256 dots; write the keys without sections";
  EXPECT_EQ(refusal("steps = 3\n" + deep + " = 1"), ":2" + refused);
  EXPECT_EQ(refusal("text = {" + deep + " = 1}"), ":1" + refused);
  EXPECT_EQ(refusal('[' + deep + ']'), ":1" + refused);
  EXPECT_EQ(refusal('\"' + repeated("a\".\"", 40'000) + "a\" = 1"), ":1" + refused);
  EXPECT_NE(refusal("text = " + repeated("[", 40'000)), "read");
  EXPECT_NE(refusal("text = " + repeated("{a = ", 40'000)), "read");
  EXPECT_EQ(read("text = \"" + repeated("../", 60) + "data.txt\"").text,
            repeated("../", 60) + "data.txt");
}

}  // namespace flags_file_test
