// Saving and loading on the Cpu device, of a model whose steps take no minutes there; see
// checkpoints.hpp.
#include <octavo/octavo.hpp>

namespace checkpoints_benchmark {
inline constexpr octavo::LlamaConfig model{.name = "checkpoints_benchmark",
                                           .layers = 4,
                                           .hidden = 1024,
                                           .ffn = 2816,
                                           .heads = 8,
                                           .kv_heads = 4,
                                           .head_dim = 128,
                                           .vocabulary = 32000};
}  // namespace checkpoints_benchmark
#define OCTAVO_BENCHMARK_PRESET checkpoints_benchmark::model
#include <checkpoints/checkpoints.hpp>

[[maybe_unused]] static const bool added = (checkpoints_benchmark::add<octavo::Cpu>(), true);
