/// @file
/// AdamW state of a contiguous range of elements.
#pragma once

#include <octavo/kernels/adamw.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// Master weights, moments and their scales of a contiguous range of flat parameters.
/// @tparam Where  device whose memory contains them
template <class Moment, Device Where>
struct AdamWArrays {
  TensorView<float, 1, Where> master;          ///< [elements], or size 0 without master weights
  TensorView<Moment, 1, Where> first_moment;   ///< [elements]
  TensorView<Moment, 1, Where> second_moment;  ///< [elements]
  TensorView<E8M0, 1, Where> first_scale;   ///< [⌈elements / 128⌉] or empty, see AdamWParameter
  TensorView<E8M0, 1, Where> second_scale;  ///< the same

  AdamWArrays() = default;
  /// @param take  allocates memory, as `take.template operator()<T>(count)`
  template <class Take>
  AdamWArrays(Index size, bool has_master, const Take& take) {
    const auto of = [&]<class T>(TensorView<T, 1, Where>& view, Index count) {
      view = {take.template operator()<T>(count), {count}};
    };
    if (has_master) of(master, size);
    of(first_moment, size);
    of(second_moment, size);
    if constexpr (has_moment_scales<Moment>) {
      of(first_scale, ceil_divide(size, moment_group));
      of(second_scale, ceil_divide(size, moment_group));
    }
  }

  /// Returns the elements starting at `begin`, a multiple of 128.
  [[nodiscard]] AdamWArrays part(Index begin, Index count) const {
    AdamWArrays result = *this;
    const auto cut = [&](auto& view, Index group) {
      if (view.size() != 0) view = view.rows(begin / group, ceil_divide(count, group));
    };
    cut(result.master, 1);
    cut(result.first_moment, 1);
    cut(result.second_moment, 1);
    cut(result.first_scale, moment_group);
    cut(result.second_scale, moment_group);
    return result;
  }

  /// Calls `body(array)` for each array, or `body(array, matching array of other)` if others are
  /// passed.
  template <class Body, class... Others>
  void each(const Body& body, const Others&... others) const {
    body(master, others.master...);
    body(first_moment, others.first_moment...);
    body(second_moment, others.second_moment...);
    body(first_scale, others.first_scale...);
    body(second_scale, others.second_scale...);
  }
};

}  // namespace octavo::detail
