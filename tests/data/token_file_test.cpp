// Token files of other programs, written byte by byte as their formats are described.
#include <octavo/data/token_file.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <sys/resource.h>

#include "support/temporary_folder.hpp"

namespace token_file_test {

namespace fs = std::filesystem;
using namespace octavo;

/// `width` bytes of a number, the lowest first.
std::string bytes_of(std::int64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
  return bytes;
}

std::string bytes_of(const std::vector<std::int64_t>& values, int width) {
  std::string bytes;
  for (const std::int64_t value : values) bytes += bytes_of(value, width);
  return bytes;
}

std::string llm_c_header(std::int64_t magic, std::int64_t version, std::int64_t tokens) {
  std::string header = bytes_of({magic, version, tokens}, 4);
  header.resize(1024);
  return header;
}

/// An index of Megatron of these lengths, pointers and documents.
struct MegatronIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::int64_t version = 1;
  std::int64_t type = 8;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents;

  [[nodiscard]] std::string bytes() const {
    return magic + bytes_of(version, 8) + bytes_of(type, 1) +
           bytes_of(static_cast<std::int64_t>(lengths.size()), 8) +
           bytes_of(static_cast<std::int64_t>(documents.size()), 8) + bytes_of(lengths, 4) +
           bytes_of(pointers, 8) + bytes_of(documents, 8);
  }
};

/// Seven tokens of 16 bits in three sequences, two documents.
MegatronIndex good_index() {
  return {.lengths = {3, 0, 4}, .pointers = {0, 6, 6}, .documents = {0, 2, 3}};
}
const std::vector<std::int64_t> seven{5, 0, 255, 256, 40000, 1, 2};
constexpr Index vocabulary = 50000;

class TokenFiles : public support::TemporaryFolder {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) const {
    fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  static std::vector<std::int64_t> tokens_of(const fs::path& path, Index below = vocabulary) {
    const Tokens tokens = open_token_file(path, below);
    std::vector<std::int32_t> read(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, read);
    return {read.begin(), read.end()};
  }

  /// Reading all tokens is an error that names the file and says `part`.
  static void refused(const fs::path& path, std::string_view part, Index below = vocabulary) {
    try {
      (void)tokens_of(path, below);
      ADD_FAILURE() << "no error that says: " << part;
    } catch (const IoError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(path.string()), std::string::npos) << text;
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }

  fs::path write_megatron(const MegatronIndex& index, const std::string& tokens) const {
    write("m.bin", tokens);
    return write("m.idx", index.bytes());
  }
};

TEST_F(TokenFiles, ReadsLlmCFormat) {
  EXPECT_EQ(tokens_of(write("gpt2.bin", llm_c_header(20240520, 1, 7) + bytes_of(seven, 2))), seven);
  const std::vector<std::int64_t> wide{128000, 70000, 1};
  const fs::path llama = write("llama3.bin", llm_c_header(20240801, 7, 3) + bytes_of(wide, 4));
  EXPECT_EQ(tokens_of(llama, 128256), wide);
  // The header tells, whatever the name.
  EXPECT_EQ(tokens_of(write("shard_0", llm_c_header(20240520, 1, 7) + bytes_of(seven, 2))), seven);
}

TEST_F(TokenFiles, ReadsNanoGptFormat) {
  EXPECT_EQ(tokens_of(write("train.bin", bytes_of(seven, 2))), seven);
  EXPECT_EQ(tokens_of(write("one.bin", bytes_of(7, 2))), (std::vector<std::int64_t>{7}));
}

TEST_F(TokenFiles, RejectsWideMegatronTokensWithoutIndex) {
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 100; ++i) many.push_back(100'000 + 700 * i);
  for (const int width : {4, 8})
    refused(write("m.bin", bytes_of(many, width)), "add Megatron's index", 200'000);
  // Of 16 bits, tokens are the same with the index and without.
  const std::vector<std::int64_t> narrow(many.size(), 1000);
  EXPECT_EQ(tokens_of(write("n.bin", bytes_of(narrow, 2))), narrow);
  const std::vector<std::int64_t> small(many.size(), 1);
  EXPECT_EQ(tokens_of(write("s.bin", bytes_of(small, 2))), small);
}

TEST_F(TokenFiles, IdentifiesSourceProgram) {
  const auto program_of = [](const fs::path& path) {
    return std::string(find_token_layout(path)->program);
  };
  EXPECT_EQ(program_of(write_megatron(good_index(), bytes_of(seven, 2))), "Megatron");
  EXPECT_EQ(program_of(write("a.bin", llm_c_header(20240520, 1, 7))), "llm.c");
  EXPECT_EQ(program_of(write("b.bin", bytes_of(seven, 2))), "nanoGPT (no header)");
}

TEST_F(TokenFiles, ReadsMegatronIntegerTypes) {
  const std::vector<std::int64_t> small{5, 0, 127, 100, 40, 1, 2};
  const std::vector<int> widths{0, 1, 1, 2, 4, 8, 0, 0, 2};
  for (const std::int64_t type : {1, 2, 3, 4, 5, 8}) {
    const int width = widths[static_cast<std::size_t>(type)];
    MegatronIndex index = good_index();
    index.type = type;
    index.pointers = {0, 3 * width, 3 * width};
    const fs::path path = write_megatron(index, bytes_of(small, width));
    EXPECT_EQ(tokens_of(path), small) << type;
    EXPECT_EQ(tokens_of(folder_ / "m.bin"), small) << "the tokens' file names both, too";
  }
}

TEST_F(TokenFiles, ReadsArbitraryParts) {
  std::vector<std::int64_t> many;  // more than are read at once
  for (std::int64_t i = 0; i < 30000; ++i) many.push_back(i * i % 50000);
  const Tokens tokens = open_token_file(
      write("gpt2.bin", llm_c_header(20240520, 1, 30000) + bytes_of(many, 2)), vocabulary);
  EXPECT_EQ(tokens.size(), 30000);
  for (const Index first : {0, 1, 8191, 17000}) {
    std::vector<std::int32_t> read(13000);
    tokens.read(first, read);
    EXPECT_EQ(std::vector<std::int64_t>(read.begin(), read.end()),
              std::vector<std::int64_t>(many.begin() + first, many.begin() + first + 13000));
  }
  std::vector<std::int32_t> beyond(2);
  EXPECT_THROW(tokens.read(29999, beyond), ShapeError);
  EXPECT_THROW(tokens.read(-1, beyond), ShapeError);
  EXPECT_THROW((void)tokens.part(20000, 10001), ShapeError);
}

TEST_F(TokenFiles, JoinedFilesConcatenateTokens) {
  const Tokens a = open_token_file(write("a.bin", bytes_of({1, 2, 3}, 2)), vocabulary);
  const Tokens b = open_token_file(write("b.bin", bytes_of(4, 2)), vocabulary);
  const Tokens c = open_token_file(write("c.bin", bytes_of({5, 6, 7, 8}, 2)), vocabulary);
  const Tokens all = joined({a, b, c});
  ASSERT_EQ(all.size(), 8);
  for (Index first = 0; first < 8; ++first) {
    for (Index count = 0; first + count <= 8; ++count) {
      std::vector<std::int32_t> read(static_cast<std::size_t>(count));
      all.part(first, 8 - first).read(0, read);
      for (Index i = 0; i < count; ++i)
        EXPECT_EQ(read[static_cast<std::size_t>(i)], first + i + 1) << first << " + " << i;
    }
  }
  EXPECT_EQ(joined({a, b, c}).hash(), all.hash());
  const Tokens other = open_token_file(write("other.bin", bytes_of({1, 2, 4}, 2)), vocabulary);
  EXPECT_NE(joined({other, b, c}).hash(), all.hash()) << "of as many tokens";
  EXPECT_NE(joined({b, a, c}).hash(), all.hash());
  EXPECT_NE(all.part(1, 7).hash(), all.part(0, 7).hash());
}

TEST_F(TokenFiles, ReportsPlaceOfTokenOutsideVocabulary) {
  auto tokens = seven;
  const fs::path path = write("gpt2.bin", llm_c_header(20240520, 1, 7) + bytes_of(tokens, 2));
  EXPECT_EQ(tokens_of(path, 40001), seven);
  refused(path, "the token at byte 1032 is 40000, outside the vocabulary of 40000", 40000);
  MegatronIndex index = good_index();
  index.type = 3;
  tokens[6] = -2;
  tokens[4] = 4;
  write_megatron(index, bytes_of(tokens, 2));
  refused(folder_ / "m.bin", "the token at byte 12 is -2");
  index.type = 5;
  index.pointers = {0, 24, 24};
  tokens[6] = std::int64_t{1} << 32;  // whose low half is a token
  write_megatron(index, bytes_of(tokens, 8));
  refused(folder_ / "m.bin", "the token at byte 48 is 4294967296");
  const fs::path llama = write("llama3.bin", llm_c_header(20240801, 7, 1) + bytes_of(-1, 4));
  refused(llama, "the token at byte 1024 is 4294967295");
}

// Found when it is read, in whatever part.
TEST_F(TokenFiles, ChecksOnlyTokensThatAreRead) {
  const Tokens tokens = open_token_file(write("train.bin", bytes_of(seven, 2)), 40000);
  std::vector<std::int32_t> read(4);
  EXPECT_NO_THROW(tokens.read(0, read));
  EXPECT_THROW(tokens.read(1, read), IoError);
}

TEST_F(TokenFiles, RejectsInvalidLlmCHeaders) {
  const std::string tokens = bytes_of(seven, 2);
  const auto refuse = [&](const std::string& header, std::string_view part) {
    refused(write("x.bin", header + tokens), part);
  };
  refuse(llm_c_header(20240520, 2, 7),
         "its version, at byte 4, must be 1 for files of 20240520, but is 2");
  refuse(llm_c_header(20240801, 1, 7),
         "its version, at byte 4, must be 7 for files of 20240801, but is 1");
  refuse(llm_c_header(20240522, 1, 7), "but it begins with 20240522; name a token file");
  refuse(
      llm_c_header(20250520, 1, 7),
      "begins as a header of an unknown kind, with 20250520 and zeros from byte 12 to 1024; write "
      "it with a header of llm.c, which begins with 20240520 or 20240801");
  refuse(std::string("\x93NUMPY") + std::string(1024, ' '), "begins as an array of NumPy");
  refuse(std::string("PK\x03\x04") + std::string(1024, ' '), "begins as a ZIP file");
  refuse(llm_c_header(20240520, 1, 8),
         "has 1038 bytes, but must have 1040 for 8 tokens of 2 bytes from byte 1024");
  refuse(llm_c_header(20240520, 1, 6), "must have 1036 for 6 tokens");
  refuse(llm_c_header(20240801, 7, 7), "must have 1052 for 7 tokens of 4 bytes from byte 1024");
  refuse(llm_c_header(20240520, 1, -7),
         "its number of tokens, at byte 8, must not be negative, but is -7");
  refused(write("x.bin", llm_c_header(20240520, 1, 0)), "contains no token");
  refused(write("x.bin", llm_c_header(20240520, 1, 0).substr(0, 1023)),
          "at least 1024 bytes for a header of llm.c, but has 1023");
}

// However short the file is: an array of few tokens, or a file that compresses well.
TEST_F(TokenFiles, RejectsShortFilesOfOtherFormats) {
  for (const std::size_t size : std::initializer_list<std::size_t>{8, 700, 1022, 1024}) {
    const auto refuse = [&](std::string bytes, std::string_view part) {
      bytes.resize(size, ' ');
      refused(write("x.bin", bytes), part);
    };
    refuse("\x93NUMPY", "begins as an array of NumPy; write it with a header of llm.c");
    refuse("PK\x03\x04", "begins as a ZIP file");
    refuse("\x28\xb5\x2f\xfd", "begins as a Zstandard file");
    refuse("PAR1", "begins as a Parquet file");
  }
  const std::string zeros = bytes_of(20250520, 4) + std::string(1018, '\0');
  EXPECT_EQ(open_token_file(write("zeros.bin", zeros), 40000).size(), 511) << "too short for one";
}

TEST_F(TokenFiles, RejectsInvalidFilesWithoutHeader) {
  refused(write("odd.bin", "abc"), "has 3 bytes, but without a header each token has 2 bytes");
  refused(write("empty.bin", ""), "contains no token");
  refused(write("text.txt", "some text"), "is not a token file");
  EXPECT_FALSE(find_token_layout(folder_ / "text.txt").has_value());
  refused(folder_ / "missing.bin", "No such file");
}

TEST_F(TokenFiles, RejectsInvalidMegatronIndices) {
  const std::string tokens = bytes_of(seven, 2);
  const auto refuse = [&](const auto& change, std::string_view part) {
    MegatronIndex index = good_index();
    change(index);
    refused(write_megatron(index, tokens), part);
  };
  EXPECT_EQ(tokens_of(write_megatron(good_index(), tokens)), seven);
  refuse([](MegatronIndex& index) { index.magic[3] = 'X'; }, "it does not begin with MMIDIDX");
  refuse([](MegatronIndex& index) { index.version = 2; },
         "its version, at byte 9, must be 1, but is 2");
  for (const std::int64_t type : {0, 6, 7, 9, 255}) {
    refuse([&](MegatronIndex& index) { index.type = type; },
           "the type of its tokens, at byte 17, must be an integer (1 to 5, or 8), but is " +
               std::to_string(type));
  }
  refuse([](MegatronIndex& index) { index.pointers[1] = 1000; }, "at byte 54, is 1000");
  refuse([](MegatronIndex& index) { index.pointers[0] = -2; }, "at byte 46, is -2");
  refuse([](MegatronIndex& index) { index.lengths[1] = -1; },
         "the length of a sequence, at byte 38, is -1");
  refuse([](MegatronIndex& index) { index.documents[2] = 4; },
         "the first sequence of a document, at byte 86, is 4");
  refuse([](MegatronIndex& index) { index.documents[2] = 2; }, "at byte 86, is 2");
  refuse([](MegatronIndex& index) { index.documents[0] = 1; }, "at byte 70, is 1");
  refuse([](MegatronIndex& index) { index.documents = {0, 3, 2, 3}; }, "at byte 86, is 2");
  refuse([](MegatronIndex& index) { index.lengths.push_back(1); },
         "its 98 bytes do not match 4 sequences (byte 18)");
}

TEST_F(TokenFiles, RejectsWrongMegatronSizes) {
  const std::string index = good_index().bytes();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{8}, std::size_t{33}, std::size_t{60}, index.size() - 1}) {
    write("m.bin", bytes_of(seven, 2));
    refused(write("m.idx", index.substr(0, bytes)),
            bytes < 9    ? "MMIDIDX"
            : bytes < 34 ? "has " + std::to_string(bytes)
                         : "its " + std::to_string(bytes) + " bytes");
  }
  refused(write("m.idx", index + "x"), "its 95 bytes");
  // Numbers whose products are beyond any type.
  std::string huge = index;
  huge.replace(18, 16, bytes_of({std::int64_t{1} << 62, std::int64_t{1} << 61}, 8));
  refused(write("m.idx", huge), "sequences (byte 18)");
  write("m.idx", index);
  refused(write("m.bin", bytes_of(seven, 2) + "x"),
          "has 15 bytes, but must have 14 for 7 tokens of 2 bytes");
  refused(write("m.bin", bytes_of(seven, 2).substr(2)), "m.idx; write it again");
  fs::remove(folder_ / "m.bin");
  EXPECT_THROW((void)open_token_file(folder_ / "m.idx", vocabulary), IoError);
}

TEST_F(TokenFiles, ThrowsForFileTruncatedWhileOpen) {
  const fs::path path = write("train.bin", bytes_of(std::vector<std::int64_t>(50000, 3), 2));
  const Tokens tokens = open_token_file(path, vocabulary);
  fs::resize_file(path, 8000);
  std::vector<std::int32_t> read(1000);
  EXPECT_NO_THROW(tokens.read(3000, read));
  try {
    tokens.read(3500, read);
    ADD_FAILURE() << "tokens that there are not were read";
  } catch (const IoError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(path.string() + ": cannot be read: bytes 7000 to 9000 are missing: it had "
                                        "100000 bytes when it was opened, but has 8000 now"),
              std::string::npos)
        << text;
  }
}

TEST_F(TokenFiles, ReportsTooManyOpenFiles) {
  const fs::path path = write("train.bin", bytes_of(seven, 2));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<Tokens> open;
  std::string error;
  try {
    for (int i = 0; i < 30; ++i) open.push_back(open_token_file(path, vocabulary));
  } catch (const IoError& caught) {
    error = caught.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(error.find("raise the limit on open files (ulimit -n)"), std::string::npos) << error;
}

TEST_F(TokenFiles, SupportsMoreThan2To31Tokens) {
  constexpr std::uint64_t count = (std::uint64_t{1} << 31) + 1000;
  const fs::path path = write("train.bin", "");
  std::error_code error;
  fs::resize_file(path, 2 * count, error);
  if (error) GTEST_SKIP() << "this file system has no files with holes: " << error.message();
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(2 * count - 14));
    file << bytes_of(seven, 2);
  }
  const Tokens tokens = open_token_file(path, vocabulary);
  ASSERT_EQ(tokens.size(), static_cast<Index>(count));
  std::vector<std::int32_t> read(8);
  tokens.read(static_cast<Index>(count) - 8, read);
  EXPECT_EQ(read, (std::vector<std::int32_t>{0, 5, 0, 255, 256, 40000, 1, 2}));
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(-2, std::ios::end)
      << bytes_of(3, 2);
  EXPECT_NE(open_token_file(path, vocabulary).hash(), tokens.hash()) << "its end is not looked at";
}

TEST_F(TokenFiles, HashDependsOnContent) {
  const auto hash_of = [&](const std::string& bytes) {
    return open_token_file(write("x.bin", bytes), vocabulary).hash();
  };
  const std::string bytes = bytes_of(std::vector<std::int64_t>(20000, 77), 2);
  const std::uint64_t before = hash_of(bytes);
  EXPECT_EQ(open_token_file(write("copy.bin", bytes), vocabulary).hash(), before);
  for (const std::size_t place : {std::size_t{0}, std::size_t{20001}, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[place] ^= 1;
    EXPECT_NE(hash_of(changed), before) << place;
  }
  EXPECT_NE(hash_of(bytes.substr(2)), before);
}

}  // namespace token_file_test
