/// @file
/// Quantisation on the `Cuda` device, with the same bits as on the `Cpu` device.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/cuda/delayed_scales.cuh>

namespace octavo OCTAVO_ABI::detail {

/// See quantize. Tensorwise reads the values twice: for the amax, then for both copies.
template <QuantizedPrecision P, OperandKind Kind>
void quantize_body(const Operand<P, Kind, Cuda>& operand, const Context<Cuda>& context) {
  constexpr const char* name = "quantize";
  const auto find_amax = [&](std::uint32_t* amax_bits) {
    enqueue_amax(name, operand.values, amax_bits, context);
  };
  const auto write_copies = [&] {
    const kernels::MatrixSource<Bf16> values{operand.values.data(), operand.values.extent(1)};
    enqueue_cast<false>(name, values, operand, context);
  };
  kernels::write_operand(name, operand, find_amax, write_copies, context);
}

}  // namespace octavo::detail
