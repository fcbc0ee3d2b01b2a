// expect: MLP: this activation's backward does not compute a bias gradient; choose Gelu, or a
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
using Activation = Gelu;
#else
using Activation = SwiGlu;
#endif

constexpr BlockShape shape{.hidden = 64,
                           .ffn = 128,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_dim = 16,
                           .norm_epsilon = 1e-5f,
                           .bias = true};

MLP<shape, Activation, Bf16, Bf16, Bf16, Bf16, Cpu> mlp;
