/// @file
/// The rows of a mixture of experts with their memory, for tests on the `Cpu` device.
#pragma once

#include <octavo/kernels/experts.hpp>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "support/matrix.hpp"

namespace support {

/// Experts that tokens choose, with the memory of their rows.
struct ExpertOrder {
  ExpertOrder(Matrix<std::int32_t> chosen, Index expert_count)
      : choices(std::move(chosen)),
        experts(expert_count),
        rows(octavo::expert_row_count(choices.size(), expert_count)),
        pairs(1, rows, -9),
        places(choices.rows, choices.columns, -9),
        offsets(1, expert_count + 1, -9),
        tiles(1, rows / octavo::expert_tile, -9) {}
  octavo::ExpertRows<Cpu> view() {
    return {pairs.flat(), places.view(), offsets.flat(), tiles.flat()};
  }
  void compute() {
    ContextWithWorkspace place(2, octavo::expert_order_workspace(choices.size()));
    order_by_expert(choices.input(), view(), place.context);
  }

  Matrix<std::int32_t> choices;
  Index experts;
  Index rows;
  Matrix<std::int32_t> pairs;
  Matrix<std::int32_t> places;
  Matrix<std::int32_t> offsets;
  Matrix<std::int32_t> tiles;
};

/// Distinct experts for each token, below `most`.
inline Matrix<std::int32_t> random_choices(Index tokens, Index count, int most, unsigned seed) {
  std::mt19937 generator(seed);
  Matrix<std::int32_t> result(tokens, count, 0);
  for (Index t = 0; t < tokens; ++t) {
    std::vector<std::int32_t> all;
    for (int e = 0; e < most; ++e) all.push_back(e);
    std::shuffle(all.begin(), all.end(), generator);
    for (Index j = 0; j < count; ++j) result.at(t, j) = all[static_cast<std::size_t>(j)];
  }
  return result;
}

}  // namespace support
