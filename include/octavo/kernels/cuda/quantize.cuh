/// @file
/// Quantisation on the `Cuda` device: equal to the `Cpu` device's to the bit.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/cuda/delayed_scales.cuh>

namespace octavo {

/// See quantize. Tensorwise reads the values twice: for the amax, then for both copies.
template <QuantizedPrecision P, OperandKind Kind>
void quantize_body(const Operand<P, Kind, Cuda>& operand, const Context<Cuda>& context) {
  detail::check_storage<P>();
  detail::require_operand_size<P>("quantize", operand.values.extent(0), operand.values.extent(1));
  if constexpr (detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
    if (detail::must_find_scale(operand)) {
      const auto find_amax = [&](std::uint32_t* amax_bits) {
        detail::enqueue_amax(operand.values, amax_bits, context);
      };
      return detail::cast_by_current_scale("quantize", operand, find_amax, context);
    }
  }
  const detail::MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
  detail::enqueue_cast<false>("quantize", source, operand, context);
}

}  // namespace octavo
