// expect BEYOND: Layerwise: First and Last together select more blocks than the model has layers
// expect BEYOND: (5 <= 4)
// expect OVERLAP: Layerwise: First and Last together select more blocks than the model has layers
// expect BASE_BEHIND_EDGES: Layerwise: no linear layer would run in the base precision
// expect BASE_BEHIND_ROLES: Layerwise: no linear layer would run in the base precision
// expect BASE_BEHIND_HEAD: Layerwise: no linear layer would run in the base precision
// expect COVERED_ROLE: Layerwise: For<role, P> would have no effect in any block
#include <octavo/octavo.hpp>

using namespace octavo;

using Fp8 = Fp8Recipe<Delayed>;

#if defined(OCTAVO_COMPILE_FAIL_BEYOND)
using Precision = Layerwise<Last<5, Bf16>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_OVERLAP)
using Precision = Layerwise<First<3, Fp8>, Last<2, Mxfp8>, Bf16>;
#elif defined(OCTAVO_COMPILE_FAIL_BASE_BEHIND_EDGES)
using Precision = Layerwise<First<2, Bf16>, Fp8, Last<2, Bf16>>;
#elif defined(OCTAVO_COMPILE_FAIL_BASE_BEHIND_ROLES)
using Precision = Layerwise<Fp8, For<LinearRole::qkv, Bf16>, For<LinearRole::output, Bf16>,
                            For<LinearRole::gate_up, Mxfp8>, For<LinearRole::down, Mxfp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_BASE_BEHIND_HEAD)
using Precision = Layerwise<First<4, Fp8>, Bf16, Head<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_COVERED_ROLE)
using Precision = Layerwise<First<2, Fp8>, Last<2, Mxfp8>, For<LinearRole::down, Fp8>, Bf16>;
#else
using Precision = Layerwise<First<2, Fp8>, Last<2, Mxfp8>, Bf16>;  // the head runs in BF16
#endif

constexpr int layers = 4;
PrecisionOf<Precision, 2, layers, LinearRole::qkv>* precision = nullptr;
