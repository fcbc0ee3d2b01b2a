// Files that are what the format says are read, and all others refused with their name; what is
// written has the bytes that the format asks for.
#include <octavo/io/safetensors.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/safetensors_bytes.hpp"
#include "support/temporary_folder.hpp"

namespace safetensors_test {

using octavo::IoError;
using octavo::SafetensorsEntry;
using octavo::SafetensorsFile;
using octavo::SafetensorsWriter;
using support::eight_bytes;
using support::safetensors_bytes;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class Safetensors : public support::TemporaryFolder {
 protected:
  /// What the reader says of a file of these bytes; "none": nothing.
  std::string error_of(const std::string& bytes) {
    support::write_bytes(folder_ / "file", bytes);
    try {
      const SafetensorsFile file(folder_ / "file");
    } catch (const IoError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with((folder_ / "file").string()))
          << error.what();
      return error.what();
    }
    return "none";
  }
  void expect_refused(const std::string& bytes, std::string_view why) {
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find(why), std::string::npos) << error << "\n  lacks: " << why;
  }
};

TEST_F(Safetensors, ReadsTensorsByOffset) {
  support::write_bytes(
      folder_ / "file",
      safetensors_bytes(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},)"
                        R"("__metadata__":{"format":"pt"},)"
                        R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                        R"("e":{"dtype":"F32","shape":[4,0],"data_offsets":[2,2]}}   )",
                        "12345"));
  const SafetensorsFile file(folder_ / "file");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 3u);
  const SafetensorsEntry& a = file.tensors()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_TRUE(a.shape.empty());
  EXPECT_EQ(file.tensors()[1].name, "e");
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<octavo::Index>{4, 0}));
  const SafetensorsEntry& b = file.tensors()[2];
  EXPECT_EQ(b.name, "b");
  std::string two(2, ' ');
  file.read(b, 1, std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(two, "45");
  EXPECT_THROW(file.read(b, 2, std::as_writable_bytes(std::span(two))), octavo::UsageError);
}

TEST_F(Safetensors, KnowsAllDtypesOfTheFormat) {
  const std::map<std::string, int> bits{
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"F64", 64},    {"I64", 64},
      {"U64", 64},        {"C64", 64}};
  for (const auto& [dtype, width] : bits) {
    const auto bytes = static_cast<std::size_t>(width);  // of eight elements
    EXPECT_EQ(error_of(safetensors_bytes({{"t", dtype, {2, 4}, std::string(bytes, 'x')}})), "none");
    expect_refused(safetensors_bytes({{"t", dtype, {2, 4}, std::string(bytes + 1, 'x')}}),
                   "tensor t has");
  }
  expect_refused(safetensors_bytes({{"t", "F128", {1}, std::string(16, 'x')}}),
                 "tensor t has the dtype F128, which does not exist");
  expect_refused(safetensors_bytes({{"t", "F4", {3}, "xx"}}), "12 bits");
}

TEST_F(Safetensors, RejectsInvalidHeaderLengths) {
  for (std::size_t size = 0; size < 8; ++size) {
    expect_refused(std::string(size, '\0'), "fewer than the 8");
  }
  expect_refused(eight_bytes(~std::uint64_t{0}) + "{}", "bytes, but has 18446744073709551615");
  expect_refused(eight_bytes(100'000'001) + "{}", "must have at most 100000000 bytes");
  expect_refused(eight_bytes(100'000'000) + "{}", "100000000 bytes, but only 2 remain");
  expect_refused(eight_bytes(3) + "{}", "3 bytes, but only 2 remain");
  expect_refused(eight_bytes(0), "at byte 8: the text ends early");
  EXPECT_EQ(error_of(eight_bytes(2) + "{}"), "none");
}

TEST_F(Safetensors, RejectsInvalidJsonHeaders) {
  expect_refused(safetensors_bytes("{\"\xff\":1}"), "at byte 10: the bytes are not valid UTF-8");
  expect_refused(safetensors_bytes(R"({"a":{"dtype":"U8","sha)"), "the string does not end");
  expect_refused(safetensors_bytes("[]"), "at byte 8: expected an object");
  expect_refused(safetensors_bytes("{} x"), "continues after its value");
  expect_refused(safetensors_bytes("{\"a\":" + std::string(100'000, '[')), "nested more than 32");
  expect_refused(safetensors_bytes(R"({"__metadata__":{"a":1}})"),
                 "in __metadata__.a: expected a string, but found 1; use another file");
  expect_refused(safetensors_bytes(R"({"__metadata__":{"a":{}}})"), "expected a string");
}

TEST_F(Safetensors, RejectsInvalidEntries) {
  const auto refused = [&](const std::string& entry, std::string_view why) {
    expect_refused(safetensors_bytes("{\"t\":{" + entry + "}}", "xx"), why);
  };
  refused(R"("dtype":"U8","shape":[2])", "tensor t lacks");
  refused(R"("dtype":"U8","data_offsets":[0,2])", "tensor t lacks");
  refused(R"("shape":[2],"data_offsets":[0,2])", "tensor t lacks");
  refused(R"("dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1)", "tensor t has x");
  refused(R"("dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2])", "dtype appears twice");
  refused(R"("dtype":"U8","shape":[-1],"data_offsets":[0,2])", "-1 is not a whole number");
  refused(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,2])", "1.5 is not a whole number");
  refused(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,2])",
          "tensor t has a shape of more elements than can be counted");
  refused(R"("dtype":"U8","shape":[2],"data_offsets":[0,1,2])", "not a begin and an end");
  refused(R"("dtype":"U8","shape":[2],"data_offsets":[2,0])", "not a begin and an end");
  refused(R"("dtype":"BF16","shape":[2],"data_offsets":[0,2])",
          "2 bytes, but its shape and BF16 need 4");
}

TEST_F(Safetensors, RejectsHolesOverlapsAndWrongEnds) {
  const auto file = [](int begin, int middle, int second, int end, std::size_t size) {
    const auto entry = [](int from, int to) {
      return nlohmann::json{{"dtype", "U8"}, {"shape", {to - from}}, {"data_offsets", {from, to}}};
    };
    const nlohmann::json header{{"a", entry(begin, middle)}, {"b", entry(second, end)}};
    return safetensors_bytes(header.dump(), std::string(size, 'x'));
  };
  EXPECT_EQ(error_of(file(0, 2, 2, 5, 5)), "none");
  expect_refused(file(1, 2, 2, 5, 5), "tensor a begins at byte 1 of the data");
  expect_refused(file(0, 2, 3, 5, 5),
                 "tensor b begins at byte 3 of the data, but the one before ends at 2");
  expect_refused(file(0, 2, 1, 5, 5), "tensor b begins at byte 1");
  expect_refused(file(0, 2, 0, 5, 5), "tensor b begins at byte 0");
  expect_refused(file(0, 2, 2, 5, 4), "5 bytes, but 4 follow");
  expect_refused(file(0, 2, 2, 5, 6), "5 bytes, but 6 follow");
}

TEST_F(Safetensors, RejectsDuplicateTensors) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_refused(safetensors_bytes("{\"t\":" + entry + ",\"t\":" + entry + "}"),
                 "the key t appears twice");
}

TEST_F(Safetensors, ReportsMissingFile) {
  try {
    const SafetensorsFile file(folder_ / "missing");
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("missing: cannot be read: No such file"),
              std::string::npos);
  }
  EXPECT_THROW(const SafetensorsFile file(folder_), IoError);
}

TEST_F(Safetensors, ThrowsForFileTruncatedWhileOpen) {
  support::write_bytes(folder_ / "file", safetensors_bytes({{"t", "U8", {4}, "abcd"}}));
  const SafetensorsFile file(folder_ / "file");
  std::filesystem::resize_file(folder_ / "file", std::filesystem::file_size(folder_ / "file") - 1);
  std::string four(4, ' ');
  EXPECT_THROW(file.read(file.tensors()[0], 0, std::as_writable_bytes(std::span(four))), IoError);
}

// Parts of 8 MiB: from within one to within the fourth.
TEST_F(Safetensors, WritesAndReadsTensorsInParallel) {
  constexpr std::size_t size = (std::size_t{3} << 23) + 1000;
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i >> 10 ^ i);
  {
    SafetensorsWriter writer(folder_ / "file", {{"t", "U8", {static_cast<octavo::Index>(size)}}});
    writer.write("t", 0, bytes_of(bytes), octavo::Context<octavo::Cpu>(3));
    writer.commit();
  }
  const SafetensorsFile file(folder_ / "file");
  for (const int threads : {1, 3}) {
    std::vector<std::byte> read(size - 77 - 5);
    file.read(file.tensors().front(), 77, read, octavo::Context<octavo::Cpu>(threads));
    EXPECT_TRUE(std::ranges::equal(read, bytes_of(bytes).subspan(77, read.size())));
  }
  std::filesystem::resize_file(folder_ / "file", std::filesystem::file_size(folder_ / "file") - 1);
  std::vector<std::byte> read(size);
  EXPECT_THROW(file.read(file.tensors().front(), 0, read, octavo::Context<octavo::Cpu>(3)),
               IoError);
}

TEST_F(Safetensors, WritesByDescendingSizeThenName) {
  const std::filesystem::path path = folder_ / "file";
  SafetensorsWriter writer(path, {{"b", "BF16", {2}},
                                  {"c", "F32", {1}},
                                  {"a", "BF16", {1, 1}},
                                  {"n", "U8", {}},
                                  {"e", "F32", {0}}});
  writer.write("n", 0, bytes_of("n"));
  writer.write("b", 2, bytes_of("b2"));  // in any order
  writer.write("b", 0, bytes_of("b1"));
  writer.write("c", 0, bytes_of("c123"));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THROW(writer.commit(), octavo::UsageError);
  writer.write("a", 0, bytes_of("a1"));
  EXPECT_THROW(writer.write("a", 0, bytes_of("a1")), octavo::UsageError);
  EXPECT_THROW(writer.write("x", 0, bytes_of("a1")), octavo::UsageError);
  writer.commit();
  EXPECT_EQ(entries(), 1);

  const std::string file = content(path);
  const auto length = static_cast<std::size_t>(static_cast<unsigned char>(file[0])) +
                      256 * static_cast<std::size_t>(static_cast<unsigned char>(file[1]));
  EXPECT_EQ(eight_bytes(length), file.substr(0, 8));
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(nlohmann::json::parse(file.substr(8, length)).at("__metadata__"),
            (nlohmann::json{{"format", "pt"}}));
  EXPECT_EQ(file.substr(8 + length), "c123a1b1b2n");
  EXPECT_EQ(error_of(file), "none");
  std::map<std::string, std::string> written;
  for (const support::RawTensor& tensor : support::parse_raw_tensors(file)) {
    written[tensor.name] = tensor.bytes;
  }
  EXPECT_EQ(written, (std::map<std::string, std::string>{
                         {"a", "a1"}, {"b", "b1b2"}, {"c", "c123"}, {"e", ""}, {"n", "n"}}));
}

TEST_F(Safetensors, DiscardsUncommittedFile) {
  const std::filesystem::path path = folder_ / "file";
  support::write_bytes(path, "old");
  {
    SafetensorsWriter writer(path, {{"t", "U8", {2}}});
    writer.write("t", 0, bytes_of("x"));
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Safetensors, LeavesNoFileOnFullDisk) {
  if (!mount_small_disk()) GTEST_SKIP() << "this user may not mount a small disk";
  const std::string much(1 << 20, 'x');
  const auto write = [&] {
    SafetensorsWriter writer(folder_ / "file", {{"t", "U8", {1 << 20}}});
    writer.write("t", 0, bytes_of(much));
    writer.commit();
  };
  EXPECT_THROW(write(), IoError);
  EXPECT_EQ(entries(), 0);
}

}  // namespace safetensors_test
