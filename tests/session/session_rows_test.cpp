#include "session_suite.hpp"

namespace session_rows_test {

using Precisions = testing::Types<octavo::Fp8Recipe<octavo::Rowwise>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerRow, SessionTest, Precisions);

class Fp8HeadSession : public support::TemporaryFolder {};

TEST_F(Fp8HeadSession, ResumesFromCheckpoint) {
  using Rows = octavo::Fp8Recipe<octavo::Rowwise>;
  expect_to_go_on<support::SmallSession<octavo::Layerwise<Rows, octavo::Head<Rows>>>>(folder_);
}

}  // namespace session_rows_test
