/// @file
/// Operands of a linear layer's GEMMs, with the quantised copies that its precision requires.
#pragma once

#include <octavo/memory/arena.hpp>
#include <octavo/precision/lora.hpp>
#include <octavo/tensor/quantized_view.hpp>
#include <octavo/tensor/scaling_slot.hpp>

namespace octavo OCTAVO_ABI {

/// The role of a tensor in its linear layer.
enum class OperandKind { input, weight, output_gradient };

/// Returns the kind's name, as printed in metrics.
constexpr const char* name_of(OperandKind kind) {
  constexpr std::array names{"input", "weight", "output_gradient"};
  return names[static_cast<std::size_t>(kind)];
}

/// The format that an operand is quantised to.
template <QuantizedPrecision P, OperandKind Kind>
using OperandFormat = std::conditional_t<Kind == OperandKind::output_gradient,
                                         typename PrecisionTraits<P>::BackwardFormat,
                                         typename PrecisionTraits<P>::ForwardFormat>;

/// The granularity of an operand's scales.
template <QuantizedPrecision P, OperandKind Kind>
using OperandGranularity =
    std::conditional_t<Kind == OperandKind::weight,
                       typename PrecisionTraits<P>::ScalingType::WeightGranularity,
                       typename PrecisionTraits<P>::ScalingType::InputGranularity>;

namespace detail {

/// How values are rounded when they are cast.
enum class ValueRounding { nearest_even, stochastic };
template <class S, OperandKind Kind>
inline constexpr ValueRounding value_rounding =
    has_two_levels<S> && Kind == OperandKind::output_gradient ? ValueRounding::stochastic
                                                              : ValueRounding::nearest_even;

/// Whether an operand's transposed copy is rotated along the dimension that the weight gradient
/// reduces.
template <class S, OperandKind Kind>
inline constexpr bool rotates_transposed = has_two_levels<S> && Kind != OperandKind::weight;

}  // namespace detail

/// The copies of an operand that are needed.
struct OperandCopies {
  bool row_major = true;
  bool transposed = true;
};

/// A GEMM operand that is not quantised: the values themselves.
template <LinearPrecision P, OperandKind Kind, Device D>
struct Operand {
  TensorView<typename PrecisionTraits<P>::Storage, 2, D> values;  ///< [rows, columns]
};

/// An operand of a frozen layer, which casts it if its precision quantises.
template <class P, OperandKind Kind, Device D>
struct Operand<Lora<P>, Kind, D> {
  TensorView<typename PrecisionTraits<P>::Storage, 2, D> values;  ///< [rows, columns]
  bool record = false;          ///< for the layer's cast, as in `Operand`
  bool scale_is_found = false;  ///< the same
};

/// A GEMM operand and its quantised copies. A producer writes `values` and calls `quantize`, or
/// writes the copies directly if that moves fewer bytes.
template <QuantizedPrecision P, OperandKind Kind, Device D>
struct Operand<P, Kind, D> {
  using Format = OperandFormat<P, Kind>;
  using Granularity = OperandGranularity<P, Kind>;

  TensorView<typename PrecisionTraits<P>::Storage, 2, D> values;         ///< [rows, columns]
  QuantizedView<Format, Granularity, Layout::row_major, D> row_major;    ///< empty: not needed
  QuantizedView<Format, Granularity, Layout::transposed, D> transposed;  ///< empty: not needed
  ScalingSlot slot{};
  /// Whether amax and statistics are recorded: true in the forward and backward of training, false
  /// in evaluation and recomputation.
  bool record = false;
  /// Whether the slot already contains the scale of these values, so that current scaling of a
  /// whole tensor need not compute it: in recomputation, and if a weight is cast more than once.
  bool scale_is_found = false;
  /// Selects the random numbers of stochastic rounding: the operand's number in its model, and the
  /// data-parallel rank in the upper 32 bits.
  std::uint64_t number = 0;
};

/// The memory of an operand of up to `rows` rows. Parts that are not kept from the forward to the
/// backward may point to memory that layers share.
template <LinearPrecision P, OperandKind Kind, Device D>
struct OperandMemory {
  using Storage = typename PrecisionTraits<P>::Storage;
  Storage* values = nullptr;

  void allocate_values(Arena<D>& arena, MemoryKind kind, Index rows, Index columns) {
    values = arena.template allocate<Storage>(kind, rows * columns);
  }
  void allocate_row_major(Arena<D>&, MemoryKind, Index, Index) {}
  void allocate_transposed(Arena<D>&, MemoryKind, Index, Index) {}

  /// Allocates the copies of a forward's input that the backward needs.
  void allocate_kept(Arena<D>& arena, Index rows, Index columns) {
    allocate_values(arena, MemoryKind::activations, rows, columns);
  }
  /// Allocates the copies that only the forward needs.
  void allocate_transient(Arena<D>&, Index, Index) {}

  /// Returns the operand for this number of rows. `slot`, `record` and `copies` are used only if
  /// the precision quantises.
  [[nodiscard]] Operand<P, Kind, D> operand(Index rows, Index columns, ScalingSlot, bool,
                                            OperandCopies) const {
    return {{values, {rows, columns}}};
  }
};

template <QuantizedPrecision P, OperandKind Kind, Device D>
struct OperandMemory<P, Kind, D> {
  using Storage = typename PrecisionTraits<P>::Storage;
  using Format = OperandFormat<P, Kind>;
  using Granularity = OperandGranularity<P, Kind>;
  using Scale = typename Granularity::Scale;
  static constexpr bool per_tensor = Granularity::block_columns == 0;

  Storage* values = nullptr;
  Format* row_major = nullptr;
  Format* transposed = nullptr;
  Scale* row_major_scales = nullptr;
  Scale* transposed_scales = nullptr;

  void allocate_values(Arena<D>& arena, MemoryKind kind, Index rows, Index columns) {
    values = arena.template allocate<Storage>(kind, rows * columns);
  }
  void allocate_row_major(Arena<D>& arena, MemoryKind kind, Index rows, Index columns) {
    row_major = arena.template allocate<Format>(kind, element_bytes(rows, columns));
    if constexpr (!per_tensor) {
      row_major_scales =
          arena.template allocate<Scale>(kind, scale_count<Granularity>(rows, columns));
    }
  }
  void allocate_transposed(Arena<D>& arena, MemoryKind kind, Index rows, Index columns) {
    transposed = arena.template allocate<Format>(kind, element_bytes(rows, columns));
    if constexpr (!per_tensor) {
      transposed_scales =
          arena.template allocate<Scale>(kind, scale_count<Granularity>(columns, rows));
    }
  }

  /// Returns the bytes of one copy and its scales.
  static constexpr Index element_bytes(Index rows, Index columns) {
    return stored_bytes<Format, D>(rows * columns);
  }
  static constexpr Index scale_bytes(Index rows, Index columns) {
    return per_tensor ? 0
                      : scale_count<Granularity>(rows, columns) * static_cast<Index>(sizeof(Scale));
  }
  /// Places both copies in the same memory, for operands that have only one of them.
  void place(std::byte* elements, std::byte* scales) {
    row_major = transposed = reinterpret_cast<Format*>(elements);
    row_major_scales = transposed_scales = reinterpret_cast<Scale*>(scales);
  }

  void allocate_kept(Arena<D>& arena, Index rows, Index columns) {
    allocate_transposed(arena, MemoryKind::activations, rows, columns);
  }
  void allocate_transient(Arena<D>& arena, Index rows, Index columns) {
    allocate_values(arena, MemoryKind::activations, rows, columns);
    allocate_row_major(arena, MemoryKind::activations, rows, columns);
  }

  [[nodiscard]] Operand<P, Kind, D> operand(Index rows, Index columns, ScalingSlot slot,
                                            bool record, OperandCopies copies) const {
    Scale* row_scales = row_major_scales;
    Scale* column_scales = transposed_scales;
    if constexpr (per_tensor) {
      row_scales = slot.scaling == nullptr ? nullptr : &slot.scaling->scale_inverse;
      column_scales = row_scales;
    }
    Operand<P, Kind, D> result;
    result.values = {values, {rows, columns}};
    if (copies.row_major) result.row_major = {row_major, row_scales, rows, columns};
    if (copies.transposed) result.transposed = {transposed, column_scales, columns, rows};
    result.slot = slot;
    result.record = record;
    return result;
  }
};

}  // namespace octavo
