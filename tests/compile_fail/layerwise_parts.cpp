// expect FIRST_ZERO: Layerwise: First<N, P> requires N > 0
// expect LAST_ZERO: Layerwise: Last<N, P> requires N > 0
// expect FIRST_TWICE: Layerwise: First occurs twice
// expect LAST_TWICE: Layerwise: Last occurs twice
// expect ROLE_TWICE: Layerwise: two parts name the same linear layer
// expect HEAD_TWICE: Layerwise: two parts name the same linear layer
// expect HEAD_AND_ROLE: Layerwise: two parts name the same linear layer
// expect ATTENTION_TWICE: Layerwise: ForAttention occurs twice
// expect ATTENTION_IN_FP32: Layerwise: ForAttention<EightBitForward> needs BF16 storage
// expect ATTENTION_OF_POLICY: Layerwise: the argument of ForAttention must be EightBitForward
// expect ACTIVATION_TWICE: Layerwise: ForActivation occurs twice
// expect ACTIVATION_OF_POLICY: Layerwise: the argument of ForActivation must be E4M3
// expect ACTIVATION_IN_BF16: Layerwise: ForActivation<E4M3> needs GEMMs in FP8 with one scale
// expect ACTIVATION_OF_ROWS: Layerwise: ForActivation<E4M3> needs GEMMs in FP8 with one scale
// expect ACTIVATION_OF_HEAD: Layerwise: ForActivation<E4M3> needs GEMMs in FP8 with one scale
// expect ACTIVATION_OF_DOWN: Layerwise: ForActivation<E4M3> needs GEMMs in FP8 with one scale
// expect ACTIVATION_OF_OTHERS: Layerwise: ForActivation<E4M3> needs GEMMs in FP8 with one scale
// expect NESTED: a model also accepts Layerwise<...> of these, which does not nest
// expect FALLBACK_TWICE: AllowFallback: it cannot be nested
#include <octavo/octavo.hpp>

using namespace octavo;

using Fp8 = Fp8Recipe<Delayed>;

#if defined(OCTAVO_COMPILE_FAIL_FIRST_ZERO)
using Precision = Layerwise<First<0, Bf16>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_LAST_ZERO)
using Precision = Layerwise<Last<0, Bf16>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_FIRST_TWICE)
using Precision = Layerwise<First<1, Bf16>, First<2, Mxfp8>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_LAST_TWICE)
using Precision = Layerwise<Last<1, Bf16>, Last<2, Mxfp8>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ROLE_TWICE)
using Precision = Layerwise<For<LinearRole::down, Bf16>, For<LinearRole::down, Mxfp8>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_HEAD_TWICE)
using Precision = Layerwise<Head<Bf16>, Head<Mxfp8>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_HEAD_AND_ROLE)
using Precision = Layerwise<Head<Mxfp8>, For<LinearRole::head, Bf16>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ATTENTION_TWICE)
using Precision = Layerwise<ForAttention<EightBitForward>, ForAttention<EightBitForward>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ATTENTION_IN_FP32)
using Precision = Layerwise<ForAttention<EightBitForward>, Fp32>;
#elif defined(OCTAVO_COMPILE_FAIL_ATTENTION_OF_POLICY)
using Precision = Layerwise<ForAttention<Fp8>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_TWICE)
using Precision = Layerwise<ForActivation<E4M3>, ForActivation<E4M3>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_OF_POLICY)
using Precision = Layerwise<ForActivation<Fp8>, Fp8>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_IN_BF16)
using Precision = Layerwise<ForActivation<E4M3>, Bf16>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_OF_ROWS)
using Precision = Layerwise<ForActivation<E4M3>, Fp8Recipe<Rowwise>>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_OF_HEAD)
using Precision = Layerwise<ForActivation<E4M3>, Bf16, Head<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_OF_DOWN)
using Precision = Layerwise<ForActivation<E4M3>, Bf16, For<LinearRole::down, Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_ACTIVATION_OF_OTHERS)
using Precision = Layerwise<ForActivation<E4M3>, Fp8, For<LinearRole::gate_up, Bf16>>;
#elif defined(OCTAVO_COMPILE_FAIL_NESTED)
using Precision = Layerwise<First<1, Bf16>, Layerwise<Fp8>>;
#elif defined(OCTAVO_COMPILE_FAIL_FALLBACK_TWICE)
using Precision = Layerwise<First<1, Bf16>, AllowFallback<AllowFallback<Fp8>>>;
#else
using Precision = Layerwise<First<1, Bf16>, Fp8, For<LinearRole::down, Mxfp8>, Head<Mxfp8>,
                            ForAttention<EightBitForward>, ForActivation<E4M3>>;
#endif

PrecisionOf<Precision, 2, 4, LinearRole::qkv>* precision = nullptr;
