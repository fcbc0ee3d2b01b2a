// No document of an evaluation reaches over files, or lines of JSON, by whichever tokenizer.
#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/data/data_files.hpp>

#include <evaluate/text.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "support/temporary_folder.hpp"

namespace evaluated_text_test {

using namespace octavo;

constexpr std::int32_t document_end = 7;

class EvaluatedText : public support::TemporaryFolder {
 protected:
  /// The tokens of two files and of two lines.
  /// @param weight  of each file, such as ":1", which makes it a share; "": all are one
  [[nodiscard]] std::string tokens(std::optional<std::int32_t> end,
                                   const std::string& weight = "") const {
    std::ofstream(folder_ / "a.txt") << "one\nfi\xffle";
    std::ofstream(folder_ / "b.txt") << "another";
    std::ofstream(folder_ / "c.jsonl") << "{\"text\": \"a line\"}\n{\"text\": \"its next\"}\n";
    DataRequest request;
    for (const char* name : {"a.txt", "b.txt", "c.jsonl"}) {
      request.train.push_back((folder_ / name).string() + weight);
    }
    const Data data = load_data(request);
    const evaluate::EvaluatedText text =
        evaluate::evaluated_text(data, ByteTokenizer(), end, 256, Context<Cpu>(1));
    std::vector<std::int32_t> values(static_cast<std::size_t>(text.tokens.size()));
    text.tokens.read(0, values);
    return {values.begin(), values.end()};
  }
};

// As prepare_data writes them, whatever bytes they have.
TEST_F(EvaluatedText, EndsEachDocumentWithToken) {
  EXPECT_EQ(tokens(document_end), "one\nfi\xffle\7another\7a line\7its next\7");
}

TEST_F(EvaluatedText, EndsDocumentsOfEachShareWithToken) {
  EXPECT_EQ(tokens(document_end, ":0.5"), "one\nfi\xffle\7another\7a line\7its next\7");
}

TEST_F(EvaluatedText, JoinsDocumentsWithoutEndToken) {
  EXPECT_EQ(tokens(std::nullopt), "one\nfi\xffle\nanother\na line\nits next");
}

}  // namespace evaluated_text_test
