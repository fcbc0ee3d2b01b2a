// Saving and loading on the Cuda device, of Llama-3-8B with BF16 state; see checkpoints.hpp.
#include <octavo/cuda.cuh>

#define OCTAVO_BENCHMARK_PRESET octavo::llama3_8b
#include <checkpoints/checkpoints.hpp>

int main(int argc, char** argv) {
  checkpoints_benchmark::add<octavo::Cuda>();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
