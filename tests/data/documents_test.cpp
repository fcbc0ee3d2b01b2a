#include <octavo/data/documents.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace data_documents_test {

using namespace octavo;

TEST(FindDocuments, BeginAfterTheTokenThatEndsOne) {
  const std::vector<std::int32_t> tokens{5, 0, 6, 7, 0, 8, 9, 0};
  std::vector<std::int32_t> targets{0, 6, 7, 0, 8, 9, 0, 4};
  std::vector<Index> begins{77};
  find_documents(tokens, targets, 8, 0, begins);
  EXPECT_EQ(begins, (std::vector<Index>{2, 5}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{0, -1, 7, 0, -1, 9, 0, -1}));
}

// The first token of a sequence begins a document in any case.
TEST(FindDocuments, DoNotBeginTwiceWhereASequenceBegins) {
  const std::vector<std::int32_t> tokens{1, 2, 0, 0, 0, 3};
  std::vector<std::int32_t> targets(6, 9);
  std::vector<Index> begins;
  find_documents(tokens, targets, 3, 0, begins);
  EXPECT_EQ(begins, (std::vector<Index>{4, 5}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{9, 9, -1, -1, -1, 9}));
}

TEST(FindDocuments, ATextWithoutTheTokenIsLeftAlone) {
  const std::vector<std::int32_t> tokens{1, 2, 3, 4};
  std::vector<std::int32_t> targets{2, 3, 4, -1};
  std::vector<Index> begins{1};
  find_documents(tokens, targets, 2, 0, begins);
  EXPECT_TRUE(begins.empty());
  EXPECT_EQ(targets, (std::vector<std::int32_t>{2, 3, 4, -1}));
}

TEST(FindDocuments, DoNotBeginBehindTheLastToken) {
  const std::vector<std::int32_t> tokens{1, 0, 2, 3, 4, 0};
  std::vector<std::int32_t> targets(6, 9);
  std::vector<Index> begins;
  find_documents(tokens, targets, 4, 0, begins);
  EXPECT_EQ(begins, (std::vector<Index>{2}));
  EXPECT_EQ(targets.back(), -1);
}

TEST(FindDocuments, AsksForSequencesOfTokensAndATargetForEach) {
  const std::vector<std::int32_t> tokens(6, 1);
  std::vector<std::int32_t> targets(6, 1);
  std::vector<std::int32_t> fewer(5, 1);
  std::vector<Index> begins;
  EXPECT_THROW(find_documents(tokens, targets, 0, 0, begins), ShapeError);
  EXPECT_THROW(find_documents(tokens, fewer, 3, 0, begins), ShapeError);
}

}  // namespace data_documents_test
