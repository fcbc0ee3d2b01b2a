/// @file
/// The kernel that casts tiles, and its launch.
#pragma once

#include <octavo/kernels/cuda/cast/block_cast.cuh>
#include <octavo/kernels/cuda/cast/tensor_cast.cuh>

namespace octavo OCTAVO_ABI::detail {

/// How a tile is cast, as a template parameter of kernels. It depends on the granularity of the
/// scales: a further granularity needs a file next to tensor_cast.cuh and a branch here.
/// @tparam S           the recipe's scaling
/// @tparam FindsScale  see tensor_cast_tile
template <class S, Fit F, bool FindsScale, class Format, class Granularity>
struct TileCast {
  static constexpr Fit fit = F;
  static constexpr bool last_tile_first = true;
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

/// Minimum number of blocks of cast_kernel per multiprocessor, which limits the registers of a
/// thread.
template <Fit F>
inline constexpr int tiles_at_once = F == Fit::whole ? 4 : 3;

/// Returns the tile of a block. A cast begins with the last tile, because the previous kernel ended
/// there, so its data may still be in L2.
template <class Cast>
__device__ TilePlace tile_of_block() {
  return Cast::last_tile_first ? TilePlace(gridDim.y - 1 - blockIdx.y, gridDim.x - 1 - blockIdx.x)
                               : TilePlace(blockIdx.y, blockIdx.x);
}

/// Casts the values of a source, one tile per block.
template <class Cast, class Format, class Granularity, class Source>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, tiles_at_once<Cast::fit>)
    cast_kernel(const CastArguments<Format, Granularity> arguments, const Source source) {
  Cast::run(arguments, source, tile_of_block<Cast>());
}

/// Launches cast_kernel.
struct TileLaunch {
  static constexpr std::size_t workspace_bytes = 0;

  /// @param tiles  see tile_grid
  template <class Cast, class Format, class Granularity, class Source>
  void launch_cast(const char* name, const CastArguments<Format, Granularity>& arguments,
                   const Source& source, dim3 tiles, std::size_t shared_bytes,
                   const Context<Cuda>& context) const {
    launch(name, cast_kernel<Cast, Format, Granularity, Source>, tiles, quantize_threads,
           shared_bytes, context, arguments, source);
  }
};

/// Whether the scales of `S` are powers of two; those of blocks with a shared exponent always are.
template <class S>
inline constexpr bool scales_are_powers_of_two = [] {
  return std::is_same_v<typename S::InputGranularity::Scale, E8M0> ||
         rounding_of<S> == ScaleRounding::power_of_two;
}();

/// Returns the arguments of kernels that write the operand's copies.
template <QuantizedPrecision P, OperandKind Kind>
auto cast_arguments(const Operand<P, Kind, Cuda>& operand, int parts) {
  using S = typename PrecisionTraits<P>::ScalingType;
  const Index columns = operand.values.extent(1);
  return CastArguments<OperandFormat<P, Kind>, OperandGranularity<P, Kind>>{
      operand.row_major, operand.transposed, operand.values.extent(0), columns,
      columns / parts,   operand.slot,       operand.record,           scales_are_powers_of_two<S>};
}

/// Calls `body(fit)` with the operand's Fit as a constant.
/// @param vectors  see find_fit
template <class Format, class Granularity, class Body>
void with_fit(const CastArguments<Format, Granularity>& arguments, bool vectors, const Body& body) {
  switch (find_fit(arguments, vectors)) {
    case Fit::any:
      return body(std::integral_constant<Fit, Fit::any>{});
    case Fit::vectors:
      return body(std::integral_constant<Fit, Fit::vectors>{});
    case Fit::whole:
      return body(std::integral_constant<Fit, Fit::whole>{});
  }
}

/// Enqueues the cast of a source's values to the operand's copies. With scales per row, a pass that
/// computes their amaxes comes first, in the context's workspace. Not for two levels of scales: see
/// cast_by_two_levels.
/// @tparam FindsScale  see tensor_cast_tile
/// @param tile_launch  like TileLaunch, launches a kernel whose blocks process the tiles, once: for
///                     the first pass if there are two, so that its additional work is done only
///                     once. Its `workspace_bytes` of the context's workspace are reserved
template <bool FindsScale, TileSource<Bf16> Source, QuantizedPrecision P, OperandKind Kind,
          class Launch = TileLaunch>
void enqueue_cast(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
                  const Context<Cuda>& context, const Launch& tile_launch = {}) {
  using S = typename PrecisionTraits<P>::ScalingType;
  using Format = OperandFormat<P, Kind>;
  using Granularity = OperandGranularity<P, Kind>;
  auto arguments = cast_arguments(operand, Source::parts);
  const auto enqueue = [&]<class Cast>(Cast, const auto& launcher) {
    launcher.template launch_cast<Cast>(name, arguments, source, tile_grid(arguments),
                                        Source::parts * Cast::shared_bytes, context);
  };
  const bool has_copies = !operand.row_major.empty() || !operand.transposed.empty();
  if constexpr (!has_two_levels<S>) {
    with_fit(arguments, source.vectors(), [&](auto fit) {
      constexpr TileCast<S, fit(), FindsScale, Format, Granularity> cast{};
      if constexpr (is_per_row<S>) {
        if (has_copies) {
          arguments.amaxes =
              clear_row_amaxes(name, arguments, tile_launch.workspace_bytes, context);
          enqueue(TileAmaxes<fit(), Format, Granularity>{}, tile_launch);
          return enqueue(cast, TileLaunch{});
        }
      }
      enqueue(cast, tile_launch);
    });
  }
}

}  // namespace octavo::detail
