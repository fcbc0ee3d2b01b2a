// What all programs do with their standard streams.
#include <common/flags.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <new>
#include <string>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace flags_test {

TEST(StandardStreams, ReportsWhyClosedStreamCannotBeReplaced) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit none{0, 0};
    ::close(STDIN_FILENO);
    ::setrlimit(RLIMIT_NOFILE, &none);
    std::string said = "nothing";
    try {
      programs::occupy_standard_streams();
    } catch (const octavo::IoError& error) {
      said = error.what();
    }
    const bool is_written =
        ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(is_written ? 0 : 1);
  }
  ::close(ends[1]);
  std::array<char, 1024> text{};
  const ssize_t count = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_GE(count, 0);
  const std::string said(text.data(), static_cast<std::size_t>(count));
  EXPECT_NE(said.find("that is closed: Too many open files"), std::string::npos) << said;
}

// Returns the seconds of a time, or why it is refused.
std::string seconds_of(std::string text) {
  std::string refusal = programs::seconds()(text);
  return refusal.empty() ? text : refusal;
}

TEST(TimeFlags, ParsesSecondsMinutesHoursAndDays) {
  EXPECT_EQ(seconds_of("90"), "90");
  EXPECT_EQ(seconds_of("90s"), "90");
  EXPECT_EQ(seconds_of("30m"), "1800");
  EXPECT_EQ(seconds_of("11.5h"), "41400");
  EXPECT_EQ(seconds_of("2d"), "172800");
  EXPECT_EQ(seconds_of("0"), "0");
  for (const char* text : {"", "h", "-1s", "1w", "1h30m", "nan", "inf", "10001d", "1 h", "1e"}) {
    EXPECT_NE(seconds_of(text).find("is not a time"), std::string::npos) << text;
  }
}

TEST(ErrorText, ExplainsBadAlloc) {
  EXPECT_NE(programs::text_of(std::bad_alloc()).find("the system refuses memory"),
            std::string::npos);
}

}  // namespace flags_test
