/// @file
/// Root-mean-square normalisation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/cuda/rms_norm/backward.cuh>
#include <octavo/kernels/cuda/rms_norm/cast.cuh>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See rms_norm_forward. If the copies do not depend on the values' amax, the values are not
/// written: the rows are read for their root mean squares, and again, from L2, for the cast: see
/// enqueue_norm_cast.
template <LinearPrecision P, OperandKind Kind, class T>
void rms_norm_forward_body(TensorView<const T, 2, Cuda> x, const NormWeight<T, Cuda>& weight,
                           float epsilon, const Operand<P, Kind, Cuda>& y,
                           TensorView<float, 1, Cuda> inverse_rms, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_forward";
  require_columns(name, x.extent(1), max_norm_columns(context.limits()));
  const auto write_values = [&](std::uint32_t* amax_bits) {
    T* values = y.values.data();
    const bool vectors = rows_are_vectors(x.extent(1), x.data(), weight.values.data(), values);
    const Index segments = ceil_divide(x.extent(1), segment_columns);
    const Index warps = std::clamp(ceil_divide(segments, held_segments), Index{1}, max_row_warps);
    launch(name, vectors ? rms_norm_kernel<true, T> : rms_norm_kernel<false, T>, x.extent(0),
           static_cast<int>(warps * 32), normalise_row_bytes(x.extent(1)), context, x.data(),
           weight.values.data(), weight.offset, static_cast<int>(x.extent(1)), epsilon,
           inverse_rms.data(), values, amax_bits);
  };
  const auto write_copies = [&] {
    if constexpr (QuantizedPrecision<P>) {
      enqueue_norm_cast(name, x, weight, epsilon, y, inverse_rms, context);
    }
  };
  kernels::write_operand(name, y, write_values, write_copies, context);
}

/// See rms_norm_backward. Uses the context's workspace for partial sums of the weight's gradient.
template <class T, class G>
void rms_norm_backward_body(TensorView<const T, 2, Cuda> y_gradient, TensorView<const T, 2, Cuda> x,
                            const NormWeight<T, Cuda>& weight,
                            TensorView<const float, 1, Cuda> inverse_rms,
                            TensorView<T, 2, Cuda> x_gradient,
                            TensorView<G, 1, Cuda> weight_gradient, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_backward";
  const Index rows = x.extent(0);
  const Index columns = x.extent(1);
  require_columns(name, columns, max_norm_backward_columns(context.limits()));
  const Index fitting =
      static_cast<Index>(kernel_workspace_bytes / sizeof(float)) / std::max(Index{1}, columns);
  const Index most = std::clamp(fitting, Index{1}, rms_norm_pieces);
  const Index pieces = std::min(rows, most);
  auto* sums = workspace_of<float>(
      context, static_cast<std::size_t>(pieces * columns) * sizeof(float), name);
  const bool vectors = rows_are_vectors(columns, y_gradient.data(), x.data(), weight.values.data(),
                                        x_gradient.data());
  const RmsNormBackwardArguments<T> arguments{y_gradient.data(),
                                              x.data(),
                                              weight.values.data(),
                                              weight.offset,
                                              inverse_rms.data(),
                                              x_gradient.data(),
                                              sums,
                                              rows,
                                              columns};
  const auto enqueue = [&](auto* kernel, Index shared_floats) {
    launch(name, kernel, pieces, row_threads(columns),
           static_cast<std::size_t>(shared_floats) * sizeof(float), context, arguments);
  };
  constexpr int max_runs = sizeof(T) == 2 ? 2 : 1;  // that fit in a thread's registers
  if (vectors && columns <= held_columns) {
    enqueue(rms_norm_backward_held_kernel<1, T>, 0);
  } else if (vectors && columns <= max_runs * held_columns) {
    enqueue(rms_norm_backward_held_kernel<max_runs, T>, 0);
  } else {
    enqueue(vectors ? rms_norm_backward_kernel<true, T> : rms_norm_backward_kernel<false, T>,
            round_up(columns, run_size));
  }
  if (weight_gradient.empty()) return;
  add_rows(name, sums, pieces, columns, weight_gradient.data(), context);
}

}  // namespace octavo::detail
