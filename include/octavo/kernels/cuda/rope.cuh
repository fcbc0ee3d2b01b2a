/// @file
/// Rotary position embedding on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/cuda/rope/head_norm.cuh>
#include <octavo/kernels/cuda/rope/rotate.cuh>

namespace octavo OCTAVO_ABI::detail {

/// See rope_forward.
template <class T>
void rope_forward_body(TensorView<const T, 2, Cuda> qkv, HeadLayout layout,
                       const QkNorm<const T, Cuda>& norm, TensorView<const float, 2, Cuda> rotation,
                       Index sequence, TensorView<T, 2, Cuda> rotated,
                       const Context<Cuda>& context) {
  constexpr const char* name = "rope_forward";
  const Index rows = qkv.extent(0);
  require_columns(name, layout.columns());
  const Rotation angles = make_rotation(layout, rotation, sequence, 1.0f);
  if (norm.query.empty()) {
    enqueue_rotation(name, qkv.data(), rotated.data(), rows, angles, nullptr, context);
    return;
  }
  const Index heads = rows * layout.all_heads();
  launch(name, norm_rotate_kernel<T>, ceil_divide(heads, head_warps), elementwise_threads, 0,
         context, qkv.data(), rotated.data(), rows, angles, norm.query.data(), norm.key.data(),
         static_cast<std::uint32_t>(layout.heads), norm.epsilon, norm.offset);
}

/// See rope_backward. Without a normalisation, the copies of a quantised operand are cast from
/// values that are rotated on the fly; otherwise, the values are rotated in place, then normalised,
/// then cast. Uses the context's workspace for partial sums of the norms' gradients.
template <LinearPrecision P, class T, class G>
void rope_backward_body(TensorView<T, 2, Cuda> rotated_gradient, HeadLayout layout,
                        TensorView<const T, 2, Cuda> qkv, const QkNorm<const T, Cuda>& norm,
                        const QkNorm<G, Cuda>& norm_gradient,
                        TensorView<const float, 2, Cuda> rotation, Index sequence,
                        const Operand<P, OperandKind::output_gradient, Cuda>& qkv_gradient,
                        const Context<Cuda>& context) {
  constexpr const char* name = "rope_backward";
  const Index rows = rotated_gradient.extent(0);
  require_operand_size<P>(name, rows, layout.columns());
  const Rotation angles = make_rotation(layout, rotation, sequence, -1.0f);
  T* values = qkv_gradient.values.data();
  const auto rotate = [&](std::uint32_t* amax_bits) {
    enqueue_rotation(name, static_cast<const T*>(rotated_gradient.data()), values, rows, angles,
                     amax_bits, context);
  };
  if (!norm.query.empty()) {
    rotate(nullptr);
    HeadNormArguments<T> arguments{
        values,       qkv.data(), norm.query.data(), nullptr,      rows,       layout.columns(), 0,
        layout.heads, 0,          angles.head_dim,   norm.epsilon, norm.offset};
    enqueue_head_norm_backward(arguments, norm_gradient.query.data(), context);
    arguments.weight = norm.key.data();
    arguments.first_head = layout.heads;
    arguments.heads = layout.kv_heads;
    enqueue_head_norm_backward(arguments, norm_gradient.key.data(), context);
    quantize(qkv_gradient, context);
    return;
  }
  const auto write_copies = [&] {
    if constexpr (QuantizedPrecision<P>) {
      // Two heads processed together read their angles only once, if no block of scales spans both.
      using Granularity = OperandGranularity<P, OperandKind::output_gradient>;
      const RotatedSource<T, 2> halves{rotated_gradient.data(), angles};
      if (halves.vectors() && angles.all_heads % 2 == 0 &&
          blocks_lie_in_parts<Granularity>(2, layout.columns() / 2)) {
        enqueue_cast<false>(name, halves, qkv_gradient, context);
      } else {
        const RotatedSource<T, 1> whole{rotated_gradient.data(), angles};
        enqueue_cast<false>(name, whole, qkv_gradient, context);
      }
    }
  };
  kernels::write_operand(name, qkv_gradient, rotate, write_copies, context);
}

}  // namespace octavo::detail
