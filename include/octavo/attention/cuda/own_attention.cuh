/// @file
/// Causal attention in BF16 on tensor cores, using only the CUDA Toolkit: a forward, and a
/// backward without atomics, so that equal inputs give equal bits.
///
/// Its kernels take a fifth of the compile time of a model. A program with several source files can
/// compile them once: all files are compiled with OCTAVO_COMPILED_ATTENTION defined, and one file
/// includes compiled_attention.cuh.
#pragma once

#include <octavo/attention/cuda/own/eight_bit_forward.cuh>
#include <octavo/attention/cuda/own/forward.cuh>
#include <octavo/attention/cuda/own/key_gradient.cuh>
#include <octavo/attention/cuda/own/query_gradient.cuh>

#include <algorithm>

namespace octavo OCTAVO_ABI {
namespace detail {

/// Launches `x` · `y` blocks of threads.
template <class... Parameters, class... Arguments>
void launch_attention(void (*kernel)(Parameters...), int threads, int shared_bytes, Index x,
                      Index y, const Context<Cuda>& context, const Arguments&... arguments) {
  launch("attention", kernel, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), threads,
         static_cast<std::size_t>(shared_bytes), context, arguments...);
}

/// Calls `body` with the GPU's kind of tensor cores, the number of columns that tiles need, and
/// whether documents or a window hide keys, as types. The widest tiles have no variant without
/// bounds, which would compile for seconds and save little.
template <class Body>
void with_attention_variant(const GpuFeatures& gpu, const AttentionGeometry& geometry,
                            const Body& variant) {
  const auto body = [&](auto columns, auto bounded) {
    if (gpu.warpgroup_mma) {
      variant(WarpgroupCores(), columns, bounded);
    } else {
      variant(WarpCores(), columns, bounded);
    }
  };
  const auto with_bounds = [&](auto columns) {
    if (geometry.bounded()) {
      body(columns, std::true_type());
    } else {
      body(columns, std::false_type());
    }
  };
  if (geometry.head_dim <= 64) {
    with_bounds(std::integral_constant<int, 64>());
  } else if (geometry.head_dim <= 128) {
    with_bounds(std::integral_constant<int, 128>());
  } else {
    body(std::integral_constant<int, 256>(), std::true_type());
  }
}

/// Returns the memory of the backward's deltas.
inline float* attention_deltas(const AttentionShape& shape, const Context<Cuda>& context) {
  return workspace_of<float>(context, own_attention_workspace(shape), "attention's backward");
}

/// See attention_forward.
template <class T>
void own_attention_forward(const AttentionShape& shape, TensorView<const T, 2, Cuda> qkv,
                           const Documents<Cuda>& documents, TensorView<T, 2, Cuda> output,
                           TensorView<float, 1, Cuda> log_sum_exp, const Context<Cuda>& context) {
  require_own_attention(shape, true);
  const AttentionGeometry geometry(shape, documents);
  const auto launch = [&](auto cores, auto tile_columns, auto bounded) {
    using Cores = decltype(cores);
    constexpr int columns = decltype(tile_columns)::value;
    using Tiles = ForwardTiles<Cores, columns>;
    launch_attention(attention_forward_kernel<Cores, columns, decltype(bounded)::value>,
                     Tiles::threads, Tiles::bytes, shape.heads.heads * shape.sequences,
                     ceil_divide(shape.tokens, Tiles::rows), context, qkv.data(), output.data(),
                     log_sum_exp.data(), geometry);
  };
  with_attention_variant(context.limits().gpu, geometry, launch);
}

/// Runs the 8-bit forward: casts, rounds `qkv` in place, and then multiplies. See
/// attention_forward.
template <class T>
void eight_bit_attention_forward(const AttentionShape& shape, TensorView<T, 2, Cuda> qkv,
                                 const Documents<Cuda>& documents, TensorView<T, 2, Cuda> output,
                                 TensorView<float, 1, Cuda> log_sum_exp,
                                 const Context<Cuda>& context) {
  const AttentionGeometry geometry(shape, documents);
  auto* memory = workspace_of<std::uint8_t>(context, eight_bit_attention_workspace(shape),
                                            "attention's 8-bit forward");
  const Index tiles = ceil_divide(shape.tokens, eight_bit_attention_rows);
  const Index tile = eight_bit_attention_rows * eight_bit_attention_columns(shape.heads.head_dim);
  auto* factors = reinterpret_cast<float*>(memory + eight_bit_attention_tiles(shape) * tile);
  const auto run = [&](auto tile_columns, auto bounded) {
    constexpr int columns = decltype(tile_columns)::value;
    using Tiles = EightBitForwardTiles<columns>;
    const EightBitOperands<columns> operands{memory, factors, static_cast<int>(tiles)};
    launch_attention(attention_cast_kernel<columns>, eight_bit_cast_threads,
                     RotationTile<columns>::bytes,
                     (shape.heads.heads + 2 * shape.heads.kv_heads) * shape.sequences, tiles,
                     context, qkv.data(), operands, geometry);
    const Index works = shape.heads.heads * shape.sequences * tiles;
    launch_attention(eight_bit_attention_forward_kernel<columns, decltype(bounded)::value>,
                     Tiles::threads, Tiles::bytes,
                     std::min(works, Index{context.multiprocessors()}), 1, context, operands,
                     output.data(), log_sum_exp.data(), geometry);
  };
  const auto with_columns = [&](auto bounded) {
    if (shape.heads.head_dim <= 64) {
      run(std::integral_constant<int, 64>(), bounded);
    } else {
      run(std::integral_constant<int, 128>(), bounded);
    }
  };
  if (geometry.bounded()) {
    with_columns(std::true_type());
  } else {
    with_columns(std::false_type());
  }
}

/// Converts gradients of rotated queries and keys, which the backward computes after the 8-bit
/// forward.
template <class T>
void rotate_attention_gradients(const AttentionShape& shape, TensorView<T, 2, Cuda> qkv_gradient,
                                const Context<Cuda>& context) {
  const AttentionGeometry geometry(shape, Documents<Cuda>{});
  const auto run = [&](auto tile_columns) {
    constexpr int columns = decltype(tile_columns)::value;
    launch_attention(attention_rotate_gradients_kernel<columns>, eight_bit_cast_threads,
                     RotationTile<columns>::rows_bytes,
                     (shape.heads.heads + shape.heads.kv_heads) * shape.sequences,
                     ceil_divide(shape.tokens, eight_bit_attention_rows), context,
                     qkv_gradient.data(), geometry);
  };
  if (shape.heads.head_dim <= 64) {
    run(std::integral_constant<int, 64>());
  } else {
    run(std::integral_constant<int, 128>());
  }
}

/// See attention_backward.
template <class T>
void own_attention_backward(const AttentionShape& shape, TensorView<const T, 2, Cuda> qkv,
                            const Documents<Cuda>& documents, TensorView<const T, 2, Cuda> output,
                            TensorView<const T, 2, Cuda> output_gradient,
                            TensorView<const float, 1, Cuda> log_sum_exp,
                            TensorView<T, 2, Cuda> qkv_gradient, const Context<Cuda>& context) {
  require_own_attention(shape, true);
  float* delta = attention_deltas(shape, context);
  const AttentionGeometry geometry(shape, documents);
  const AttentionBackwardArguments arguments{qkv.data(), output_gradient.data(), log_sum_exp.data(),
                                             delta, qkv_gradient.data()};
  const auto launch = [&](auto cores, auto tile_columns, auto bounded) {
    using Cores = decltype(cores);
    constexpr int columns = decltype(tile_columns)::value;
    constexpr bool hides = decltype(bounded)::value;
    using Tiles = BackwardTiles<Cores, columns>;
    const Index tiles = ceil_divide(shape.tokens, Tiles::rows);
    constexpr int delta_threads = columns / 8;
    launch_attention(attention_delta_kernel<delta_threads>, Tiles::threads, 0,
                     ceil_divide(shape.rows() * shape.heads.heads * delta_threads, Tiles::threads),
                     1, context, output.data(), output_gradient.data(), delta, geometry);
    launch_attention(attention_key_gradient_kernel<Cores, columns, hides>, Tiles::threads,
                     Tiles::bytes, shape.heads.kv_heads * shape.sequences, tiles, context,
                     arguments, geometry);
    launch_attention(attention_query_gradient_kernel<Cores, columns, hides>, Tiles::threads,
                     Tiles::bytes, shape.heads.heads * shape.sequences, tiles, context, arguments,
                     geometry);
  };
  with_attention_variant(context.limits().gpu, geometry, launch);
}

/// @cond
#if defined(OCTAVO_COMPILED_ATTENTION)
extern template void own_attention_forward(const AttentionShape&, TensorView<const Bf16, 2, Cuda>,
                                           const Documents<Cuda>&, TensorView<Bf16, 2, Cuda>,
                                           TensorView<float, 1, Cuda>, const Context<Cuda>&);
extern template void eight_bit_attention_forward(const AttentionShape&, TensorView<Bf16, 2, Cuda>,
                                                 const Documents<Cuda>&, TensorView<Bf16, 2, Cuda>,
                                                 TensorView<float, 1, Cuda>, const Context<Cuda>&);
extern template void rotate_attention_gradients(const AttentionShape&, TensorView<Bf16, 2, Cuda>,
                                                const Context<Cuda>&);
extern template void own_attention_backward(const AttentionShape&, TensorView<const Bf16, 2, Cuda>,
                                            const Documents<Cuda>&, TensorView<const Bf16, 2, Cuda>,
                                            TensorView<const Bf16, 2, Cuda>,
                                            TensorView<const float, 1, Cuda>,
                                            TensorView<Bf16, 2, Cuda>, const Context<Cuda>&);
#endif
/// @endcond

}  // namespace detail
}  // namespace octavo
