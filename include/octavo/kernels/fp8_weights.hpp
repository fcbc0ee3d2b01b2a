/// @file
/// Weights that ranks cast in shards: one scale from the amaxes of all ranks, and transposed copies
/// of the FP8 values that are gathered.
#pragma once

#include <octavo/kernels/scale.hpp>
#include <octavo/tensor/tensor.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Raises `amax_bits` to the bits of max |values|; those of Inf and NaN are above all others.
/// @param values     [elements]
/// @param amax_bits  [1]
/// @note enqueues; does not synchronise
template <class T, Device D>
void raise_amax(TensorView<const T, 1, D> values, TensorView<std::uint32_t, 1, D> amax_bits,
                const Context<D>& context) {
  check_shape("raise_amax", "amax_bits", amax_bits, {1});
  raise_amax_body(values, amax_bits, context);
}

/// Sets the scales of current scaling from amaxes that were computed elsewhere, with the same bits
/// as `quantize` of a tensor with that amax.
/// @param found      [operands], bits of their amaxes
/// @param operands   their scaling state; the scales are written
/// @param rules      [operands]
/// @param record     whether the slots' amaxes include these amaxes
/// @note enqueues; does not synchronise
template <Device D>
void set_current_scales(TensorView<const std::uint32_t, 1, D> found,
                        const ScalingArrays<D>& operands, TensorView<const ScalingRule, 1, D> rules,
                        bool record, const Context<D>& context) {
  check_shape("set_current_scales", "found", found, {operands.size()});
  check_shape("set_current_scales", "scales", operands.scales, {operands.size()});
  check_shape("set_current_scales", "rules", rules, {operands.size()});
  set_current_scales_body(found, operands, rules, record, context);
}

/// Writes the transposed copy of a matrix that was cast with one scale.
/// @param fp8_values       [rows, columns]
/// @param transposed  [columns, rows], written
/// @throws ShapeError  unless each shape is the transpose of the other
/// @note enqueues; does not synchronise
template <class Format, Device D>
void transpose_fp8_values(const QuantizedView<Format, PerTensor, Layout::row_major, D>& fp8_values,
                          const QuantizedView<Format, PerTensor, Layout::transposed, D>& transposed,
                          const Context<D>& context) {
  require<ShapeError>(
      fp8_values.outer() == transposed.inner() && fp8_values.inner() == transposed.outer(),
      "transpose_fp8_values: a copy of [", transposed.outer(), ", ", transposed.inner(),
      "] cannot be written from [", fp8_values.outer(), ", ", fp8_values.inner(),
      "]; swap its rows and columns");
  if (fp8_values.outer() == 0 || fp8_values.inner() == 0) return;
  transpose_fp8_values_body(fp8_values, transposed, context);
}

namespace detail {

/// Computes one operand's current scale, on every device.
OCTAVO_HOST_DEVICE inline void set_scale_of(OperandScale& scaling, const ScalingRule& rule,
                                            std::uint32_t amax_bits) {
  scaling.scale = current_scale(rule.target, float_from_bits(amax_bits), rule.power_of_two != 0);
#if defined(__CUDA_ARCH__)
  scaling.scale_inverse = __fdiv_rn(1.0f, scaling.scale);
#else
  scaling.scale_inverse = 1.0f / scaling.scale;
#endif
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/fp8_weights.hpp>
