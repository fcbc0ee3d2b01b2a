#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/tensor/tensor_view.hpp>

#include <cstdint>

namespace octavo::support {

static __global__ void take_larger_kernel(std::uint32_t* values, const std::uint32_t* others,
                                          Index size) {
  for (Index i = threadIdx.x; i < size; i += blockDim.x) values[i] = max(values[i], others[i]);
}

/// Makes each value the largest of its own and of the ranks'.
/// @param others  [ranks, as many as there are values]
inline void take_larger(TensorView<std::uint32_t, 1, Cuda> values, const std::uint32_t* others,
                        int ranks, const Context<Cuda>& context) {
  for (int rank = 0; rank < ranks; ++rank) {
    take_larger_kernel<<<1, 256, 0, context.stream()>>>(
        values.data(), others + rank * values.size(), values.size());
  }
  check(cudaGetLastError(), "take_larger_kernel");
}

}  // namespace octavo::support
