/// @file
/// The RoPE layer: the table of rotations.
#pragma once

#include <octavo/kernels/rope.hpp>
#include <octavo/memory/arena.hpp>

#include <cmath>
#include <vector>

namespace octavo {

/// Cosines and sines for every position of a sequence.
template <Device D>
class RoPE {
 public:
  void take(Arena<D>& arena, Index tokens, Index head_dim) {
    table_ = {arena.template take<float>(MemoryKind::activations, tokens * head_dim),
              {tokens, head_dim}};
  }

  /// Fills the table.
  /// @param frequency  `frequency(j)` is the angle by which pair j turns at each position
  /// @note synchronises
  template <class Frequency>
  void fill(const Frequency& frequency, const Context<D>& context) {
    const Index half = table_.extent(1) / 2;
    std::vector<float> values(static_cast<std::size_t>(table_.size()));
    for (Index position = 0; position < table_.extent(0); ++position) {
      float* row = values.data() + position * 2 * half;
      for (Index j = 0; j < half; ++j) {
        const double angle = static_cast<double>(position) * frequency(j);
        row[j] = static_cast<float>(std::cos(angle));
        row[half + j] = static_cast<float>(std::sin(angle));
      }
    }
    copy_to_device(table_.data(), values.data(), table_.bytes(), context);
  }

  /// [positions, head_dim]: head_dim / 2 cosines, then sines.
  [[nodiscard]] TensorView<const float, 2, D> table() const { return table_; }

 private:
  TensorView<float, 2, D> table_;
};

}  // namespace octavo
