#include <octavo/data/text_stream.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <octavo/data/text.hpp>

#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include "support/temporary_folder.hpp"

namespace text_stream_test {

namespace fs = std::filesystem;
using octavo::detail::TextStream;

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string result(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

std::string zstd(std::string_view text) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string result(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size =
      ZSTD_compress2(context, result.data(), result.size(), text.data(), text.size());
  EXPECT_EQ(ZSTD_isError(size), 0u);
  ZSTD_freeCCtx(context);
  result.resize(size);
  return result;
}

/// Printable text, of which little is repeated.
std::string random_text(std::size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(bytes));
  std::string text(bytes, '\0');
  for (char& letter : text) letter = static_cast<char>(32 + random() % 95);
  return text;
}

class TextStreams : public support::TemporaryFolder {
 protected:
  fs::path write(const std::string& name, std::string_view bytes) const {
    fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  /// The text of a file, read in pieces.
  static std::string read(const fs::path& path, std::size_t piece = 1 << 16) {
    TextStream stream(path);
    std::string text;
    std::vector<std::uint8_t> bytes(piece);
    for (;;) {
      const std::size_t count = stream.read(bytes);
      text.append(reinterpret_cast<const char*>(bytes.data()), count);
      if (count < piece) break;
    }
    EXPECT_EQ(stream.file_bytes(), fs::file_size(path));
    return text;
  }

  template <class Error = octavo::IoError, class Function>
  static std::string error_of(const Function& function) {
    try {
      function();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(TextStreams, ReadTextsOfAnySize) {
  std::vector<std::size_t> sizes{0, 1, 2, 3, 4};
  for (const std::size_t border :
       {std::size_t{1} << 16, std::size_t{1} << 17, std::size_t{3} << 17})
    sizes.insert(sizes.end(), {border - 1, border, border + 1});
  for (const std::size_t size : sizes) {
    for (const std::string& text : {random_text(size), std::string(size, 'a')}) {
      for (const std::string& bytes : {text, gzip(text), zstd(text)}) {
        const fs::path path = write("file", bytes);
        for (const std::size_t piece : {std::size_t{1000}, std::size_t{1} << 17, size + 1})
          ASSERT_EQ(read(path, piece), text) << size;
      }
    }
  }
}

// The compressed file ends at a border of the buffer, with and without more members.
TEST_F(TextStreams, ReadFilesEndingAtBufferBoundary) {
  constexpr std::size_t buffer = std::size_t{1} << 17;
  const std::string all = random_text(2 * buffer);
  for (const auto compress : {gzip, zstd}) {
    const auto compressed = [&](std::size_t size) { return compress(all.substr(0, size)); };
    for (const std::size_t bytes : {buffer - 1, buffer, buffer + 1}) {
      // The compressed size grows with the text, except for a few bytes at the borders of blocks.
      std::size_t size = buffer / 2;
      for (std::size_t step = buffer; step > 8; step /= 2) {
        if (size + step <= all.size() && compressed(size + step).size() < bytes) size += step;
      }
      while (size < all.size() && compressed(size).size() != bytes) ++size;
      ASSERT_LT(size, all.size()) << "no text has " << bytes << " compressed bytes";
      const std::string text = all.substr(0, size);
      ASSERT_EQ(read(write("file", compressed(size))), text);
      ASSERT_EQ(read(write("file", compressed(size) + compress("more"))), text + "more");
    }
  }
}

TEST_F(TextStreams, JoinSeveralMembers) {
  EXPECT_EQ(read(write("a", gzip("one, ") + gzip("") + gzip("two"))), "one, two");
  // zstd skips a frame that has no data, which pzstd writes first.
  const std::string skipped("\x50\x2a\x4d\x18\x02\0\0\0ab", 10);
  EXPECT_EQ(read(write("b", skipped + zstd("one, ") + zstd("") + skipped + zstd("two"))),
            "one, two");
}

TEST_F(TextStreams, SkipZeroPaddingInGzip) {
  for (const std::size_t zeros : {std::size_t{1}, std::size_t{512}, std::size_t{1} << 18}) {
    const std::string padding(zeros, '\0');
    EXPECT_EQ(read(write("end", gzip("one") + padding)), "one");
    EXPECT_EQ(read(write("between", gzip("one, ") + padding + gzip("two"))), "one, two");
    const fs::path path = write("rest", gzip("one") + padding + "rest");
    EXPECT_NE(error_of([&] { (void)read(path); }), "") << zeros;
  }
}

TEST_F(TextStreams, ReportFileAndByteOfTruncation) {
  const std::string text = random_text(30);
  for (const auto compress : {gzip, zstd}) {
    const std::string whole = compress(text) + compress(text);
    for (std::size_t size = 4; size < whole.size(); ++size) {
      if (size == whole.size() / 2) continue;
      const fs::path path = write("file", whole.substr(0, size));
      const std::string name = compress == gzip ? "gzip" : "Zstandard";
      ASSERT_EQ(error_of([&] { (void)read(path); }),
                path.string() + ": cannot be read: its " + name + " data are cut off at byte " +
                    std::to_string(size) + "; download or compress the file again");
    }
  }
}

TEST_F(TextStreams, NeverYieldDamagedText) {
  const std::string text = random_text(40) + std::string(200, 'a');
  for (const auto compress : {gzip, zstd}) {
    const std::string whole = compress(text);
    int errors = 0;
    for (std::size_t byte = 4; byte < whole.size(); ++byte) {
      for (const int bit : {1, 16, 128}) {
        std::string damaged = whole;
        damaged[byte] = static_cast<char>(damaged[byte] ^ bit);
        const fs::path path = write("file", damaged);
        std::string found;
        const std::string error = error_of([&] { found = read(path); });
        errors += error.empty() ? 0 : 1;
        if (error.empty())
          ASSERT_EQ(found, text) << byte;
        else
          ASSERT_TRUE(error.starts_with(path.string() + ": cannot be read: its ")) << error;
      }
    }
    EXPECT_GT(errors, 3 * static_cast<int>(whole.size() - 16));
    const fs::path path = write("file", whole + "rest");
    EXPECT_NE(error_of([&] { (void)read(path); }).find(" data are damaged near byte "),
              std::string::npos);
  }
}

TEST_F(TextStreams, UseBoundedMemory) {
  const auto peak = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  std::string member = std::string((std::size_t{1} << 20) - 1, 'a') + '\n';
  constexpr std::uint64_t members = 200;
  for (const auto compress : {gzip, zstd}) {
    const std::string compressed = compress(member);
    std::string all;
    for (std::uint64_t i = 0; i < members; ++i) all += compressed;
    const fs::path path = write("file", all);
    const long before = peak();
    octavo::FileLines lines(path);
    std::uint64_t bytes = 0;
    for (std::string line; lines.next(line);) bytes += line.size() + 1;
    EXPECT_EQ(bytes, members * member.size());
    EXPECT_LT(peak() - before, 20'000);  // KiB
  }
}

TEST_F(TextStreams, ReadTextAndJsonLines) {
  const std::string lines = "\xEF\xBB\xBF{\"text\": \"one\"}\n\n{\"id\": 1, \"text\": \"two\"}";
  for (const auto compress : {gzip, zstd}) {
    const std::string suffix = compress == gzip ? ".gz" : ".zst";
    const fs::path json = write("a.jsonl" + suffix, compress(lines));
    const fs::path text = write("b.txt" + suffix, compress("\xEF\xBB\xBFtext"));
    const octavo::Text read = octavo::load_text({json, text});
    EXPECT_EQ(std::string(read.bytes.begin(), read.bytes.end()), "one\ntwo\ntext");
    ASSERT_EQ(read.texts.size(), 3u);
    EXPECT_EQ(read.texts[1].begin, 4u);
    EXPECT_EQ(read.texts[1].bytes, 3u);
    EXPECT_EQ(octavo::load_text({folder_}).bytes, read.bytes);

    const fs::path broken = write("c.jsonl" + suffix, compress("{\"text\": \"a\"}\n{\"text\": 1}"));
    EXPECT_TRUE(error_of([&] {
                  (void)octavo::load_text({broken});
                }).starts_with(broken.string() + ": line 2"));
    const fs::path cut = write("c.jsonl" + suffix, compress(random_text(40'000)).substr(0, 30'000));
    EXPECT_NE(error_of([&] { (void)octavo::load_text({cut}); }).find("are cut off at byte 30000"),
              std::string::npos);
    fs::remove_all(cut);
    fs::remove_all(json);
    fs::remove_all(text);
  }
}

TEST_F(TextStreams, MustContainText) {
  for (const auto compress : {gzip, zstd}) {
    const fs::path empty = write("empty", compress(""));
    EXPECT_EQ(error_of([&] { (void)octavo::load_text({empty}); }),
              empty.string() + ": the file is empty; name a file with text");
    const fs::path tokens = write("a.bin.zst", compress(std::string_view("\1\0\2\0", 4)));
    EXPECT_EQ(error_of([&] { (void)octavo::load_text({tokens}); }),
              tokens.string() +
                  ": its decompressed bytes are binary: contains NUL bytes; name compressed text, "
                  "or decompress token files first");
    const fs::path twice = write("twice", compress(compress("text")));
    EXPECT_NE(
        error_of([&] { (void)octavo::load_text({twice}); }).find("must be UTF-8 text, but is "),
        std::string::npos);
  }
}

}  // namespace text_stream_test
