// Files of tokens, byte by byte as their formats are described, and none after an error.
#include <octavo/data/token_file.hpp>
#include <octavo/io/token_file_writer.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"

namespace token_file_writer_test {

using namespace octavo;
using Documents = std::vector<std::vector<std::int32_t>>;

std::string bytes_of(const std::vector<std::int64_t>& values, int width) {
  std::string bytes;
  for (const std::int64_t value : values)
    for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
  return bytes;
}

class TokenFileWriterTest : public support::TemporaryFolder {
 protected:
  void write(const std::string& name, TokenFileKind kind, Index vocabulary,
             const Documents& documents) {
    TokenFileWriter writer(folder_ / name, kind, vocabulary);
    for (const auto& document : documents) writer.add(document);
    writer.commit();
  }

  /// What a program that trains reads.
  std::vector<std::int32_t> read(const std::string& name, Index vocabulary) {
    const Tokens tokens = open_token_file(folder_ / name, vocabulary);
    std::vector<std::int32_t> all(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, all);
    return all;
  }
};

TEST_F(TokenFileWriterTest, WritesHeaderAndTokensOfLlmC) {
  struct Case {
    Index vocabulary;
    std::int64_t magic, version;
    int width;
  };
  for (const auto& [vocabulary, magic, version, width] :
       {Case{65'536, 20240520, 1, 2}, Case{65'537, 20240801, 7, 4}}) {
    const std::string name = "tokens" + std::to_string(width) + ".bin";
    write(name, TokenFileKind::llm_c, vocabulary, {{1, 65'535}, {}, {258}});
    std::string expected = bytes_of({magic, version, 3}, 4);
    expected.resize(1024);
    EXPECT_EQ(content(folder_ / name), expected + bytes_of({1, 65'535, 258}, width));
    EXPECT_EQ(read(name, vocabulary), (std::vector<std::int32_t>{1, 65'535, 258}));
  }
}

TEST_F(TokenFileWriterTest, PreservesDotsInNames) {
  write("web-1.0", TokenFileKind::megatron, 100, {{1, 2}});
  write("web-1.1", TokenFileKind::megatron, 100, {{3}});
  EXPECT_EQ(read("web-1.0.bin", 100), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(read("web-1.1.bin", 100), (std::vector<std::int32_t>{3}));
}

TEST_F(TokenFileWriterTest, WritesTokensAndIndexOfMegatron) {
  struct Case {
    Index vocabulary;
    std::int64_t type;
    int width;
  };
  for (const auto& [vocabulary, type, width] : {Case{65'499, 8, 2}, Case{65'500, 4, 4}}) {
    const std::string name = "tokens" + std::to_string(width);
    write(name + ".idx", TokenFileKind::megatron, vocabulary, {{7, 300}, {9}});
    EXPECT_EQ(content(folder_ / (name + ".bin")), bytes_of({7, 300, 9}, width));
    EXPECT_EQ(content(folder_ / (name + ".idx")),
              std::string("MMIDIDX\0\0", 9) + bytes_of({1}, 8) + bytes_of({type}, 1) +
                  bytes_of({2, 3}, 8) + bytes_of({2, 1}, 4) + bytes_of({0, 2 * width}, 8) +
                  bytes_of({0, 1, 2}, 8));
    EXPECT_EQ(read(name + ".bin", vocabulary), (std::vector<std::int32_t>{7, 300, 9}));
  }
}

TEST_F(TokenFileWriterTest, WritesMoreThanItsBufferHolds) {
  std::vector<std::int32_t> document(700'001);
  for (std::size_t i = 0; i < document.size(); ++i)
    document[i] = static_cast<std::int32_t>(i % 65'521);
  write("long.bin", TokenFileKind::llm_c, 65'536, {document});
  EXPECT_EQ(read("long.bin", 65'536), document);
}

TEST_F(TokenFileWriterTest, LeavesNothingWithoutACommit) {
  {
    TokenFileWriter writer(folder_ / "a", TokenFileKind::megatron, 10);
    writer.add(std::vector<std::int32_t>{1, 2});
    EXPECT_EQ(writer.tokens(), 2);
    EXPECT_THROW(writer.add(std::vector<std::int32_t>{10}), ConfigError);
    EXPECT_THROW(writer.add(std::vector<std::int32_t>{-1}), ConfigError);
  }
  EXPECT_EQ(entries(), 0);
}

TEST_F(TokenFileWriterTest, FailedCommitLeavesNeitherFile) {
  {
    TokenFileWriter writer(folder_ / "a", TokenFileKind::megatron, 10);
    writer.add(std::vector<std::int32_t>{1, 2});
    std::filesystem::create_directory(folder_ / "a.bin");  // of which no file can take the place
    EXPECT_THROW(writer.commit(), IoError);
  }
  EXPECT_EQ(entries(), 1);
}

TEST_F(TokenFileWriterTest, ReplacesNoFile) {
  std::ofstream(folder_ / "a.idx") << "index";
  std::ofstream(folder_ / "b.bin") << "tokens";
  for (const TokenFileKind kind : {TokenFileKind::llm_c, TokenFileKind::megatron}) {
    EXPECT_THROW(TokenFileWriter(folder_ / "a.bin", kind, 10), IoError);
    EXPECT_THROW(TokenFileWriter(folder_ / "b.bin", kind, 10), IoError);
  }
  EXPECT_EQ(content(folder_ / "a.idx"), "index");
  EXPECT_EQ(content(folder_ / "b.bin"), "tokens");
  EXPECT_EQ(entries(), 2);
}

}  // namespace token_file_writer_test
