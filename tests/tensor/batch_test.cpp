#include <octavo/tensor/batch.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace batch_test {

using namespace octavo;

/// The tables of a batch, with room behind them that nothing may be written to.
struct Tables {
  Tables(BatchShape batch_shape, std::vector<Index> begins, Index first = 0)
      : shape(batch_shape),
        elements(static_cast<std::size_t>(document_table_elements(shape)) + 1, -7) {
    write_document_tables(begins, first, shape, std::span(elements).first(elements.size() - 1));
    EXPECT_EQ(elements.back(), -7);
  }
  [[nodiscard]] Documents<Cpu> documents() const {
    return documents_over<Cpu>(elements.data(), shape);
  }
  template <class View>
  static std::vector<std::int32_t> values(const View& view) {
    return {view.data(), view.data() + view.size()};
  }

  BatchShape shape;
  std::vector<std::int32_t> elements;
};

using Numbers = std::vector<std::int32_t>;

TEST(DocumentTables, GivePositionOfEachRow) {
  const Tables tables({2, 5, 4}, {2, 7});
  const Documents<Cpu> documents = tables.documents();
  EXPECT_EQ(Tables::values(documents.begins), (Numbers{0, 2, 5, 7, 10}));
  EXPECT_EQ(Tables::values(documents.positions), (Numbers{0, 1, 0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(Tables::values(documents.followers), (Numbers{1, 0, 2, 1, 0, 1, 0, 2, 1, 0}));
}

TEST(DocumentTables, UnusedBeginsHoldRowCount) {
  const Tables none({2, 3, 5}, {});
  EXPECT_EQ(Tables::values(none.documents().begins), (Numbers{0, 3, 6, 6, 6, 6}));
  EXPECT_EQ(Tables::values(none.documents().positions), (Numbers{0, 1, 2, 0, 1, 2}));
  const Tables all({1, 3, 3}, {1, 2});
  EXPECT_EQ(Tables::values(all.documents().begins), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(Tables::values(all.documents().followers), (Numbers{0, 0, 0}));
}

// A table of 64 documents has 65 places, and the next one begins behind them.
TEST(DocumentTables, DoNotOverlapForManyDocuments) {
  std::vector<Index> begins;
  Numbers expected{0};
  for (Index row = 1; row < 64; ++row) {
    begins.push_back(row);
    expected.push_back(static_cast<std::int32_t>(row));
  }
  expected.push_back(64);
  const Tables tables({1, 64, 64}, begins);
  EXPECT_EQ(Tables::values(tables.documents().begins), expected);
  EXPECT_EQ(Tables::values(tables.documents().positions), Numbers(64, 0));
  EXPECT_EQ(Tables::values(tables.documents().followers), Numbers(64, 0));
}

TEST(DocumentTables, BeginsMayIncludeFirstRowOfSequence) {
  EXPECT_EQ(Tables({2, 4, 4}, {0, 3, 4}).elements, Tables({2, 4, 4}, {3}).elements);
}

// A step's places go on from micro-batch to micro-batch.
TEST(DocumentTables, IgnoreBeginsOfOtherMicroBatches) {
  const std::vector<Index> begins{1, 6, 9, 11};
  EXPECT_EQ(Tables({1, 4, 3}, begins, 0).elements, Tables({1, 4, 3}, {1}).elements);
  EXPECT_EQ(Tables({1, 4, 3}, begins, 4).elements, Tables({1, 4, 3}, {2}).elements);
  EXPECT_EQ(Tables({1, 4, 3}, begins, 8).elements, Tables({1, 4, 3}, {1, 3}).elements);
}

TEST(DocumentTables, RejectMoreDocumentsThanShapeAllows) {
  EXPECT_NO_THROW(Tables({2, 4, 3}, {2}));
  try {
    const Tables tables({2, 4, 3}, {2, 6, 7});
    FAIL() << "no exception";
  } catch (const TooManyDocumentsError& error) {
    EXPECT_EQ(error.count(), 5);
    EXPECT_NE(std::string(error.what()).find("has 5 documents"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("at most 3"), std::string::npos) << error.what();
  }
}

TEST(DocumentTables, MostDocumentsIsMaximumOverMicroBatches) {
  const BatchShape shape{2, 4, 8};
  EXPECT_EQ(most_documents_of({}, 3, shape), 2);
  // Those at the beginning of a sequence are counted already.
  const std::vector<Index> begins{0, 1, 4, 9, 10, 15, 16, 20, 23};
  EXPECT_EQ(most_documents_of(begins, 1, shape), 3);
  EXPECT_EQ(most_documents_of(begins, 2, shape), 5);
  EXPECT_EQ(most_documents_of(begins, 3, shape), 5);
}

TEST(DocumentTables, AreEmptyForShapeWithoutDocuments) {
  EXPECT_EQ(document_table_elements({2, 64}), 0);
  EXPECT_TRUE(documents_over<Cpu>(nullptr, {2, 64}).empty());
}

TEST(BatchShape, RejectsDocumentCountsBelowSequencesOrAboveRows) {
  for (const Index most : {0, 2, 8}) EXPECT_NO_THROW(check_most_documents({2, 4, most})) << most;
  for (const Index most : {-1, 1, 9}) {
    EXPECT_THROW(check_most_documents({2, 4, most}), ConfigError) << most;
  }
  EXPECT_THROW(check_most_documents({1, Index{1} << 31, 4}), ConfigError);
}

TEST(BatchView, PositionsCountFromTheDocumentOrTheSequence) {
  const Tables tables({2, 4, 3}, {3});
  const BatchView<Cpu> divided({2, 4, 3}, tables.documents());
  const BatchView<Cpu> whole(BatchShape{2, 4, 3});
  EXPECT_EQ(whole.most_documents, 0) << "no documents are given";
  for (Index row = 0; row < 8; ++row) {
    EXPECT_EQ(divided.positions()(row), row == 3 ? 0 : row % 4) << row;
    EXPECT_EQ(whole.positions()(row), row % 4) << row;
  }
}

}  // namespace batch_test
