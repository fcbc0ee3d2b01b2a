/// @file
/// Terms of a sum that is not yet computed, as a type.
#pragma once

#include <octavo/core/macros.hpp>
#include <octavo/tensor/tensor_view.hpp>

namespace octavo OCTAVO_ABI {

/// One rank's terms of a sum over a tensor-parallel group: the result of a GEMM over a part of the
/// features. It is not a tensor, because its values, maximum and scale are not those of the sum.
/// Kernels, norms and casts therefore do not accept it; `TensorParallelGroup::sum_rows` computes
/// the tensor.
/// @tparam T     format of the terms
/// @tparam Rank  number of dimensions
template <class T, int Rank, Device D>
class PartialView {
 public:
  constexpr PartialView() = default;
  explicit constexpr PartialView(TensorView<T, Rank, D> terms) : terms_(terms) {}

  /// Returns the terms, for operations that write or sum them.
  [[nodiscard]] constexpr TensorView<T, Rank, D> terms() const { return terms_; }

  template <class Element, int OtherRank>
  operator TensorView<Element, OtherRank, D>() const {  // NOLINT: only for the message
    static_assert(!std::is_same_v<Element, Element>,
                  "PartialView: these are one rank's terms of a sum; compute the sum first, for "
                  "example with TensorParallelGroup::sum_rows");
    return {};
  }

 private:
  TensorView<T, Rank, D> terms_;
};

/// The result view of a GEMM: a whole tensor, or one rank's terms of a sum.
template <class T, int Rank, Device D>
[[nodiscard]] constexpr TensorView<T, Rank, D> terms_of(TensorView<T, Rank, D> whole) {
  return whole;
}
template <class T, int Rank, Device D>
[[nodiscard]] constexpr TensorView<T, Rank, D> terms_of(PartialView<T, Rank, D> partial) {
  return partial.terms();
}

/// The result type of a GEMM over one part of the features, if `Degree` ranks have a part each.
template <int Degree, class T, int Rank, Device D>
using GemmResultView =
    std::conditional_t<Degree == 1, TensorView<T, Rank, D>, PartialView<T, Rank, D>>;

template <int Degree, class T, int Rank, Device D>
using ProductView OCTAVO_DEPRECATED("use GemmResultView") = GemmResultView<Degree, T, Rank, D>;

}  // namespace octavo
