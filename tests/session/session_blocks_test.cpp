#include "session_suite.hpp"

namespace session_blocks_test {

using Precisions = support::TestTypes<octavo::Fp8Recipe<octavo::Blockwise>, octavo::Mxfp8,
                                      support::MixedPrecision>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerBlock, SessionTest, Precisions);

}  // namespace session_blocks_test
