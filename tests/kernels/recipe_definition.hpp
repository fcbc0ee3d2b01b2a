/// @file
/// What each scaling means in terms of the reference quantisation.
#pragma once

#include <octavo/tensor/operand.hpp>

#include "kernels/quantize_reference.hpp"
#include "support/own_scalings.hpp"

namespace reference {

using octavo::AmaxReduction;
using octavo::BlockwiseScaling;
using octavo::DelayedScaling;
using octavo::Margin;
using octavo::MxScaling;
using octavo::OperandKind;
using octavo::RowwiseScaling;
using octavo::ScaleRounding;
using octavo::TensorwiseScaling;

/// The recipe's definition: how its scales are found, and what one scale covers.
template <class S>
struct Definition;
template <int L, AmaxReduction R, Margin M, ScaleRounding O>
struct Definition<DelayedScaling<L, R, M, O>> {
  static constexpr Recipe recipe = Recipe::given;
  static constexpr Block block(OperandKind) { return {}; }
};
template <ScaleRounding O>
struct Definition<TensorwiseScaling<O>> {
  static constexpr Recipe recipe =
      O == ScaleRounding::exact ? Recipe::current : Recipe::current_power_of_two;
  static constexpr Block block(OperandKind) { return {}; }
};
template <ScaleRounding O>
struct Definition<RowwiseScaling<O>> {
  static constexpr Recipe recipe =
      O == ScaleRounding::exact ? Recipe::current : Recipe::current_power_of_two;
  static constexpr Block block(OperandKind) { return {1, 1 << 24}; }  // longer than any row
};
template <ScaleRounding O>
struct Definition<BlockwiseScaling<O>> {
  static constexpr Recipe recipe =
      O == ScaleRounding::exact ? Recipe::current : Recipe::current_power_of_two;
  static constexpr Block block(OperandKind kind) {
    return kind == OperandKind::weight ? Block{128, 128} : Block{1, 128};
  }
};
template <>
struct Definition<MxScaling> {
  static constexpr Recipe recipe = Recipe::mx;
  static constexpr Block block(OperandKind) { return {1, 32}; }
};

template <>
struct Definition<support::BlocksOf64> {
  static constexpr Recipe recipe = Recipe::current;
  static constexpr Block block(OperandKind kind) {
    return kind == OperandKind::weight ? Block{64, 64} : Block{1, 64};
  }
};
template <>
struct Definition<support::RowsOf16> {
  static constexpr Recipe recipe = Recipe::mx;
  static constexpr Block block(OperandKind) { return {1, 16}; }
};

}  // namespace reference
