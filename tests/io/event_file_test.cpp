#include <octavo/io/event_file.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"

namespace event_file_test {

using octavo::EventSummary;

class EventFile : public support::TemporaryFolder {
 protected:
  /// What a file holds once something was written to it at time 1.
  template <class Write>
  std::string written(const Write& write) {
    octavo::EventFile file(folder_, 1.0);
    write(file);
    std::ifstream stream(file.path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    std::filesystem::remove(file.path());
    return bytes;
  }
};

std::string hex(std::string_view bytes) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

/// What TensorFlow's own writer makes of the same events.
constexpr const char* golden_begin =
    "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
constexpr const char* golden_loss =
    "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000204087ccc43d";

TEST_F(EventFile, MatchesTensorFlowBytes) {
  const std::string bytes = written(
      [](octavo::EventFile& file) { file.write(7, EventSummary{}.add_scalar("loss", 2.5), 1.0); });
  EXPECT_EQ(hex(bytes), std::string(golden_begin) + golden_loss);
}

/// An Event of step 7 whose field 7, session_log, is a SessionLog whose field 1, status, is START:
/// by TensorFlow's core/util/event.proto, made apart from this library.
constexpr const char* golden_start =
    "0f000000000000006d532b0909000000000000f03f10073a020801c1c3ddcf";

TEST_F(EventFile, WritesSessionStartAtStep) {
  const std::string bytes = written([](octavo::EventFile& file) { file.begin_steps(7, 1.0); });
  EXPECT_EQ(hex(bytes), std::string(golden_begin) + golden_start);
}

TEST_F(EventFile, HasTensorBoardFileName) {
  const octavo::EventFile file(folder_, 1234567.0);
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents.1234567."))
      << file.path();
}

TEST_F(EventFile, ReportsMissingFolder) {
  try {
    const octavo::EventFile file(folder_ / "none", 1.0);
    FAIL() << "a file in a folder that there is not";
  } catch (const octavo::IoError& error) {
    EXPECT_NE(std::string(error.what()).find("check that its folder exists"), std::string::npos);
  }
}

/// Fields of a message: numbers as they are, text and messages as bytes.
std::multimap<unsigned, std::string> fields(std::string_view bytes) {
  std::multimap<unsigned, std::string> result;
  const auto varint = [&bytes] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(0));
      bytes.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (!bytes.empty()) {
    const std::uint64_t key = varint();
    const std::size_t size = (key & 7) == 1   ? 8
                             : (key & 7) == 5 ? 4
                             : (key & 7) == 2 ? varint()
                                              : 0;
    const std::string value =
        (key & 7) == 0 ? std::to_string(varint()) : std::string(bytes.substr(0, size));
    bytes.remove_prefix(size);
    result.emplace(static_cast<unsigned>(key >> 3), value);
  }
  return result;
}

std::string field(std::string_view message, unsigned number) {
  const auto all = fields(message);
  return all.count(number) == 1 ? all.find(number)->second : "no field, or several";
}

std::vector<double> doubles(const std::string& bytes) {
  std::vector<double> values(bytes.size() / 8);
  std::memcpy(values.data(), bytes.data(), 8 * values.size());
  return values;
}

/// The first value of the event of a file that has no other event.
std::string value_of(const std::string& file) {
  const std::size_t begin = std::string(golden_begin).size() / 2 + 12;
  const std::string event = file.substr(begin, file.size() - begin - 4);
  return field(field(event, 5), 1);
}

TEST_F(EventFile, HistogramsUsePowerOfTwoBuckets) {
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string file = written([&](octavo::EventFile& events) {
    events.write(3, EventSummary{}.add_histogram(
                        "amax", {3.0, -3.0, 0.0, 4.0, infinite, 0.3, 3.5, std::nan("")}));
  });
  const std::string value = value_of(file);
  EXPECT_EQ(field(value, 1), "amax");
  const std::string histogram = field(value, 5);
  EXPECT_EQ(doubles(field(histogram, 1)), std::vector<double>{-3.0});
  EXPECT_EQ(doubles(field(histogram, 2)), std::vector<double>{4.0});
  EXPECT_EQ(doubles(field(histogram, 3)), std::vector<double>{6.0});
  EXPECT_EQ(doubles(field(histogram, 4)), std::vector<double>{3.0 - 3.0 + 4.0 + 0.3 + 3.5});
  EXPECT_EQ(doubles(field(histogram, 6)), (std::vector<double>{-2.0, 0.0, 0.25, 0.5, 2.0, 4.0}));
  EXPECT_EQ(doubles(field(histogram, 7)), (std::vector<double>{1.0, 1.0, 0.0, 1.0, 0.0, 3.0}));
}

TEST_F(EventFile, WritesTextForTextPlugin) {
  const std::string file = written([](octavo::EventFile& events) {
    events.write(0, EventSummary{}.add_text("run", "steps: 7"));
  });
  const std::string value = value_of(file);
  EXPECT_EQ(field(value, 1), "run");
  EXPECT_EQ(field(field(field(value, 9), 1), 1), "text");
  EXPECT_EQ(field(field(value, 8), 1), "7");  // DT_STRING
  EXPECT_EQ(field(field(value, 8), 8), "steps: 7");
}

}  // namespace event_file_test
