/// @file
/// Writing of operands. A kernel whose result is an operand defines a source and calls
/// `produce`; more complex kernels, such as RMSNorm, call `write_operand` with one function that
/// writes the values and one that writes the copies.
#pragma once

#include <octavo/kernels/cuda/cast/launch_cast.cuh>
#include <octavo/kernels/cuda/cast/two_levels.cuh>
#include <octavo/kernels/cuda/cast/values.cuh>

namespace octavo OCTAVO_ABI {
namespace detail {

/// Whether the operand is cast by current scaling, with a scale that is not known yet.
template <QuantizedPrecision P, OperandKind Kind>
bool must_find_scale(const Operand<P, Kind, Cuda>& operand) {
  return is_tensorwise<typename PrecisionTraits<P>::ScalingType> && !operand.scale_is_found;
}

/// Enqueues the kernels that compute the scale of current scaling and cast the operand's values
/// with it.
/// @param write_values  see write_operand
template <QuantizedPrecision P, OperandKind Kind, class WriteValues>
void cast_by_current_scale(const char* name, const Operand<P, Kind, Cuda>& operand,
                           const WriteValues& write_values, const Context<Cuda>& context) {
  std::uint32_t* amax_bits = &operand.slot.scaling->found_amax_bits;
  fill_zero(amax_bits, sizeof(*amax_bits), context);
  write_values(amax_bits);
  const MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
  enqueue_cast<true>(name, source, operand, context);
}

/// Whether no block of scales spans two parts of this many columns, so that each part can be cast
/// separately. Scales of tensors and of rows are known before the cast.
template <class Granularity>
bool blocks_lie_in_parts(int parts, Index part_columns) {
  if constexpr (std::is_same_v<Granularity, PerTensor> || std::is_same_v<Granularity, PerRow>) {
    return true;
  } else {
    return parts == 1 || part_columns % Granularity::block_columns == 0;
  }
}

/// Throws ShapeError if values must be written but have no memory.
template <LinearPrecision P, OperandKind Kind>
void require_values(const char* name, const Operand<P, Kind, Cuda>& operand) {
  require<ShapeError>(operand.values.data() != nullptr || operand.values.size() == 0, name,
                      ": the operand's values must be written, but have no memory; allocate it "
                      "with OperandMemory::allocate_values");
}

}  // namespace detail

namespace kernels {

/// Enqueues the kernels that write an operand, in as few passes as its precision allows: only the
/// values (dense); the values, then the copies (current scaling, whose scale is known last, and two
/// levels of scales); or only the copies, which for scales per row follows a pass that computes
/// their amaxes: see enqueue_cast.
/// @param name          the operation, for error messages
/// @param write_values  `write_values(amax_bits)` enqueues the kernel that writes the values and,
///                      unless it is null, raises `amax_bits`, initially 0, to the bits of max
///                      |values|
/// @param write_copies  `write_copies()` enqueues the kernel that writes the copies without the
///                      values
/// @throws ShapeError  if a matrix is too large, or values have no memory
template <LinearPrecision P, OperandKind Kind, class WriteValues, class WriteCopies>
void write_operand(const char* name, const Operand<P, Kind, Cuda>& operand,
                   const WriteValues& write_values, const WriteCopies& write_copies,
                   const Context<Cuda>& context) {
  detail::require_operand_size<P>(name, operand.values.extent(0), operand.values.extent(1));
  if constexpr (!QuantizedPrecision<P>) {
    detail::require_values(name, operand);
    write_values(static_cast<std::uint32_t*>(nullptr));
  } else {
    static_assert(
        std::is_same_v<typename PrecisionTraits<P>::Storage, Bf16>,
        "quantize on Cuda: FP8 operands are cast from Bf16; make it the precision's Storage");
    using S = typename PrecisionTraits<P>::ScalingType;
    if constexpr (detail::has_two_levels<S>) {
      detail::require_values(name, operand);
      detail::cast_by_two_levels(name, operand, write_values, context);
    } else {
      if constexpr (detail::is_tensorwise<S>) {
        if (detail::must_find_scale(operand)) {
          detail::require_values(name, operand);
          return detail::cast_by_current_scale(name, operand, write_values, context);
        }
      }
      write_copies();
    }
  }
}

/// Enqueues the kernels that write an operand from a source: see write_operand. The values of a
/// quantised operand are written only if its scale depends on them, or if a block of scales spans
/// two parts.
/// @param name    the operation, for error messages
/// @param source  computes [rows, columns / parts] of each part
/// @throws ShapeError  if a matrix is too large or cannot be divided into the parts, or values have
///                     no memory
template <LinearPrecision P, OperandKind Kind, class Source>
void produce(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
             const Context<Cuda>& context) {
  if constexpr (!TileSource<Source, typename PrecisionTraits<P>::Storage>) {
    (void)detail::TileSourceCheck<Source, typename PrecisionTraits<P>::Storage>();
  } else {
    const Index columns = operand.values.extent(1);
    require<ShapeError>(columns % Source::parts == 0, name, ": ", columns, " columns are not ",
                        Source::parts, " parts of equal width");
    const auto write_values = [&](std::uint32_t* amax_bits) {
      detail::enqueue_values(name, source, operand.values, amax_bits, context);
    };
    const auto write_copies = [&] {
      if constexpr (QuantizedPrecision<P>) {
        if (detail::blocks_lie_in_parts<OperandGranularity<P, Kind>>(Source::parts,
                                                                     columns / Source::parts)) {
          return detail::enqueue_cast<false>(name, source, operand, context);
        }
        detail::require_values(name, operand);
        write_values(nullptr);
        const MatrixSource<Bf16> values{operand.values.data(), columns};
        detail::enqueue_cast<false>(name, values, operand, context);
      }
    };
    write_operand(name, operand, write_values, write_copies, context);
  }
}

}  // namespace kernels
}  // namespace octavo
