#include <octavo/data/data_files.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"

namespace data_files_test {

namespace fs = std::filesystem;
using namespace octavo;

class DataFiles : public support::TemporaryFolder {
 protected:
  std::string write(const std::string& name, std::string_view bytes) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  /// 16 bits a token, all with the values of letters.
  std::string write_tokens(const std::string& name, std::string_view letters) const {
    std::string bytes;
    for (const char letter : letters) bytes += {letter, '\0'};
    return write(name, bytes);
  }

  static std::string text_of(const Tokens& tokens) {
    std::vector<std::int32_t> read(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, read);
    return {read.begin(), read.end()};
  }

  /// What all is trained on, of one share.
  static std::string text_of(const std::vector<std::string>& names) {
    const Data data = load_data({.train = names});
    EXPECT_EQ(data.train.size(), 1u);
    return text_of(data.train.front().tokens);
  }

  template <class Error = ConfigError>
  static void refused(const DataRequest& request, std::string_view part) {
    try {
      (void)load_data(request);
      ADD_FAILURE() << "no error that says: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
    }
  }
};

TEST_F(DataFiles, DetectsTextAndTokensByContent) {
  const std::string text = write("a.txt", "text");
  const std::string tokens = write_tokens("a.bin", "tokens");
  EXPECT_EQ(text_of({text}), "text");
  EXPECT_EQ(text_of({tokens}), "tokens");
  EXPECT_TRUE(load_data({.train = {text}}).is_text);
  EXPECT_FALSE(load_data({.train = {tokens}}).is_text);
  for (const auto& names : {std::vector{text, tokens}, std::vector{tokens, text}})
    refused({.train = names}, "and 1 more: text and token files cannot be mixed");
  refused({.train = {text}, .validation = {tokens}}, "text and token files cannot be mixed");
  refused({.train = {tokens + ":1", text + ":1"}}, "text and token files cannot be mixed");
}

// As where weights have a tokenizer of their own. What is read of these would be an error.
TEST_F(DataFiles, RejectsTextWithoutReadingIt) {
  const std::string tokens = write_tokens("a.bin", "tokens");
  const std::string text = write("texts/a.jsonl", "no JSON");
  const std::string why = "its bytes are no tokens of this model";
  for (const std::string& name : {text, (folder_ / "texts").string(), text + ":1"})
    refused({.train = {name}, .text_refusal = why}, why);
  refused({.train = {tokens}, .validation = {text}, .text_refusal = why},
          "text and token files cannot be mixed");
  EXPECT_NO_THROW((void)load_data({.train = {tokens}, .text_refusal = why}));
  refused<IoError>({.train = {text}}, "a.jsonl: line 1");
}

TEST_F(DataFiles, ConcatenatesFilesWithoutWeights) {
  const std::string b = write_tokens("b.bin", "bb");
  const std::string a = write_tokens("a.bin", "aaa");
  EXPECT_EQ(text_of({b, a}), "bbaaa");
  EXPECT_EQ(text_of({write("x.txt", "x"), write("y/z.txt", "z"), write("w.txt", "w")}), "x\nz\nw");
}

TEST_F(DataFiles, WeightedFilesBecomeShares) {
  const std::string a = write_tokens("a.bin", "aaa");
  write_tokens("more/c.bin", "cc");
  write_tokens("more/b.bin", "bb");
  const Data data = load_data({.train = {a + ":0.7", (folder_ / "more/*.bin:3e-1").string()}});
  ASSERT_EQ(data.train.size(), 2u);
  EXPECT_EQ(data.train[0].name, a);
  EXPECT_EQ(data.train[0].weight, 0.7);
  EXPECT_EQ(text_of(data.train[0].tokens), "aaa");
  EXPECT_EQ(data.train[1].weight, 0.3);
  EXPECT_EQ(text_of(data.train[1].tokens), "bbcc") << "not sorted by path";
  EXPECT_EQ(data.read.size(), 3u);
  refused({.train = {a + ":0.7", write_tokens("d.bin", "d")}}, "has one; add or remove weights");
  const std::string named_so = write("e:5", "text");
  EXPECT_EQ(text_of({named_so}), "text") << "a file of that name is no weight";
  for (const char* wrong : {"0", "-1", "nan", "inf"}) {
    refused({.train = {a + ":" + wrong}}, "a.bin: its weight must be positive, but is ");
  }
  refused<IoError>({.train = {a + ":x"}}, "a.bin:x: there is no such file");
}

TEST_F(DataFiles, ExpandsPatterns) {
  write_tokens("s/train_2.bin", "22");
  write_tokens("s/train_1.bin", "11");
  write_tokens("s/val_1.bin", "33");
  fs::create_directories(folder_ / "s/train_folder.bin");
  const auto pattern = [&](const std::string& name) { return (folder_ / name).string(); };
  EXPECT_EQ(text_of({pattern("s/train_*.bin")}), "1122");
  EXPECT_EQ(text_of({pattern("?/train_[2-9]*.bin")}), "22");
  refused<IoError>({.train = {pattern("s/test_*.bin")}},
                   "s/test_*.bin: the pattern matches no file");
  refused<IoError>({.train = {"absent/*.bin"}},
                   "; relative paths start at " + std::filesystem::current_path().string());
  const Data data = load_data({.train = {pattern("s/tr*")}});
  ASSERT_EQ(data.skipped.size(), 1u);
  EXPECT_EQ(data.skipped.front().remark, "a folder that a pattern matches");
  EXPECT_EQ(text_of({write("s[1].txt", "a name, no pattern")}), "a name, no pattern");
  write("t/b.txt", "b");
  write("t/a.txt", "a");
  EXPECT_EQ(text_of({pattern("t/*.txt")}), "a\nb");
}

TEST_F(DataFiles, RejectsDuplicateFiles) {
  const std::string a = write_tokens("f/a.bin", "aaa");
  const std::string pattern = (folder_ / "f/*.bin").string();
  const std::string link = (folder_ / "link.bin").string();
  fs::create_symlink(a, link);
  refused({.train = {a, a}}, "a.bin is named already");
  refused({.train = {a, link}}, link + " is the same file as " + a);
  refused({.train = {a, pattern}}, pattern + ": its " + a + " is named already");
  refused({.train = {pattern, a}}, a + " is matched by " + pattern + " already");
  refused({.train = {a}, .validation = {link}}, "so that validation sees no training data");
  refused({.train = {a + ":0.5", link + ":0.5"}}, "is the same file as");
  fs::create_hard_link(a, folder_ / "f/b.bin");
  const Data data = load_data({.train = {pattern}});
  EXPECT_EQ(text_of(data.train.front().tokens), "aaa");
  ASSERT_EQ(data.skipped.size(), 1u);
  EXPECT_EQ(data.skipped.front().remark, "the same file as " + a);
}

TEST_F(DataFiles, LoadsValidationFilesSeparately) {
  const Data data =
      load_data({.train = {write_tokens("a.bin", "aaa")},
                 .validation = {write_tokens("b.bin", "bb"), write_tokens("c.bin", "cc")}});
  EXPECT_EQ(text_of(data.train.front().tokens), "aaa");
  EXPECT_EQ(text_of(data.validation), "bbcc");
  EXPECT_EQ(load_data({.train = {(folder_ / "a.bin").string()}}).validation.size(), 0);
}

TEST_F(DataFiles, RejectsFilesShorterThanBatch) {
  write_tokens("1.bin", "aaaaa");
  const std::string few = write_tokens("2.bin", "aaaa");
  refused<IoError>({.train = {(folder_ / "*.bin").string()}, .least_tokens = 5},
                   few + ": must have at least 5 tokens for a batch, but has 4");
}

TEST_F(DataFiles, ChecksTokensAgainstVocabulary) {
  const std::string a = write_tokens("a.bin", "aba");
  EXPECT_NO_THROW((void)text_of(load_data({.train = {a}, .vocabulary = 99}).train[0].tokens));
  EXPECT_THROW((void)text_of(load_data({.train = {a}, .vocabulary = 98}).train[0].tokens), IoError);
}

TEST_F(DataFiles, RejectsEmptyAndMissingInputs) {
  refused({}, "no data is given");
  refused<IoError>({.train = {""}}, "file or folder must not be empty");
  refused<IoError>({.train = {(folder_ / "absent.bin").string()}}, "there is no such file");
}

TEST_F(DataFiles, LimitsSizeOfFilesReadWhole) {
  const std::string file = write("four.txt", "four");
  EXPECT_EQ(read_text_file(file), "four");
  EXPECT_EQ(read_text_file(file, 4), "four");
  EXPECT_THROW((void)read_text_file(file, 3), IoError);
  EXPECT_THROW((void)read_text_file("/dev/zero"), IoError);
}

TEST_F(DataFiles, ReadsTextsOfJsonLines) {
  const std::string lines =
      "{\"text\": \"one\"}\n"
      "  {\"id\": -1.5e+3, \"text\":\"a\\n\\\"b\\\"\\u00e9\\ud83d\\ude00\\/\", \"n\": [1, {}, "
      "[true, null]]}\r\n"
      "\n"
      "{\"meta\": {\"text\": \"not this\"}, \"\\u0074ext\": \"gr\xc3\xbc\xc3\x9f\"}";
  const std::string expected = "one\na\n\"b\"\xc3\xa9\xf0\x9f\x98\x80/\ngr\xc3\xbc\xc3\x9f";
  const std::string path = write("a.jsonl", lines);
  EXPECT_EQ(text_of({path}), expected);
  EXPECT_EQ(text_of({write("b.txt", "before"), path, write("c.txt", "behind")}),
            "before\n" + expected + "\nbehind");
  EXPECT_EQ(text_of({folder_.string()}), expected + "\nbefore\nbehind");  // a.jsonl, b.txt, c.txt
  const Data data = load_data({.train = {path}, .between = 0});
  const std::string text = text_of(data.train.front().tokens);
  EXPECT_EQ(text.size(), expected.size());
  EXPECT_EQ(text.substr(0, 4), std::string("one\0", 4));
}

TEST_F(DataFiles, ReportsPlaceOfInvalidJsonLines) {
  const std::string first = "{\"text\": \"fine\"}\n";
  const auto refuse = [&](const std::string& line, const std::string& part) {
    refused<IoError>({.train = {write("a.jsonl", first + line)}}, part);
  };
  const std::string at = "a.jsonl: line 2: at byte ";
  refuse("text", at + "0: a value is expected; it is damaged, or not JSON");
  refuse("[]", at + "0: expected an object, but found an array; write one object per line");
  refuse("1", at + "0: expected an object, but found 1; correct the line");
  refuse("{}", "a.jsonl: line 2: the object has no \"text\", but no key; ");
  refuse("{\"b\": 1, \"a\": 1}", "line 2: the object has no \"text\", but only \"b\", \"a\"; ");
  refuse("{\"a\": {\"text\": \"b\"}}", "the object has no \"text\", but only \"a\"; ");
  refuse("{\"messages\": []}", "because it is a chat; train on chats with finetune_llama --chats");
  refuse("{\"conversations\": []}", "because it is a chat; train on chats");
  refuse("{\"text\": 1}", at + "9, in text: expected a string, but found 1; correct the line");
  refuse("{\"text\": \"a\", \"text\": \"b\"}", "appears twice");
  refuse("{\"text\": \"a", at + "9: the string does not end");
  refuse("{\"text\": \"a\nb\"}", at + "9: the string does not end");
  refuse("{\"text\": \"a\"} {}", at + "14: the text continues after its value");
  refuse("{\"text\": \"gr\xfc\xdf\"}", at + "12: the bytes are not valid UTF-8");
  refuse("{\"a\": [1,], \"text\": \"a\"}", at + "9: a value is expected");
  refuse("{\"a\": " + std::string(100000, '[') + "}", "nested more than");
}

}  // namespace data_files_test
