#include "session_suite.hpp"

namespace session_recipes_test {

using Precisions = support::TestTypes<octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                                      octavo::Fp8Recipe<octavo::Tensorwise>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerTensor, SessionTest, Precisions);

}  // namespace session_recipes_test
