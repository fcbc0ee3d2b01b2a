/// @file
/// Sums, maxima and loops that kernels of the `Cpu` device share.
#pragma once

#include <octavo/core/context.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// Number of elements in one piece of an elementwise loop.
inline constexpr Index elementwise_piece = 4096;

/// Returns Σ term(i) for begin ≤ i < end in sixteen interleaved sums: the order is fixed, and
/// compilers vectorise it without permission to reorder additions.
template <class Term>
float piece_sum(Index begin, Index end, const Term& term) {
  constexpr Index lanes = 16;
  std::array<float, lanes> sums{};
  const Index whole = begin + (end - begin) / lanes * lanes;
  for (Index i = begin; i < whole; i += lanes) {
    for (Index lane = 0; lane < lanes; ++lane)
      sums[static_cast<std::size_t>(lane)] += term(i + lane);
  }
  for (Index i = whole; i < end; ++i) sums[static_cast<std::size_t>(i - whole)] += term(i);
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

/// Returns Σ term(i) for 0 ≤ i < count, in pieces, so that the rounding error of long sums is a few
/// bits.
template <class Term>
float lane_sum(Index count, const Term& term) {
  if (count <= elementwise_piece) return piece_sum(0, count, term);
  double total = 0;
  for (Index begin = 0; begin < count; begin += elementwise_piece) {
    total +=
        static_cast<double>(piece_sum(begin, std::min(begin + elementwise_piece, count), term));
  }
  return static_cast<float>(total);
}

/// Returns the largest value(i) for 0 ≤ i < count, of at least one, in sixteen interleaved maxima.
/// NaN if the first value is NaN; ignores other NaN.
template <class Value>
float lane_max(Index count, const Value& value) {
  constexpr Index lanes = 16;
  std::array<float, lanes> largest;
  largest.fill(value(0));
  const auto take = [](float& most, float next) { most = next > most ? next : most; };
  const Index whole = count / lanes * lanes;
  for (Index i = 0; i < whole; i += lanes) {
    for (Index lane = 0; lane < lanes; ++lane)
      take(largest[static_cast<std::size_t>(lane)], value(i + lane));
  }
  for (Index i = whole; i < count; ++i)
    take(largest[static_cast<std::size_t>(i - whole)], value(i));
  float most = largest[0];
  for (const float one : largest) take(most, one);
  return most;
}

/// Returns 1 / root mean square of a row's elements.
template <class T>
float inverse_root_mean_square(const T* row, Index count, float epsilon) {
  const float squares = lane_sum(count, [&](Index i) {
    const float value = static_cast<float>(row[i]);
    return value * value;
  });
  return 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
}

/// Calls `body(begin, end)` for pieces that cover the elements 0 to count.
template <class Body>
void parallel_pieces(Index count, const Context<Cpu>& context, const Body& body) {
  parallel_for(ceil_divide(count, elementwise_piece), elementwise_piece, context, [&](Index piece) {
    const Index begin = piece * elementwise_piece;
    body(begin, begin + elementwise_piece < count ? begin + elementwise_piece : count);
  });
}

}  // namespace octavo::detail
