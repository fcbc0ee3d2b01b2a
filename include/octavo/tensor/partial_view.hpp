/// @file
/// Terms of a sum that is not made yet, as a type.
#pragma once

#include <octavo/tensor/tensor_view.hpp>

namespace octavo OCTAVO_ABI {

/// One rank's terms of a sum over a tensor-parallel group: what a product over a part of the
/// features gives. No tensor: its values, their largest or their scale say nothing of the sum's. So
/// no kernel, norm or cast takes it; `TensorParallelGroup::sum_rows` makes a tensor of it.
/// @tparam T     format of the terms
/// @tparam Rank  number of dimensions
template <class T, int Rank, Device D>
class PartialView {
 public:
  constexpr PartialView() = default;
  explicit constexpr PartialView(TensorView<T, Rank, D> terms) : terms_(terms) {}

  /// For what writes the terms, and what sums them up.
  [[nodiscard]] constexpr TensorView<T, Rank, D> terms() const { return terms_; }

  template <class Element, int OtherRank>
  operator TensorView<Element, OtherRank, D>() const {  // NOLINT: only to say what is wrong
    static_assert(!std::is_same_v<Element, Element>,
                  "PartialView: these are one rank's terms of a sum; make the sum first, such as "
                  "by TensorParallelGroup::sum_rows");
    return {};
  }

 private:
  TensorView<T, Rank, D> terms_;
};

/// Where a product writes its result, be it whole or one rank's terms of a sum.
template <class T, int Rank, Device D>
[[nodiscard]] constexpr TensorView<T, Rank, D> terms_of(TensorView<T, Rank, D> whole) {
  return whole;
}
template <class T, int Rank, Device D>
[[nodiscard]] constexpr TensorView<T, Rank, D> terms_of(PartialView<T, Rank, D> partial) {
  return partial.terms();
}

/// What a product over a part of the features gives where `Degree` ranks have a part each.
template <int Degree, class T, int Rank, Device D>
using ProductView =
    std::conditional_t<Degree == 1, TensorView<T, Rank, D>, PartialView<T, Rank, D>>;

}  // namespace octavo
