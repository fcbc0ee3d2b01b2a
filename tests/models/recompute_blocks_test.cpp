#include "recompute_suite.hpp"

namespace recompute_blocks_test {

using Precisions = support::TestTypes<octavo::Fp8Recipe<octavo::Blockwise>, octavo::Mxfp8,
                                      support::MixedPrecision>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerBlock, RecomputeTest, Precisions);

}  // namespace recompute_blocks_test
