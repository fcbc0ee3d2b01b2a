/// @file
/// Segments: consecutive blocks of the same type. Neighbours of one kind and one precision share a
/// type, so that a model of 32 blocks whose first and last are BF16 instantiates two block types
/// instead of 32.
#pragma once

#include <octavo/layers/pre_norm_block.hpp>
#include <octavo/precision/layerwise.hpp>

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The precision of block `Layer`.
template <class P, int Layer, int Layers>
using BlockPrecisionAt = BlockPrecision<PrecisionOf<P, Layer, Layers, LinearRole::qkv>,
                                        PrecisionOf<P, Layer, Layers, LinearRole::output>,
                                        PrecisionOf<P, Layer, Layers, LinearRole::gate_up>,
                                        PrecisionOf<P, Layer, Layers, LinearRole::down>>;

/// Finds the first block of the segment after that of block `Layer`.
template <class Family, class P, int Layer, int Next = Layer + 1>
constexpr int segment_end() {
  constexpr int layers = Family::config.layers;
  if constexpr (Next >= layers) {
    return layers;
  } else if constexpr (Family::block_kind(Layer) == Family::block_kind(Next) &&
                       std::is_same_v<BlockPrecisionAt<P, Layer, layers>,
                                      BlockPrecisionAt<P, Next, layers>>) {
    return segment_end<Family, P, Layer, Next + 1>();
  } else {
    return Next;
  }
}

/// The blocks of one segment.
template <class BlockType, int Begin, int End>
struct BlockSegment {
  using Block = BlockType;
  static constexpr int begin = Begin;
  std::vector<Block> blocks = std::vector<Block>(static_cast<std::size_t>(End - Begin));
  typename Block::Shared shared;
};

template <class Family, class T, class P, class G, Device D, int Begin, class... Done>
constexpr auto make_segments() {
  constexpr int layers = Family::config.layers;
  if constexpr (Begin >= layers) {
    return std::type_identity<std::tuple<Done...>>{};
  } else {
    constexpr int end = segment_end<Family, P, Begin>();
    using Block = typename Family::template Block<Family::block_kind(Begin), T,
                                                  BlockPrecisionAt<P, Begin, layers>, G, D>;
    return make_segments<Family, T, P, G, D, end, Done..., BlockSegment<Block, Begin, end>>();
  }
}

/// A tuple of `BlockSegment`s that covers all blocks.
template <class Family, class T, class P, class G, Device D>
using Segments = typename decltype(make_segments<Family, T, P, G, D, 0>())::type;

}  // namespace octavo::detail
