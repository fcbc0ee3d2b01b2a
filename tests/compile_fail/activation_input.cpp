// expect: MLP: this activation does not read E4M3, or does not count values that may have saturated
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Activation = SwiGlu;
#else
using Activation = Gelu;
#endif

constexpr BlockShape shape{.hidden = 64,
                           .ffn = 128,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_dim = 16,
                           .norm_epsilon = 1e-5f,
                           .activation_input = ActivationInput::e4m3};

using Fp8 = Fp8Recipe<Delayed>;
MLP<shape, Activation, Bf16, Fp8, Fp8, Bf16, Cpu> mlp;
