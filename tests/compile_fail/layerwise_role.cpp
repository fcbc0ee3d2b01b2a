// expect UNKNOWN: the block has no linear layer of this role, whose characters are the template
// expect UNKNOWN: MissingRole<'g', 'a', 't', 'e'>
// expect OF_BLOCK: the block has no linear layer of this role, whose characters are the template
// expect OF_BLOCK: MissingRole<'m', 'i', 'x'>
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_UNKNOWN)
using Precision = Layerwise<For<"gate", Bf16>, Fp8Recipe<Delayed>>;
#else
using Precision = Layerwise<For<"gate_up", Bf16>, Fp8Recipe<Delayed>>;
#endif
PrecisionOf<Precision, 2, 4, LinearRole::qkv>* precision = nullptr;

#if defined(OCTAVO_COMPILE_FAIL_OF_BLOCK)
constexpr LinearRole role = "mix";
#else
constexpr LinearRole role = "down";
#endif
BlockPrecision<RolePrecision<"up", Bf16>, RolePrecision<"down", Bf16>>::Of<role>* layer = nullptr;
