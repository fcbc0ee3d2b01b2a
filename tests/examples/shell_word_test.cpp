// Words of advice, as a shell takes them.
#include <common/text.hpp>

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

namespace shell_word_test {

/// What a program is given by a shell that reads it.
std::string as_shells_take(const std::string& word) {
  const std::string command = "printf '[%s]' " + word;
  const std::unique_ptr<FILE, int (*)(FILE*)> shell(::popen(command.c_str(), "r"), &::pclose);
  std::string given;
  if (shell == nullptr) return given;
  for (int c = std::fgetc(shell.get()); c != EOF; c = std::fgetc(shell.get())) {
    given += static_cast<char>(c);
  }
  return given;
}

TEST(ShellWord, IsParsedAsOneWord) {
  for (const char* word : {"runs/a-1_b.c", "my run", "it's", "a\"b", "$HOME", "`date`", "*", "a\\b",
                           "", "~/x", "a;b", "#a", "zwei\nZeilen", "Läufe", "'"}) {
    EXPECT_EQ(as_shells_take(programs::shell_word(word)), "[" + std::string(word) + "]");
  }
}

TEST(ShellWord, LeavesPlainFileNamesUnquoted) {
  EXPECT_EQ(programs::shell_word("runs/a-1_b.c"), "runs/a-1_b.c");
}

}  // namespace shell_word_test
