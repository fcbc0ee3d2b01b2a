#include "session_suite.hpp"

namespace {

using Precisions = testing::Types<octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                                  octavo::Fp8Recipe<octavo::Tensorwise>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ScalePerTensor, SessionTest, Precisions);

}  // namespace
