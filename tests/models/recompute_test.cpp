#include "recompute_suite.hpp"

namespace recompute_test {

using Precisions = support::TestTypes<octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                                      octavo::Fp8Recipe<octavo::Tensorwise>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerTensor, RecomputeTest, Precisions);

}  // namespace recompute_test
