#include <octavo/data/documents.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace data_documents_test {

using namespace octavo;

TEST(FindDocuments, BeginsDocumentsAfterEndToken) {
  const std::vector<std::int32_t> tokens{5, 0, 6, 7, 0, 8, 9, 0};
  std::vector<std::int32_t> targets{0, 6, 7, 0, 8, 9, 0, 4};
  std::vector<Index> begins{77};
  find_documents(tokens, targets, 8, 0, begins);
  EXPECT_EQ(begins, (std::vector<Index>{2, 5}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{0, -1, 7, 0, -1, 9, 0, -1}));
}

// The first token of a sequence begins a document in any case.
TEST(FindDocuments, OmitsStartsOfSequences) {
  const std::vector<std::int32_t> tokens{1, 2, 0, 0, 0, 3};
  std::vector<std::int32_t> targets(6, 9);
  std::vector<Index> begins;
  find_documents(tokens, targets, 3, 0, begins);
  EXPECT_EQ(begins, (std::vector<Index>{4, 5}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{9, 9, -1, -1, -1, 9}));
}

TEST(FindDocuments, LeavesTextWithoutEndTokenUnchanged) {
  const std::vector<std::int32_t> tokens{1, 2, 3, 4};
  std::vector<std::int32_t> targets{2, 3, 4, -1};
  std::vector<Index> begins{1};
  find_documents(tokens, targets, 2, 0, begins);
  EXPECT_TRUE(begins.empty());
  EXPECT_EQ(targets, (std::vector<std::int32_t>{2, 3, 4, -1}));
}

TEST(FindDocuments, LastEndTokenBeginsNoDocument) {
  const std::vector<std::int32_t> tokens{1, 0, 2, 3, 4, 0};
  std::vector<std::int32_t> targets(6, 9);
  std::vector<Index> begins;
  find_documents(tokens, targets, 4, 0, begins);
  EXPECT_EQ(begins, (std::vector<Index>{2}));
  EXPECT_EQ(targets.back(), -1);
}

TEST(FindDocuments, RejectsBadSequenceLengthOrTargetCount) {
  const std::vector<std::int32_t> tokens(6, 1);
  std::vector<std::int32_t> targets(6, 1);
  std::vector<std::int32_t> fewer(5, 1);
  std::vector<Index> begins;
  EXPECT_THROW(find_documents(tokens, targets, 0, 0, begins), ShapeError);
  EXPECT_THROW(find_documents(tokens, fewer, 3, 0, begins), ShapeError);
}

// The number is that of the sequence with most, wherever sequences begin.
TEST(MaxDocuments, MatchesFindDocuments) {
  const std::vector<std::int32_t> text{0, 1, 1, 0, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 8, 0, 9, 9, 0, 0};
  for (std::size_t length = 1; length <= text.size(); ++length) {
    std::size_t most = 0;
    for (std::size_t first = 0; first + length <= text.size(); ++first) {
      std::vector<std::int32_t> targets(length, 1);
      std::vector<Index> begins;
      const auto sequence = static_cast<Index>(length);
      find_documents(std::span(text).subspan(first, length), targets, sequence, 0, begins);
      most = std::max(most, begins.size() + 1);
    }
    const std::span<const std::int32_t> tokens(text);
    EXPECT_EQ(most_documents_in(tokens, static_cast<Index>(length), 0), static_cast<Index>(most))
        << length;
  }
}

}  // namespace data_documents_test
