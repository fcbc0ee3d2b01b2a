#include <octavo/tensor/tensor_view.hpp>

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <type_traits>

namespace tensor_view_test {

using namespace octavo;

using View = TensorView<float, 2, Cpu>;

struct Numbers {
  Numbers() { std::iota(values.begin(), values.end(), 0.0f); }
  std::array<float, 24> values{};
  View view{values.data(), {6, 4}};
};

TEST(TensorView, SeesRowsOfRowMajorMemory) {
  Numbers n;
  EXPECT_EQ(n.view.size(), 24);
  EXPECT_EQ(n.view.bytes(), 96u);
  EXPECT_EQ(n.view.extent(0), 6);
  EXPECT_EQ(n.view.extent(1), 4);
  EXPECT_EQ(*n.view.row(3), 12.0f);
  const View middle = n.view.rows(2, 3);
  EXPECT_EQ(middle.shape(), (View::Shape{3, 4}));
  EXPECT_EQ(*middle.data(), 8.0f);
  EXPECT_EQ(*middle.row(2), 16.0f);
}

TEST(TensorView, RowsOfThreeDimensionsArePlanes) {
  Numbers n;
  const TensorView<float, 3, Cpu> cube{n.view.data(), {2, 3, 4}};
  EXPECT_EQ(*cube.row(1), 12.0f);
  EXPECT_EQ(*cube.rows(1, 1).data(), 12.0f);
  EXPECT_EQ(cube.rows(1, 1).size(), 12);
}

TEST(TensorView, EmptyViewsStayEmpty) {
  const View empty;
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.size(), 0);
  EXPECT_TRUE((View{nullptr, {6, 4}}.rows(2, 3).empty()));
}

TEST(TensorView, ConvertsToConstButNotBack) {
  Numbers n;
  const TensorView<const float, 2, Cpu> input = n.view;
  EXPECT_EQ(input.data(), n.view.data());
  EXPECT_EQ(input.shape(), n.view.shape());
  static_assert(!std::is_convertible_v<TensorView<const float, 2, Cpu>, View>);
  static_assert(!std::is_convertible_v<TensorView<int, 2, Cpu>, View>);
  static_assert(!std::is_convertible_v<View, TensorView<const float, 2, Cuda>>);
  static_assert(std::is_trivially_copyable_v<View>);
}

template <class T, Device D>
Index rows_of(TensorView<const T, 2, D> x, TensorView<T, 1, D> y) {
  static_assert(std::is_same_v<T, float>);
  return x.extent(0) + y.extent(0);
}

TEST(TensorView, MutableViewDeducesToConstViewParameter) {
  Numbers n;
  const TensorView<float, 1, Cpu> row{n.values.data(), {4}};
  EXPECT_EQ(rows_of(n.view, row), 10);
  EXPECT_EQ(rows_of(TensorView<const float, 2, Cpu>(n.view), row), 10);
}

TEST(CheckShape, NamesOperationArgumentAndBothShapes) {
  Numbers n;
  EXPECT_NO_THROW(check_shape("op", "x", n.view, {6, 4}));
  try {
    check_shape("rms_norm", "weight", n.view, {6, 5});
    FAIL() << "no exception";
  } catch (const ShapeError& error) {
    const std::string what = error.what();
    for (const char* part : {"rms_norm", "weight", "[6, 4]", "[6, 5]"})
      EXPECT_NE(what.find(part), std::string::npos) << part << " is missing in: " << what;
  }
}

}  // namespace tensor_view_test
