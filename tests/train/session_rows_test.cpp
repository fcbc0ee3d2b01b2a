#include "session_suite.hpp"

namespace session_rows_test {

using Precisions = testing::Types<octavo::Fp8Recipe<octavo::Rowwise>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerRow, SessionTest, Precisions);

}  // namespace session_rows_test
