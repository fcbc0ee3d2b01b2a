#include "recompute_suite.hpp"

namespace recompute_rows_test {

using Precisions = testing::Types<octavo::Fp8Recipe<octavo::Rowwise>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerRow, RecomputeTest, Precisions);

}  // namespace recompute_rows_test
