/// @file
/// Quantisation of GEMM operands, and the update of delayed scales.
#pragma once

#include <octavo/kernels/scale.hpp>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// Returns the bytes of workspace that quantisation with a scale per row needs on any device.
constexpr std::size_t row_amaxes_workspace(Index rows, Index columns) {
  return static_cast<std::size_t>(rows + columns) * sizeof(std::uint32_t);
}

/// Casts `operand.values` to the row-major and the transposed copy, if the operand has them, with
/// the scales of its precision: the slot's scale (delayed), the tensor's own amax (tensorwise;
/// written to the slot unless `operand.scale_is_found`), the amax of each row of each copy
/// (rowwise), or a scale per block. With two levels of scales, each copy also has a scale of the
/// tensor; the transposed copies of inputs and gradients are cast from rotated values (see
/// kernels/hadamard.hpp), and gradients are rounded stochastically, by random numbers of the
/// operand's number, the slot's count of casts, the copy and the element. With `operand.record`,
/// the slot's amax and statistics include this tensor. An operand that is not quantised is
/// unchanged. Values are otherwise rounded to nearest-even and saturate; a row or block of zeros
/// has scale 1 (MX: 2^-127, two levels: 0).
/// @throws ShapeError  if the copies' shapes differ from that of the values, if the number of rows
///                     that are rotated is not a multiple of 16, or if the matrix is too large for
///                     the device: see `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise. For rowwise scaling on `Cuda`, all functions that write
/// operands use `row_amaxes_workspace` bytes of the context's workspace, in addition to the bytes
/// that they document.
/// Source: Transformer Engine's delayed and current scaling; DeepSeek-V3; OCP MX.
template <LinearPrecision P, OperandKind Kind, Device D>
void quantize(const Operand<P, Kind, D>& operand, const Context<D>& context) {
  if constexpr (QuantizedPrecision<P>) {
    const Index rows = operand.values.extent(0);
    const Index columns = operand.values.extent(1);
    const auto fits = [](const auto& copy, Index outer, Index inner) {
      return copy.empty() || (copy.outer() == outer && copy.inner() == inner);
    };
    require<ShapeError>(
        fits(operand.row_major, rows, columns) && fits(operand.transposed, columns, rows),
        "quantize: the copies do not have the shape of the values, [", rows, ", ", columns,
        "]; create them with OperandMemory::operand");
    if constexpr (detail::rotates_transposed<typename PrecisionTraits<P>::ScalingType, Kind>) {
      require<ShapeError>(
          operand.transposed.empty() || rows % 16 == 0,
          "quantize: the number of rows of a rotated operand must be a multiple of 16, but is ",
          rows, "; change the number of tokens");
    }
    quantize_body(operand, context);
  } else {
    (void)operand;
    (void)context;
  }
}

/// Moves the amaxes recorded by casts into the histories, and computes the scales of the next
/// casts. An amax of 0 is ignored; an Inf or NaN is counted and dropped, so that it cannot freeze
/// the scale for a whole history. For operands without a history, only clears their amax.
/// @param operands  their scaling state
/// @param rules     [operands]
/// @param history   [operands, longest history]
/// @note enqueues; does not synchronise
template <Device D>
void update_delayed_scales(const ScalingArrays<D>& operands,
                           TensorView<const ScalingRule, 1, D> rules,
                           TensorView<float, 2, D> history, const Context<D>& context) {
  check_shape("update_delayed_scales", "scales", operands.scales, {operands.size()});
  check_shape("update_delayed_scales", "statistics", operands.statistics, {operands.size()});
  check_shape("update_delayed_scales", "rules", rules, {operands.size()});
  require<ShapeError>(history.extent(0) == operands.size(),
                      "update_delayed_scales: the history has ", history.extent(0), " rows for ",
                      operands.size(), " operands; pass one row for each operand");
  update_delayed_scales_body(operands, rules, history, context);
}

/// Clears the counters of a step: elements, saturated, flushed.
/// @param statistics  [operands]
/// @note enqueues; does not synchronise
template <Device D>
void clear_statistics(TensorView<OperandStatistics, 1, D> statistics, const Context<D>& context) {
  clear_statistics_body(statistics, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/quantize.hpp>
