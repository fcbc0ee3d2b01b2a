/// @file
/// What writes an operand. All kernels that end in one describe themselves as a source and call
/// `produce`, which writes what the operand's precision needs in as few passes as it allows: the
/// values (dense), the values and then the copies (tensorwise, whose scale is known last; blocks
/// that span two parts), or the copies alone (delayed and other block scales).
#pragma once

#include <octavo/kernels/cuda/cast/block_cast.cuh>
#include <octavo/kernels/cuda/cast/tensor_cast.cuh>
#include <octavo/kernels/cuda/cast/values.cuh>

namespace octavo::detail {

/// How a tile is cast, as a type that kernels are made for.
/// @tparam S           the recipe's scaling
/// @tparam FindsScale  see tensor_cast_tile
template <class S, Fit F, bool FindsScale, class Format, class Granularity>
struct TileCast {
  static constexpr Fit fit = F;
  static constexpr bool one_scale = std::is_same_v<Granularity, PerTensor>;
  static constexpr std::size_t shared_bytes = one_scale ? sizeof(ByteTile) : sizeof(ValueTile);

  template <class Source>
  __device__ static void run(const CastArguments<Format, Granularity>& arguments,
                             const Source& source, TilePlace place) {
    if constexpr (one_scale) {
      tensor_cast_tile<F, FindsScale>(arguments, source, place);
    } else {
      block_cast_tile<S, F>(arguments, source, place);
    }
  }
};

/// Casts one tile a block. The last tile comes first: what wrote or read the values just before
/// ended there, so that they may still be in L2.
template <class Cast, class Format, class Granularity, class Source>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, tiles_at_once<Cast::fit>)
    cast_kernel(const CastArguments<Format, Granularity> arguments, const Source source) {
  Cast::run(arguments, source, TilePlace(gridDim.y - 1 - blockIdx.y, gridDim.x - 1 - blockIdx.x));
}

/// Whether the operand is cast by current scaling, with a scale that is not known yet.
template <QuantizedPrecision P, OperandKind Kind>
bool must_find_scale(const Operand<P, Kind, Cuda>& operand) {
  return is_tensorwise<typename PrecisionTraits<P>::ScalingType> && !operand.scale_is_found;
}

/// Whether the scales of `S` are powers of two; those of blocks that share an exponent always are.
template <class S>
inline constexpr bool scales_are_powers_of_two = [] {
  return std::is_same_v<typename S::InputGranularity::Scale, E8M0> ||
         rounding_of<S> == ScaleRounding::power_of_two;
}();

/// What kernels that write the operand's copies need.
template <QuantizedPrecision P, OperandKind Kind>
auto cast_arguments(const Operand<P, Kind, Cuda>& operand, int parts) {
  using S = typename PrecisionTraits<P>::ScalingType;
  const Index columns = operand.values.extent(1);
  return CastArguments<OperandFormat<P, Kind>, OperandGranularity<P, Kind>>{
      operand.row_major, operand.transposed, operand.values.extent(0), columns,
      columns / parts,   operand.slot,       operand.record,           scales_are_powers_of_two<S>};
}

/// Calls `body(cast)` with the TileCast for an operand of these arguments.
/// @param vectors  see find_fit
template <class S, bool FindsScale, class Format, class Granularity, class Body>
void with_tile_cast(const CastArguments<Format, Granularity>& arguments, bool vectors,
                    const Body& body) {
  switch (find_fit(arguments, vectors)) {
    case Fit::any:
      return body(TileCast<S, Fit::any, FindsScale, Format, Granularity>{});
    case Fit::vectors:
      return body(TileCast<S, Fit::vectors, FindsScale, Format, Granularity>{});
    case Fit::whole:
      return body(TileCast<S, Fit::whole, FindsScale, Format, Granularity>{});
  }
}

/// Enqueues the cast of what the source makes to the operand's copies.
/// @tparam FindsScale  see tensor_cast_tile
template <bool FindsScale, class Source, QuantizedPrecision P, OperandKind Kind>
void enqueue_cast(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
                  const Context<Cuda>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  const auto arguments = cast_arguments(operand, Source::parts);
  with_tile_cast<S, FindsScale>(arguments, source.vectors(), [&]<class Cast>(Cast) {
    launch(name, cast_kernel<Cast, OperandFormat<P, Kind>, OperandGranularity<P, Kind>, Source>,
           tile_grid(arguments), quantize_threads, Source::parts * Cast::shared_bytes, context,
           arguments, source);
  });
}

/// Enqueues what finds the scale of current scaling and casts the operand's values by it.
/// @param find_amax  `find_amax(amax_bits)` enqueues what raises `amax_bits`, 0 so far, to the
///                   bits of max |values|
template <QuantizedPrecision P, OperandKind Kind, class FindAmax>
void cast_by_current_scale(const char* name, const Operand<P, Kind, Cuda>& operand,
                           const FindAmax& find_amax, const Context<Cuda>& context) {
  std::uint32_t* amax_bits = &operand.slot->found_amax_bits;
  fill_zero(amax_bits, sizeof(*amax_bits), context);
  find_amax(amax_bits);
  const MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
  enqueue_cast<true>(name, source, operand, context);
}

template <QuantizedPrecision P>
constexpr void check_storage() {
  static_assert(
      std::is_same_v<typename PrecisionTraits<P>::Storage, Bf16>,
      "quantize on Cuda: FP8 operands are cast from Bf16; make it the precision's Storage");
}

/// True if no block of scales spans two parts of this many columns, so that each part can be cast
/// apart from the others.
template <class Granularity>
bool blocks_lie_in_parts(int parts, Index part_columns) {
  if constexpr (Granularity::block_columns == 0) {
    return true;
  } else {
    return parts == 1 || part_columns % Granularity::block_columns == 0;
  }
}

/// Enqueues what writes an operand from a source. The values of a quantised operand are written
/// only where its scale is not known before them, or where a block of scales spans two parts.
/// @param name  the operation, for messages of errors
template <LinearPrecision P, OperandKind Kind, class Source>
void produce(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
             const Context<Cuda>& context) {
  if constexpr (!QuantizedPrecision<P>) {
    enqueue_values(name, source, operand.values, nullptr, context);
  } else {
    check_storage<P>();
    if constexpr (is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
      if (must_find_scale(operand)) {
        const auto find_amax = [&](std::uint32_t* amax_bits) {
          enqueue_values(name, source, operand.values, amax_bits, context);
        };
        return cast_by_current_scale(name, operand, find_amax, context);
      }
    }
    if (blocks_lie_in_parts<OperandGranularity<P, Kind>>(
            Source::parts, operand.values.extent(1) / Source::parts)) {
      enqueue_cast<false>(name, source, operand, context);
    } else {
      enqueue_values(name, source, operand.values, nullptr, context);
      const MatrixSource<Bf16> values{operand.values.data(), operand.values.extent(1)};
      enqueue_cast<false>(name, values, operand, context);
    }
  }
}

}  // namespace octavo::detail
