// The answers to flags of other trainers.
#include <common/flags.hpp>

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>

namespace foreign_flags_test {

TEST(ForeignFlags, AreUniqueAndNotOctavoFlags) {
  std::set<std::string> flags;
  for (const programs::ForeignFlags& foreign : programs::foreign_flags) flags.insert(foreign.flag);
  std::map<std::string, int> counts;
  for (const programs::ForeignFlags& foreign : programs::foreign_flags) {
    const std::string words = foreign.words;
    EXPECT_EQ(words.front(), ' ') << words;
    EXPECT_EQ(words.back(), ' ') << words;
    std::istringstream stream(words);
    for (std::string word; stream >> word;) {
      EXPECT_EQ(++counts[word + " of " + foreign.flag], 1) << word;
      EXPECT_EQ(flags.count(word), 0U) << word;
    }
  }
}

TEST(ForeignFlags, SuggestOnlyFlagsOfProgram) {
  CLI::App app;
  EXPECT_EQ(programs::unknown_key(app, "--lr"), "unknown option 'lr'; see --help");
  double rate = 0;
  app.add_option("--learning-rate", rate);
  for (const char* word : {"lr", "LR", "max_lr", "max-lr"}) {
    EXPECT_EQ(
        programs::unknown_key(app, std::string("--") + word + "=3"),
        std::string("unknown option '") + word + "'; use 'learning-rate' instead. See --help");
  }
}

}  // namespace foreign_flags_test
