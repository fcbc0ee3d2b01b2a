/// @file
/// Root-mean-square normalisation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/rms_norm/backward.cuh>
#include <octavo/kernels/cuda/rms_norm/cast.cuh>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo {

/// See rms_norm_forward. Where the copies do not wait for the values' amax, the values are not
/// written: the rows are read for their root mean squares, and again, from L2, to be cast. Then the
/// context's workspace holds what blocks tell each other.
template <LinearPrecision P, OperandKind Kind, class T>
void rms_norm_forward_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                           float epsilon, const Operand<P, Kind, Cuda>& y,
                           TensorView<float, 1, Cuda> inverse_rms, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_forward";
  detail::require_operand_size<P>(name, x.extent(0), x.extent(1));
  detail::require_columns(name, x.extent(1), detail::most_norm_columns);
  const auto normalise = [&](T* values, std::uint32_t* amax_bits) {
    const bool vectors = detail::rows_are_vectors(x.extent(1), x.data(), weight.data(), values);
    const Index segments = ceil_divide(x.extent(1), detail::segment_columns);
    const Index warps =
        std::clamp(ceil_divide(segments, detail::held_segments), Index{1}, detail::most_row_warps);
    detail::launch(
        name, vectors ? detail::rms_norm_kernel<true, T> : detail::rms_norm_kernel<false, T>,
        x.extent(0), static_cast<int>(warps * 32),
        static_cast<std::size_t>(segments) * 32 * sizeof(float), context, x.data(), weight.data(),
        static_cast<int>(x.extent(1)), epsilon, inverse_rms.data(), values, amax_bits);
  };
  if constexpr (!QuantizedPrecision<P>) {
    normalise(y.values.data(), nullptr);
  } else {
    using S = typename PrecisionTraits<P>::ScalingType;
    if constexpr (detail::is_tensorwise<S>) {
      if (detail::must_find_scale(y)) {
        const auto find_amax = [&](std::uint32_t* bits) { normalise(y.values.data(), bits); };
        return detail::cast_by_current_scale(name, y, find_amax, context);
      }
    }
    detail::check_storage<P>();
    const Index words = detail::RmsNormBoard::word_count(x.extent(0));
    auto* board = detail::workspace_elements<std::uint32_t>(words, name, context);
    const detail::RmsNormSource source{x.data(), weight.data(), detail::RmsNormBoard(board),
                                       x.extent(0), x.extent(1)};
    const auto arguments = detail::cast_arguments(y, 1);
    const dim3 tiles = detail::tile_grid(arguments);
    const unsigned across = tiles.x + detail::inverse_blocks;
    const auto ahead = static_cast<unsigned>(
        ceil_divide(Index{detail::bands_ahead} * detail::inverse_blocks, Index{across}));
    check(cudaMemsetAsync(board, detail::RmsNormBoard::blank_byte,
                          static_cast<std::size_t>(words) * sizeof(*board), context.stream()),
          "cudaMemsetAsync");
    detail::with_tile_cast<S, false>(arguments, source.vectors(), [&]<class Cast>(Cast) {
      detail::launch(
          name,
          detail::rms_norm_cast_kernel<Cast, OperandFormat<P, Kind>, OperandGranularity<P, Kind>>,
          Index{across} * (ahead + tiles.y), detail::quantize_threads, Cast::shared_bytes, context,
          arguments, source, epsilon, inverse_rms.data(), across, ahead);
    });
  }
}

/// See rms_norm_backward. Uses the context's workspace for sums of the weight's gradient.
template <class T, class G>
void rms_norm_backward_body(TensorView<const T, 2, Cuda> y_gradient, TensorView<const T, 2, Cuda> x,
                            TensorView<const T, 1, Cuda> weight,
                            TensorView<const float, 1, Cuda> inverse_rms,
                            TensorView<T, 2, Cuda> x_gradient,
                            TensorView<G, 1, Cuda> weight_gradient, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_backward";
  const Index rows = x.extent(0);
  const Index columns = x.extent(1);
  detail::require_columns(name, columns, detail::most_norm_backward_columns);
  const Index fitting = static_cast<Index>(detail::kernel_workspace_bytes / sizeof(float)) /
                        std::max(Index{1}, columns);
  const Index most = std::clamp(fitting, Index{1}, detail::rms_norm_pieces);
  const Index pieces = std::min(rows, most);
  auto* sums = detail::workspace_elements<float>(pieces * columns, name, context);
  const bool vectors = detail::rows_are_vectors(columns, y_gradient.data(), x.data(), weight.data(),
                                                x_gradient.data());
  const detail::RmsNormBackwardArguments<T> arguments{
      y_gradient.data(), x.data(), weight.data(), inverse_rms.data(),
      x_gradient.data(), sums,     rows,          columns};
  const auto enqueue = [&](auto* kernel, Index shared_floats) {
    detail::launch(name, kernel, pieces, detail::row_threads(columns),
                   static_cast<std::size_t>(shared_floats) * sizeof(float), context, arguments);
  };
  constexpr int most_runs = sizeof(T) == 2 ? 2 : 1;  // that fit a thread's registers
  if (vectors && columns <= detail::held_columns) {
    enqueue(detail::rms_norm_backward_held_kernel<1, T>, 0);
  } else if (vectors && columns <= most_runs * detail::held_columns) {
    enqueue(detail::rms_norm_backward_held_kernel<most_runs, T>, 0);
  } else {
    enqueue(vectors ? detail::rms_norm_backward_kernel<true, T>
                    : detail::rms_norm_backward_kernel<false, T>,
            round_up(columns, detail::run_size));
  }
  detail::add_rows(name, sums, pieces, columns, weight_gradient.data(), context);
}

}  // namespace octavo
