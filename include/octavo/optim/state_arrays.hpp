/// @file
/// Optimizer state of a contiguous range of elements.
#pragma once

#include <octavo/kernels/adamw_formula.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>

namespace octavo OCTAVO_ABI {

/// Master weights, moments and their scales of a contiguous range of flat parameters.
/// @tparam Moment  format of the moments
/// @tparam Count   number of moments of each element
/// @tparam Where   device whose memory contains them
template <class Moment, std::size_t Count, Device Where>
struct StateArrays {
  static constexpr bool has_scales = detail::has_moment_scales<Moment>;

  TensorView<float, 1, Where> master;  ///< [elements], or size 0 without master weights
  Array<TensorView<Moment, 1, Where>, Count> moments{};  ///< [elements] each
  /// [⌈elements / 128⌉] each, one for each 128 adjacent elements; empty unless moments are
  /// `EightBit`
  Array<TensorView<E8M0, 1, Where>, Count> scales{};

  StateArrays() = default;
  /// @param allocate  allocates memory, as `allocate.template operator()<T>(count)`
  template <class Allocate>
  StateArrays(Index size, bool has_master, const Allocate& allocate) {
    const auto of = [&]<class T>(TensorView<T, 1, Where>& view, Index count) {
      view = { allocate.template operator()<T>(count), {count} };
    };
    if (has_master) of(master, size);
    for (std::size_t i = 0; i < Count; ++i) of(moments[i], size);
    if constexpr (has_scales) {
      for (std::size_t i = 0; i < Count; ++i)
        of(scales[i], ceil_divide(size, detail::moment_group));
    }
  }

  /// Returns the elements starting at `begin`, a multiple of 128.
  [[nodiscard]] StateArrays part(Index begin, Index count) const {
    StateArrays result = *this;
    const auto cut = [&](auto& view, Index group) {
      if (view.size() != 0) view = view.rows(begin / group, ceil_divide(count, group));
    };
    cut(result.master, 1);
    for (std::size_t i = 0; i < Count; ++i) {
      cut(result.moments[i], 1);
      cut(result.scales[i], detail::moment_group);
    }
    return result;
  }

  /// Calls `body(array)` for each array, or `body(array, matching array of other)` if others are
  /// passed.
  template <class Body, class... Others>
  void each(const Body& body, const Others&... others) const {
    body(master, others.master...);
    for (std::size_t i = 0; i < Count; ++i) body(moments[i], others.moments[i]...);
    for (std::size_t i = 0; i < Count; ++i) body(scales[i], others.scales[i]...);
  }
};

}  // namespace octavo
