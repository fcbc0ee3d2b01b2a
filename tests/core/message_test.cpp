#include <octavo/core/error.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

namespace {

using octavo::message;

template <class... Parts>
std::string streamed(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

TEST(Message, IntegersMatchStreamOutput) {
  const auto same = [](auto number) { EXPECT_EQ(message(number), streamed(number)); };
  same(0), same(-7), same(true), same(false);
  same(std::numeric_limits<int>::min());
  same(std::numeric_limits<std::int64_t>::min()), same(std::numeric_limits<std::int64_t>::max());
  same(std::numeric_limits<std::uint64_t>::max()), same(std::numeric_limits<std::size_t>::max());
  same(std::numeric_limits<long long>::max()), same(std::uint16_t{65535});
  EXPECT_EQ(message(std::int8_t{65}), "65") << "small numbers are no characters";
}

TEST(Message, ShortestTextRoundTrips) {
  for (const float number : {22.627417f, 0.1f, 1e-30f, -16.0f}) {
    EXPECT_EQ(std::stof(octavo::shortest_text(number)), number);
  }
  EXPECT_EQ(octavo::shortest_text(22.627417f), "22.627417");
  EXPECT_EQ(octavo::shortest_text(16.0), "16");
}

TEST(Message, FixedTextHasGivenDecimals) {
  EXPECT_EQ(octavo::fixed_text(2.75, 1), "2.8");
  EXPECT_EQ(octavo::fixed_text(-0.004, 2), "-0.00");
  EXPECT_EQ(octavo::fixed_text(1e6, 0), "1000000");
}

TEST(Message, SizeTextPicksReadableUnit) {
  EXPECT_EQ(octavo::size_text(1), "1 byte");
  EXPECT_EQ(octavo::size_text(1023), "1023 bytes");
  EXPECT_EQ(octavo::size_text(1536), "1.5 KiB");
  EXPECT_EQ(octavo::size_text(12'157'334), "11.6 MiB");
  EXPECT_EQ(octavo::size_text(1 << 30), "1.0 GiB");
  EXPECT_EQ(octavo::size_text(std::uint64_t{3000} << 30), "3000.0 GiB");
  EXPECT_EQ(octavo::size_text((1 << 20) - 52), "1023.9 KiB");
  for (const std::uint64_t bytes : {51u, 1u, 0u}) {
    EXPECT_EQ(octavo::size_text((1 << 20) - bytes), "1.0 MiB");
  }
  EXPECT_EQ(octavo::size_text((1 << 30) - 1), "1.0 GiB");
  EXPECT_EQ(octavo::size_text((1 << 20) - 51, 2), "1023.95 KiB");
}

TEST(Message, SizeTextsOfDifferentSizesDiffer) {
  using Texts = std::array<std::string, 2>;
  const auto texts = [](std::uint64_t one, std::uint64_t other) {
    return octavo::size_texts(one, other);
  };
  EXPECT_EQ(texts(1536, 12'157'334), (Texts{"1.5 KiB", "11.6 MiB"}));
  const std::uint64_t size = std::uint64_t{15} << 30;
  EXPECT_EQ(texts(size + (10 << 20), size - (10 << 20)), (Texts{"15.01 GiB", "14.99 GiB"}));
  EXPECT_EQ(texts(size + 1, size), (Texts{"15.000000001 GiB", "15.000000000 GiB"}));
  EXPECT_EQ(texts(1 << 20, (1 << 20) - 1), (Texts{"1.000 MiB", "1023.999 KiB"}));
  EXPECT_EQ(texts(size, size), (Texts{"15.0 GiB", "15.0 GiB"}));
}

TEST(Message, RealsMatchStreamOutput) {
  for (const double number : {0.0, -0.0, 1.0, -2.5, 0.1, 1.0 / 3, 123456.0, 1234567.0, 1e-5, 0.0001,
                              6.02e23, -1e300, 5e-324, double{INFINITY}, double{NAN}}) {
    EXPECT_EQ(message(number), streamed(number));
    const auto single = static_cast<float>(number);
    EXPECT_EQ(message(single), streamed(single));
  }
  EXPECT_EQ(message(-double{NAN}), "nan");  // 0.0 / 0.0 has a sign on some processors
}

TEST(Message, JoinsPartsOfMixedTypes) {
  const std::string name = "blocks.0";
  EXPECT_EQ(message("the ", name, std::string_view(" has "), 3, 'x', 4.5f, "!"),
            "the blocks.0 has 3x4.5!");
}

TEST(Require, ThrowsJoinedMessageIfConditionFails) {
  EXPECT_NO_THROW(octavo::require<octavo::ConfigError>(true, "never"));
  try {
    octavo::require<octavo::ConfigError>(false, "batch is ", 0, "; give at least ", 1);
    FAIL() << "did not throw";
  } catch (const octavo::ConfigError& error) {
    EXPECT_STREQ(error.what(), "batch is 0; give at least 1");
  }
}

// what() ends at a NUL character: one at the begin would leave nothing.
TEST(Error, EscapesNulCharacters) {
  const std::string nul(1, '\0');
  EXPECT_STREQ(octavo::IoError(octavo::message(nul, "a", nul, nul, ": missing")).what(),
               "\\0a\\0\\0: missing");
}

}  // namespace
