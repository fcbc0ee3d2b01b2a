/// @file
/// Compiles Octavo's attention kernels for the files of a program that define
/// OCTAVO_COMPILED_ATTENTION. Include it in one source file.
#pragma once

#include <octavo/attention/cuda/own_attention.cuh>

namespace octavo OCTAVO_ABI::detail {

template void own_attention_forward(const AttentionShape&, TensorView<const Bf16, 2, Cuda>,
                                    const Documents<Cuda>&, TensorView<Bf16, 2, Cuda>,
                                    TensorView<float, 1, Cuda>, const Context<Cuda>&);
template void eight_bit_attention_forward(const AttentionShape&, TensorView<Bf16, 2, Cuda>,
                                          const Documents<Cuda>&, TensorView<Bf16, 2, Cuda>,
                                          TensorView<float, 1, Cuda>, const Context<Cuda>&);
template void rotate_attention_gradients(const AttentionShape&, TensorView<Bf16, 2, Cuda>,
                                         const Context<Cuda>&);
template void own_attention_backward(const AttentionShape&, TensorView<const Bf16, 2, Cuda>,
                                     const Documents<Cuda>&, TensorView<const Bf16, 2, Cuda>,
                                     TensorView<const Bf16, 2, Cuda>,
                                     TensorView<const float, 1, Cuda>, TensorView<Bf16, 2, Cuda>,
                                     const Context<Cuda>&);

}  // namespace octavo::detail
