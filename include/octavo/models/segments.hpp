/// @file
/// The blocks of a model as runs of equal types: neighbours of one precision share a type, so that
/// a model of 32 blocks with two BF16 edges instantiates two block types, not 32.
#pragma once

#include <octavo/layers/pre_norm_block.hpp>

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo::detail {

/// The precision of block `Layer`.
template <class P, int Layer, int Layers>
using BlockPrecisionAt = BlockPrecision<PrecisionOf<P, Layer, Layers, LinearRole::qkv>,
                                        PrecisionOf<P, Layer, Layers, LinearRole::output>,
                                        PrecisionOf<P, Layer, Layers, LinearRole::gate_up>,
                                        PrecisionOf<P, Layer, Layers, LinearRole::down>>;

/// First block of the segment that follows the one of block `Layer`.
template <class P, int Layer, int Layers, int Next = Layer + 1>
constexpr int segment_end() {
  if constexpr (Next >= Layers) {
    return Layers;
  } else if constexpr (std::is_same_v<BlockPrecisionAt<P, Layer, Layers>,
                                      BlockPrecisionAt<P, Next, Layers>>) {
    return segment_end<P, Layer, Layers, Next + 1>();
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

template <BlockShape Shape, class T, class P, class G, Device D, int Layers, int Begin,
          class... Done>
constexpr auto make_segments() {
  if constexpr (Begin >= Layers) {
    return std::type_identity<std::tuple<Done...>>{};
  } else {
    constexpr int end = segment_end<P, Begin, Layers>();
    using Block = TransformerBlock<Shape, T, BlockPrecisionAt<P, Begin, Layers>, G, D>;
    return make_segments<Shape, T, P, G, D, Layers, end, Done...,
                         BlockSegment<Block, Begin, end>>();
  }
}

/// A tuple of `BlockSegment`s that covers all blocks.
template <BlockShape Shape, class T, class P, class G, Device D, int Layers>
using Segments = typename decltype(make_segments<Shape, T, P, G, D, Layers, 0>())::type;

}  // namespace octavo::detail
