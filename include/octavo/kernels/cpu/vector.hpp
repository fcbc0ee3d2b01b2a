/// @file
/// Sums and sizes that CPU kernels share.
#pragma once

#include <octavo/core/context.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// Elements that one piece of an elementwise loop covers.
inline constexpr Index elementwise_run = 4096;

/// Σ term(i) for begin ≤ i < end in sixteen interleaved sums: the order is fixed, and compilers
/// vectorise it without being allowed to reorder additions.
template <class Term>
float run_sum(Index begin, Index end, const Term& term) {
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

/// Σ term(i) for 0 ≤ i < count, by runs, so that long sums stay exact to a few bits.
template <class Term>
float lane_sum(Index count, const Term& term) {
  if (count <= elementwise_run) return run_sum(0, count, term);
  double total = 0;
  for (Index begin = 0; begin < count; begin += elementwise_run) {
    total += static_cast<double>(run_sum(begin, std::min(begin + elementwise_run, count), term));
  }
  return static_cast<float>(total);
}

/// 1 / root mean square of a row's elements.
template <class T>
float inverse_root_mean_square(const T* row, Index count, float epsilon) {
  const float squares = lane_sum(count, [&](Index i) {
    const float value = static_cast<float>(row[i]);
    return value * value;
  });
  return 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
}

/// Calls `body(begin, end)` for runs of elements that cover 0 to count.
template <class Body>
void parallel_runs(Index count, const Context<Cpu>& context, const Body& body) {
  parallel_for(ceil_divide(count, elementwise_run), elementwise_run, context, [&](Index run) {
    const Index begin = run * elementwise_run;
    body(begin, begin + elementwise_run < count ? begin + elementwise_run : count);
  });
}

}  // namespace octavo::detail
