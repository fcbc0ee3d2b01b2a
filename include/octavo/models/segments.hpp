/// @file
/// Segments: consecutive blocks of the same type. Neighbours of one kind and one precision share a
/// type, so that a model of 32 blocks whose first and last are BF16 instantiates two block types
/// instead of 32.
#pragma once

#include <octavo/layers/pre_norm_block.hpp>
#include <octavo/precision/layerwise.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The roles of the linear layers in blocks of a kind: `Family::Roles<Kind>`, or the default roles.
template <class Family, int Kind>
constexpr auto roles_of_kind() {
  if constexpr (requires { typename Family::template Roles<Kind>; }) {
    return typename Family::template Roles<Kind>{};
  } else {
    return DefaultRoles{};
  }
}
template <LinearRole... Roles, LinearRole... Others>
constexpr auto operator+(LinearRoles<Roles...>, LinearRoles<Others...>) {
  return LinearRoles<Roles..., Others...>{};
}

/// Number of kinds of blocks in a family.
template <class Family>
constexpr int count_kinds() {
  int kinds = 0;
  for (int layer = 0; layer < Family::config.layers; ++layer) {
    kinds = std::max(kinds, Family::block_kind(layer) + 1);
  }
  return kinds;
}
template <class Family, int... Kinds>
constexpr auto roles_of_kinds(std::integer_sequence<int, Kinds...>) {
  return (roles_of_kind<Family, Kinds>() + ... + LinearRoles<>{});
}
/// The roles of the linear layers in all blocks of a family.
template <class Family>
using RolesOf =
    decltype(roles_of_kinds<Family>(std::make_integer_sequence<int, count_kinds<Family>()>{}));

template <class Family, class P, int Layer, LinearRole... Roles>
constexpr auto block_precision(LinearRoles<Roles...>) {
  using Layers = BlockPrecision<RolePrecision<
      Roles, PrecisionOf<P, Layer, Family::config.layers, Roles, RolesOf<Family>>>...>;
  constexpr AttentionForward forward = attention_forward_of<P>;
  constexpr ActivationInput input = activation_input_of<P>;
  return std::conditional_t<forward == AttentionForward::storage &&
                                input == ActivationInput::storage,
                            Layers, WithOptions<Layers, forward, input>>{};
}
/// The precision of block `Layer`.
template <class Family, class P, int Layer>
using BlockPrecisionAt =
    decltype(block_precision<Family, P, Layer>(roles_of_kind<Family, Family::block_kind(Layer)>()));

/// The precision of the head.
template <class Family, class P>
using HeadPrecisionOf = PrecisionOf<P, 0, Family::config.layers, LinearRole::head, RolesOf<Family>>;

/// Finds the first block of the segment that follows the segment of block `Layer`.
template <class Family, class P, int Layer, int Next = Layer + 1>
constexpr int segment_end() {
  constexpr int layers = Family::config.layers;
  if constexpr (Next >= layers) {
    return layers;
  } else if constexpr (Family::block_kind(Layer) == Family::block_kind(Next) &&
                       std::is_same_v<BlockPrecisionAt<Family, P, Layer>,
                                      BlockPrecisionAt<Family, P, Next>>) {
    return segment_end<Family, P, Layer, Next + 1>();
  } else {
    return Next;
  }
}

/// The blocks of one segment.
template <class BlockType, int Begin, int End>
struct BlockSegment {
  using Block = BlockType;
  static constexpr std::size_t count = End - Begin;
  std::vector<Block> blocks = std::vector<Block>(count);
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
                                                  BlockPrecisionAt<Family, P, Begin>, G, D>;
    return make_segments<Family, T, P, G, D, end, Done..., BlockSegment<Block, Begin, end>>();
  }
}

/// A tuple of `BlockSegment`s that covers all blocks.
template <class Family, class T, class P, class G, Device D>
using Segments = typename decltype(make_segments<Family, T, P, G, D, 0>())::type;

/// Calls `body(block, shared)` for every block in order.
template <class SegmentTuple, class Body>
void for_each_block(SegmentTuple& segments, const Body& body) {
  const auto in_segment = [&](auto& segment) {
    for (auto& block : segment.blocks) body(block, segment.shared);
  };
  std::apply([&](auto&... segment) { (in_segment(segment), ...); }, segments);
}

}  // namespace octavo::detail
