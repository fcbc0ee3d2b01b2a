/// @file
/// The AdamW update of one parameter.
#pragma once

#include <octavo/kernels/adamw_formula.hpp>
#include <octavo/kernels/step_status.hpp>

namespace octavo OCTAVO_ABI {

/// A parameter, or a part of one, and its optimizer state.
/// @tparam W       format of the weight
/// @tparam G       format of the gradient
/// @tparam Moment  format of the moments: `Fp32`, or `Bf16` or `EightBit` with stochastic rounding
template <class W, class G, class Moment, Device D>
struct AdamWParameter {
  TensorView<W, 1, D> weight;          ///< [elements]
  TensorView<const G, 1, D> gradient;  ///< [elements]
  /// [elements], the FP32 master weight; empty: the weight itself is updated, with stochastic
  /// rounding unless it is FP32
  TensorView<float, 1, D> master;
  TensorView<Moment, 1, D> first_moment;   ///< [elements]
  TensorView<Moment, 1, D> second_moment;  ///< [elements]
  /// [⌈elements / 128⌉], one for each 128 adjacent elements; empty unless moments are `EightBit`
  TensorView<E8M0, 1, D> first_scale;
  TensorView<E8M0, 1, D> second_scale;  ///< the same
  float weight_decay = 0;
  std::uint64_t random_stream = 0;  ///< differs between parameters
  Index first_element = 0;          ///< index of the part's first element: see part_of
};

namespace detail {

template <class W, class G, class Moment, Device D>
void check_adamw(const AdamWParameter<W, G, Moment, D>& parameter) {
  check_shape("adamw_update", "gradient", parameter.gradient, parameter.weight.shape());
  check_shape("adamw_update", "first moment", parameter.first_moment, parameter.weight.shape());
  check_shape("adamw_update", "second moment", parameter.second_moment, parameter.weight.shape());
  const Index groups =
      has_moment_scales<Moment> ? ceil_divide(parameter.weight.size(), moment_group) : 0;
  check_shape("adamw_update", "first scale", parameter.first_scale, {groups});
  check_shape("adamw_update", "second scale", parameter.second_scale, {groups});
}

}  // namespace detail

/// Returns the elements starting at `begin` of a parameter or a part of one, such as a rank's
/// shard.
/// @param begin  a multiple of 8, or of 128 with `EightBit` moments
/// @param count  a multiple of the same, or all remaining elements
template <class W, class G, class Moment, Device D>
[[nodiscard]] AdamWParameter<W, G, Moment, D> part_of(AdamWParameter<W, G, Moment, D> parameter,
                                                      Index begin, Index count) {
  detail::check_adamw(parameter);
  require<ShapeError>(begin >= 0 && count >= 0 && begin + count <= parameter.weight.size(),
                      "part_of: elements ", begin, " to ", begin + count,
                      " are requested of a parameter of ", parameter.weight.size());
  constexpr Index multiple = detail::adamw_multiple<Moment>;
  const bool is_whole = count % multiple == 0 || begin + count == parameter.weight.size();
  require<ShapeError>(count == 0 || (begin % multiple == 0 && is_whole), "part_of: elements ",
                      begin, " to ", begin + count, " are requested; use multiples of ", multiple,
                      ", whose elements are rounded together");
  const auto cut = [&](auto& view) {
    if (!view.empty()) view = view.rows(begin, count);
  };
  cut(parameter.weight);
  cut(parameter.gradient);
  cut(parameter.master);
  cut(parameter.first_moment);
  cut(parameter.second_moment);
  if constexpr (detail::has_moment_scales<Moment>) {
    const Index first = begin / detail::moment_group;
    const Index groups = ceil_divide(count, detail::moment_group);
    parameter.first_scale = parameter.first_scale.rows(first, groups);
    parameter.second_scale = parameter.second_scale.rows(first, groups);
  }
  parameter.first_element += begin;
  return parameter;
}

/// Computes w ← w · (1 − lr · decay) − lr · m̂ / (√v̂ + epsilon), with gradients multiplied by the
/// clip coefficient; nothing changes if the step is skipped.
///
/// Stochastic rounding adds 16 random bits to the 16 that BF16 drops. The bits of an element depend
/// only on the seed, the step, the parameter's `random_stream`, the element's position in the
/// parameter and which value is rounded, so updating parts gives the same bits as updating the
/// whole. Philox gives 128 bits at once, which eight adjacent elements share: element i uses half i
/// mod 2, the lower first, of word (i mod 8) / 2 at position i / 8 of the stream (4 ·
/// `random_stream` + r) · 2^32 + step; r is 0 for the first moment, 1 for the second, 2 for the
/// weight. With `EightBit` moments, all three use products of the words of r = 0, at position 8 ·
/// (i / 128) + i / 8 mod 8: see SharedRoundingBits.
/// @param step    [1]
/// @param status  [1]
/// @note enqueues; does not synchronise
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
template <class W, class G, class Moment, Device D>
void adamw_update(const AdamWParameter<W, G, Moment, D>& parameter, const AdamWSettings& settings,
                  TensorView<const AdamWStep, 1, D> step, TensorView<const StepStatus, 1, D> status,
                  const Context<D>& context) {
  detail::check_adamw(parameter);
  if (parameter.weight.size() == 0) return;
  require<ShapeError>(parameter.first_element % detail::adamw_multiple<Moment> == 0,
                      "adamw_update: a part begins at element ", parameter.first_element,
                      "; use a multiple of ", detail::adamw_multiple<Moment>);
  adamw_update_body(parameter, settings, step, status, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/adamw.hpp>
