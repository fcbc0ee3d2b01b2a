#include "session_suite.hpp"

namespace session_own_scalings_test {

using Precisions = support::TypesAlways<octavo::Fp8Recipe<support::BlocksOf64>>::And<
    octavo::Fp8Recipe<support::RowsOf16>, octavo::Fp8Recipe<support::FourSteps>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OwnScalings, SessionTest, Precisions);

}  // namespace session_own_scalings_test
