/// @file
/// A GEMM operand with its quantised copies and a slot of its own, for tests.
#pragma once

#include <octavo/kernels/quantize.hpp>

#include "support/matrix.hpp"

namespace support {

/// Owns what `octavo::Operand` points to.
template <class P, octavo::OperandKind Kind>
struct QuantizedOperand {
  using Format = octavo::OperandFormat<P, Kind>;
  using Granularity = octavo::OperandGranularity<P, Kind>;
  using Scale = typename Granularity::Scale;

  /// An operand with these values, not yet quantised. The slot's scale is 1.
  explicit QuantizedOperand(Matrix<Bf16> source, bool record = true,
                            octavo::OperandCopies copies = {})
      : values(std::move(source)),
        row_major(static_cast<std::size_t>(values.size())),
        transposed(row_major.size()),
        row_major_scales(scales(values.rows, values.columns)),
        transposed_scales(scales(values.columns, values.rows)) {
    slot.scale = slot.scale_inverse = 1.0f;
    memory.values = values.elements.data();
    memory.row_major = row_major.data();
    memory.transposed = transposed.data();
    memory.row_major_scales = row_major_scales.data();
    memory.transposed_scales = transposed_scales.data();
    operand = memory.operand(values.rows, values.columns, &slot, record, copies);
  }
  QuantizedOperand(const QuantizedOperand&) = delete;
  QuantizedOperand& operator=(const QuantizedOperand&) = delete;

  Matrix<Bf16> values;
  std::vector<Format> row_major;
  std::vector<Format> transposed;
  std::vector<Scale> row_major_scales;
  std::vector<Scale> transposed_scales;
  octavo::OperandScaling slot{};
  octavo::OperandMemory<P, Kind, Cpu> memory;
  octavo::Operand<P, Kind, Cpu> operand;

 private:
  static std::vector<Scale> scales(Index outer, Index inner) {
    return std::vector<Scale>(
        static_cast<std::size_t>(octavo::scale_count<Granularity>(outer, inner)));
  }
};

/// An operand that is not quantised: a matrix to write to.
template <class T>
octavo::Operand<T, octavo::OperandKind::input, Cpu> dense_input(Matrix<T>& matrix) {
  return {matrix.view()};
}

/// The same for a gradient.
template <class T>
octavo::Operand<T, octavo::OperandKind::output_gradient, Cpu> dense_gradient(Matrix<T>& matrix) {
  return {matrix.view()};
}

}  // namespace support
